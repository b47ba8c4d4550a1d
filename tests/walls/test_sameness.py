"""A test finds the interpreter as every other test of its submission does, and as the same test of an equal submission earlier or later does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from code_rl.sandbox.embedded.pool import EmbeddedSandbox
from code_rl.sandbox.executor import Job, StdinInput, closing
from tests.corpus.rooms import CONFINED
from tests.walls.programs import source

TESTS = 8
SUBMISSIONS = 5
SMALL_NUMBERS = 256
"""CPython has one object for each number up to this; a larger one takes memory."""

_LOOK = source(
    """
    import gc, hashlib, json, os, sys
    state = {}
    places = [id(bytearray(size)) for size in range(0, 600, 8)] + [id([None] * size) for size in range(40)]
    state["places"] = hash(tuple(places))
    state["kept"] = hash(tuple(map(id, [bytearray(size % 500) for size in range(2000)])))
    state["collections"] = [gc.get_count(), gc.get_stats(), gc.get_freeze_count()]
    stats = os.dup(2)
    sys._debugmallocstats()
    os.lseek(stats, 0, 0)
    state["allocator"] = os.pread(stats, 1 << 20, 0).decode()
    os.ftruncate(stats, 0)
    frame, frames = sys._getframe(), []
    while frame is not None:
        frames.append((frame.f_code.co_qualname, frame.f_lasti, sorted(frame.f_locals)))
        frame = frame.f_back
    state["frames"] = frames
    codes, seen, waiting = [], set(), [sys._getframe(), *gc.get_objects(), *sys.modules.values()]
    kinds = {"function", "code", "type", "module", "method", "frame", "tuple", "dict", "staticmethod", "classmethod", "property"}
    for module in list(sys.modules.values()):
        waiting += vars(module).values()
    while waiting:
        each = waiting.pop()
        kind = type(each).__name__
        if id(each) in seen or kind not in kinds:
            continue
        seen.add(id(each))
        if kind == "code":
            codes.append((each.co_filename, each.co_qualname, each.co_firstlineno, each._co_code_adaptive.hex()))
        waiting += gc.get_referents(each)
    state["codes"] = sorted(code for code in codes if code[0] != __file__)
    gc.unfreeze()
    held = []
    for each in gc.get_objects():
        if type(each).__module__ in ("builtins", "itertools", "functools") and type(each).__name__ in ("zip", "takewhile", "partial", "deque", "tuple"):
            for value in gc.get_referents(each):
                parts = gc.get_referents(value) if type(value) is tuple else [value]
                held += [(id(value), id(part), part) for part in parts if type(part) in (int, float, bytes)]
    state["held"] = sorted(held, key=lambda part: part[:2])[:100_000]
    state["held"] = [(where, what, repr(part)) for where, what, part in state["held"]]
    for name, value in state.items():
        print(name, hashlib.sha256(json.dumps(value).encode()).hexdigest())
    sys.exit(os.urandom(1)[0] % 90 + 1)
    """
)


async def _looks(level: str) -> list[bytes]:
    """What each test of each of several equal submissions prints, one after another in one worker, with others in between."""
    found = []
    job = Job(_LOOK, (StdinInput(b"same\n"),) * TESTS)
    async with EmbeddedSandbox(1, level) as box:
        for _ in range(SUBMISSIONS):
            found += [execution.stdout or execution.stderr async for execution in box.run(job)]
            other = Job("import time\nprint(input())\ntime.sleep(.3)\n1/0\n", (StdinInput(b"x"),) * 3)
            async with closing(box.run(other)) as executions:
                await anext(executions)
        assert len(box._workers) == 1
    return found


@pytest.mark.parametrize("level", CONFINED)
def test_every_test_finds_the_same_interpreter(level: str) -> None:
    found = asyncio.run(_looks(level))
    assert found[0].startswith(b"places "), found[0]
    assert len(found) == TESTS * SUBMISSIONS
    assert set(found) == {found[0]}


@contextlib.contextmanager
def _running(processes: int) -> Iterator[None]:
    with contextlib.ExitStack() as started:
        for _ in range(processes):
            started.callback(started.enter_context(subprocess.Popen(["sleep", "60"])).kill)
        yield


@pytest.mark.parametrize("level", CONFINED)
def test_how_many_processes_the_machine_runs_cannot_be_told(level: str) -> None:
    if os.stat("/proc").st_nlink > SMALL_NUMBERS:
        pytest.skip(f"this machine runs more than {SMALL_NUMBERS} processes as it is")

    async def looks() -> list[bytes]:
        job = Job(_LOOK, (StdinInput(b"same\n"),))
        found = []
        async with EmbeddedSandbox(1, level) as box:
            for processes in (0, SMALL_NUMBERS):
                with _running(processes):
                    found += [execution.stdout async for execution in box.run(job)]
        return found

    few, many = asyncio.run(looks())
    assert few.startswith(b"places ")
    assert few == many
