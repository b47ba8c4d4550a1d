"""No byte of a submission can be found by another one, nor by the next test of its own: random canaries in every field, and a program that searches
memory, descriptors, files, environments and other processes for them.

Rewards of a run come by the same executors as the judge's (`connect_executor`), so that the loop's way is that of `full` and `fusion` here.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import pytest

from code_rl.grading import CallTest, Compare, Problem, StdinTest, judge_async
from code_rl.grading.sandbox import Executor, Job, StdinInput
from tests.grading.corpus.rooms import FUSION, LEVELS, room
from tests.grading.corpus.searcher import LIMITS, SEARCH, SIZES, Canaries, Posts, found
from tests.grading.jobs import call, call_job, collect

RAW = "posts"
WAYS = (*LEVELS, FUSION, RAW)
CALLS = (*LEVELS, FUSION)
BY_DEFAULT = ("full", "landlock")
"""The ways that have a place for function calls and judges."""
SLOW = pytest.mark.slow

_CHECKER = """
def check(input, output, expected):
    return bool(expected)
"""


@contextlib.asynccontextmanager
async def way(name: str, concurrency: int) -> AsyncIterator[Executor]:
    if name != RAW:
        async with room(name, concurrency) as executor:
            yield executor
        return
    command = ["-m", "code_rl.cli", "sandbox", "port=0", f"sandbox_concurrency={concurrency}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        posts = Posts((await process.stdout.readline()).decode().split()[1])
        yield posts
        await posts.aclose()
    finally:
        process.terminate()
        await process.wait()


def _script(canaries: Canaries, copies: int = 40, sleep_s: float = 0.0, files: bool = True) -> Job:
    """A script with a canary in each field; it prints its input backwards, which is a canary again. The Fusion client takes no `files`."""
    code = f'"""{canaries.field("code", copies)}"""\nimport time\ntime.sleep({sleep_s})\nprint(open(0).read()[::-1])\n'
    inputs = [canaries.field("input", copies), canaries.field("output", copies)[::-1]]
    return Job(
        code,
        tuple(StdinInput(text.encode()) for text in inputs),
        preamble=f'"""{canaries.field("preamble", copies)}"""',
        files={canaries.new("file_name"): b"x", "notes.txt": canaries.field("file", copies).encode()} if files else {},
        fetch=("notes.txt",) if files else (),
        limits=LIMITS,
    )


def _call(canaries: Canaries, copies: int = 40, sleep_s: float = 0.0) -> Job:
    """As `_script`, for a function; it returns its argument backwards."""
    code = f'"""{canaries.field("call_code", copies)}"""\nimport time\ndef turn(text, key="", more=None):\n    time.sleep({sleep_s})\n    return text[::-1]\n'
    cases = (
        call(canaries.field("argument", copies), key=canaries.field("keyword", copies)),
        call(canaries.field("value", copies)[::-1], more=[{canaries.new("key_of_dict"): 1}]),
    )
    return Job(code, cases, fn_name="turn", setup=f'"""{canaries.field("setup", copies)}"""', limits=LIMITS)


async def _judged(canaries: Canaries, executor: Executor, copies: int) -> None:
    """A right answer by a checker, and answers by comparison."""
    tests = (StdinTest(canaries.field("asked_input", copies), canaries.field("asked_expected", copies)),)
    checker = f'"""{canaries.field("checker", copies)}"""{_CHECKER}'
    problem = Problem("asked", "asked", tests, compare=Compare("checker", checker=checker))
    called = Problem("called", "called", (CallTest((1,), canaries.field("called_expected", copies)),), fn_name="f")
    compared = Problem("compared", "compared", (StdinTest("1\n", canaries.field("expected", copies)),))
    program = "def f(x):\n    return x\nprint(open(0).read()[::-1])"
    assert not (await judge_async(called, program, executor)).correct
    assert not (await judge_async(compared, program, executor)).correct
    assert (await judge_async(problem, program, executor)).correct


async def _plant(canaries: Canaries, executor: Executor, name: str) -> None:
    for copies in SIZES:
        assert len(await collect(executor, _script(canaries, copies, files=name != FUSION))) == 2
        if name in CALLS:
            assert len(await collect(executor, _call(canaries, copies))) == 2
            await _judged(canaries, executor, copies)


async def _last(kind: str, canaries: Canaries, executor: Executor, name: str) -> None:
    for copies in SIZES:
        if kind == "checker":
            await _judged(canaries, executor, copies)
        elif kind == "call":
            await collect(executor, _call(canaries, copies))
        else:
            await collect(executor, _script(canaries, copies, files=name != FUSION))


def _searching(canaries: Canaries, name: str, sweep: bool) -> Job:
    code = canaries.searcher(SEARCH, sweep=sweep, at_none=name == "none")
    return Job(code, (StdinInput(b""),), limits=LIMITS)


@pytest.mark.long
@pytest.mark.parametrize("name", [n if n in BY_DEFAULT else pytest.param(n, marks=SLOW) for n in WAYS])
def test_nothing_of_a_submission_is_found_by_later_ones_in_the_same_place(name: str) -> None:
    async def attack() -> set[tuple[str, str]]:
        seen: set[tuple[str, str]] = set()
        async with way(name, 1) as executor:
            canaries = Canaries()
            await _plant(canaries, executor, name)
            for last in ("checker", "script", "call"):  # what comes last is overwritten least
                if last == "script" or name in CALLS:
                    await _last(last, canaries, executor, name)
                    seen |= found(await collect(executor, _searching(canaries, name, sweep=last == "call")))[0]
        return seen

    assert sorted(asyncio.run(attack())) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["full", "landlock", *(pytest.param(n, marks=SLOW) for n in ("none", FUSION, RAW))])
def test_nothing_of_a_submission_is_found_by_those_that_run_beside_it(name: str) -> None:
    async def attack() -> set[tuple[str, str]]:
        canaries = Canaries()
        async with way(name, 3) as executor:
            await _plant(Canaries(), executor, name)
            sleeping = [
                _script(canaries, sleep_s=1.0, files=name != FUSION),
                *([_call(canaries, sleep_s=1.0)] if name in CALLS else []),
            ]
            tasks = [asyncio.create_task(collect(executor, job)) for job in sleeping]
            await asyncio.sleep(0.3)
            seen = found(await collect(executor, _searching(canaries, name, sweep=False)))[0]
            await asyncio.gather(*tasks)
            return seen

    assert sorted(asyncio.run(attack())) == []


@pytest.mark.long
@pytest.mark.parametrize("name", [n if n in BY_DEFAULT else pytest.param(n, marks=SLOW) for n in LEVELS])
def test_a_test_finds_nothing_of_the_other_tests_of_its_submission(name: str) -> None:
    """Each test of a script must find its own input, which shows that it is not blind, and no other input and no earlier output."""
    canaries = Canaries()
    inputs = [f"{canaries.field(f'input{n}')}\n{canaries.field(f'output{n}')[::-1]}" for n in range(3)]
    answer = """
        text = open(0).read()
        search()
        text = text.splitlines()
        sys.stderr.write("\\n".join(line[::-1] for line in text))
        print("\\n".join(line[::-1] for line in text))
        with open("left.txt", "w") as file:
            file.write("\\n".join(line[::-1] for line in text))
        """
    job = Job(
        canaries.searcher(answer, at_none=name == "none"),
        tuple(StdinInput(text.encode()) for text in inputs),
        limits=LIMITS,
        fetch=("left.txt",) if name != FUSION else (),
    )

    async def attack() -> list[set[tuple[str, str]]]:
        async with way(name, 1) as executor:
            return found(await collect(executor, job))

    seen = [{field for field, _ in fields} for fields in asyncio.run(attack())]
    assert seen == [{f"input{n}"} for n in range(3)]


@pytest.mark.long
@pytest.mark.parametrize("name", [n if n in BY_DEFAULT else pytest.param(n, marks=SLOW) for n in LEVELS])
def test_a_call_finds_nothing_of_the_other_calls_of_its_submission(name: str) -> None:
    canaries = Canaries()
    arguments = [(canaries.field(f"argument{n}"), canaries.field(f"value{n}")[::-1]) for n in range(3)]
    answer = """
        def turn(own, text):
            search()
            sys.stdout.write(text[::-1])
            return text[::-1]
        """
    code = canaries.searcher(answer, at_none=name == "none")
    job = call_job(code, "turn", *arguments, limits=LIMITS)

    async def attack() -> list[set[tuple[str, str]]]:
        async with way(name, 1) as executor:
            return found(await collect(executor, job))

    seen = [{field for field, _ in fields} for fields in asyncio.run(attack())]
    assert seen == [{f"argument{n}"} for n in range(3)]


@pytest.mark.long
@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("name", ["full", "landlock", *(pytest.param(n, marks=SLOW) for n in ("none", RAW))])
def test_the_searcher_finds_canaries_that_are_there(name: str, sweep: bool) -> None:
    """In memory in use and freed, as text of wide characters, in a descriptor without a name, and in a file."""
    canaries = Canaries()
    texts = {field: canaries.new(field) for field in ("kept", "freed", "wide", "descriptor", "file", "name")}
    masked = {field: bytes(byte ^ 0xA5 for byte in text.encode()) for field, text in texts.items()}
    plant = f"""
        masked = {masked!r}
        def open_up(field):
            return bytearray(byte ^ 0xA5 for byte in masked[field])
        def forget(buffer):
            buffer[:] = bytes(len(buffer))
        kept = open_up("kept")
        freed = [open_up("freed") * 9 for _ in range(300)]
        del freed
        text = open_up("wide")
        wide = text.decode() + "\\u4e2d"
        forget(text)
        text = open_up("descriptor")
        fd = os.open("gone", os.O_RDWR | os.O_CREAT)
        os.write(fd, text)
        os.unlink("gone")
        forget(text)
        text = open_up("file")
        with open("stays", "wb") as file:
            file.write(text)
        forget(text)
        with open(open_up("name").decode(), "wb"):
            pass
        search()
        """
    job = Job(canaries.searcher(plant, sweep=sweep, at_none=name == "none"), (StdinInput(b""),), limits=LIMITS)

    async def look() -> set[tuple[str, str]]:
        async with way(name, 1) as executor:
            return found(await collect(executor, job))[0]

    files = "here" if name == "none" else "files"
    wanted = {(field, "memory") for field in ("kept", "freed", "wide")}
    wanted |= {("descriptor", "descriptors"), ("file", files)}
    seen = asyncio.run(look())
    if name == "landlock":  # nothing but the working directory can be listed there, and that may be refused
        wanted -= {("file", files)} - seen
    assert wanted <= seen
