"""The pool: order, early stop, event loops, workers that die, refusals."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from code_rl.grading.sandbox import Status, connect_executor
from code_rl.grading.sandbox.executor import Execution
from code_rl.grading.sandbox.server import EmbeddedSandbox
from code_rl.util.errors import OutageError, SandboxError
from tests.boxes import descendants
from tests.grading.jobs import collect, stdin_job
from tests.grading.sandbox.sandbox_boxes import LEVELS, run, run_one
from tests.paths import copy_source
from tests.refusals import refused

ECHO = "print(input())"


@pytest.mark.long
def test_many_at_once_give_each_its_own_answer():
    async def go() -> list[list[Execution]]:
        async with EmbeddedSandbox(8) as box:
            return await asyncio.gather(*(collect(box, stdin_job(ECHO, b"%d" % n, b"%d" % -n)) for n in range(200)))

    done = asyncio.run(go())
    assert [[one.stdout for one in each] for each in done] == [[b"%d\n" % n, b"%d\n" % -n] for n in range(200)]


def test_on_uvloop_what_a_supervisor_said_before_it_closed_is_read():
    async def go() -> list[Status]:
        async with EmbeddedSandbox(4) as box:
            jobs = [stdin_job("def f(:", b"x", b"y") for _ in range(60)]
            found = await asyncio.wait_for(asyncio.gather(*(collect(box, job) for job in jobs)), 60)
        return [each[0].status for each in found]

    assert pytest.importorskip("uvloop").run(go()) == [Status.COMPILE_ERROR] * 60


def test_those_who_wait_are_served_in_order():
    async def go() -> list[int]:
        finished: list[int] = []

        async def one(number: int) -> None:
            await collect(box, stdin_job(ECHO, b"x"))
            finished.append(number)

        async with EmbeddedSandbox(1) as box:
            await asyncio.gather(*(one(number) for number in range(20)))
        return finished

    assert asyncio.run(go()) == list(range(20))


def test_one_sandbox_serves_several_event_loops_in_turn():
    box = EmbeddedSandbox(2)
    for _ in range(3):
        assert asyncio.run(collect(box, stdin_job(ECHO, b"x")))[0].stdout == b"x\n"
    asyncio.run(box.aclose())
    asyncio.run(box.aclose())


def test_a_loop_that_ends_in_the_middle_leaves_the_sandbox_usable():
    box = EmbeddedSandbox(1)

    async def abandoned() -> None:
        stream = box.run(stdin_job("import time\ntime.sleep(100)", b"", b""))
        waiting = asyncio.ensure_future(collect(box, stdin_job(ECHO, b"y")))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.3)
        waiting.cancel()

    asyncio.run(abandoned())
    assert asyncio.run(collect(box, stdin_job(ECHO, b"x")))[0].stdout == b"x\n"
    asyncio.run(box.aclose())


def test_closing_the_iterator_stops_the_submission_and_frees_the_worker():
    async def go() -> list[Execution]:
        async with EmbeddedSandbox(1) as box:
            stream = box.run(stdin_job("n = int(input())\nimport time\ntime.sleep(n)", b"0", b"1000", wall_s=2000))
            first = await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            return [first, *await collect(box, stdin_job(ECHO, b"next"))]

    assert [one.status for one in asyncio.run(go())] == [Status.OK, Status.OK]


@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_worker_costs_no_result_and_a_test_that_is_run_again_draws_the_same_random_numbers(level):
    code = "import random, time\ntime.sleep(.02)\nprint(input(), random.random())"

    async def go(*killed_after: int) -> list[bytes]:
        async with EmbeddedSandbox(1, level) as box:
            printed = []
            async for one in box.run(stdin_job(code, *(b"%d" % n for n in range(20)))):
                printed.append(one.stdout)
                if len(printed) in killed_after:
                    (link,) = box._workers
                    os.kill(link.process.pid, signal.SIGKILL)
            assert box.retries == len(killed_after)
            return printed

    undisturbed = asyncio.run(go())
    assert asyncio.run(go(5, 12)) == undisturbed
    numbers, drawn = zip(*(line.split() for line in undisturbed), strict=True)
    assert [*map(int, numbers)] == [*range(20)]
    assert len(set(drawn)) == 20


def test_a_dead_zygote_is_replaced():
    async def go() -> bytes:
        async with EmbeddedSandbox(1) as box:
            await collect(box, stdin_job(ECHO, b"x"))
            (zygote,) = box._zygotes.values()
            zygote.process.kill()
            zygote.process.wait()
            return (await collect(box, stdin_job(ECHO, b"again")))[0].stdout

    assert asyncio.run(go()) == b"again\n"


def test_where_no_worker_lives_not_even_a_control_s_the_sandbox_is_to_blame(monkeypatch):
    async def go() -> None:
        async with EmbeddedSandbox(1, outage_timeout_s=0.5) as box:
            take = box._take_worker

            async def doomed(*arguments):
                link = await take(*arguments)
                os.kill(link.process.pid, signal.SIGKILL)
                return link

            monkeypatch.setattr(box, "_take_worker", doomed)
            await collect(box, stdin_job(ECHO, b"x"))

    with pytest.raises(OutageError):
        asyncio.run(go())


@pytest.mark.long
def test_a_program_whose_worker_always_dies_where_a_control_s_lives_is_to_blame():
    async def go() -> list[Execution]:
        async with EmbeddedSandbox(1) as box:
            doom = asyncio.create_task(kill_slow_workers(box))
            done = await collect(box, stdin_job("import time\ntime.sleep(1)", b"", b""))
            doom.cancel()
            return done

    async def kill_slow_workers(box: EmbeddedSandbox) -> None:
        while True:
            before = set(box._workers)
            await asyncio.sleep(0.2)
            for link in before & set(box._workers):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(link.process.pid, signal.SIGKILL)

    assert [one.status for one in asyncio.run(go())] == [Status.RUNTIME_ERROR] * 2


def test_a_closed_sandbox_refuses():
    box = EmbeddedSandbox(1)
    asyncio.run(box.aclose())
    with pytest.raises(SandboxError):
        asyncio.run(collect(box, stdin_job(ECHO, b"x")))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: EmbeddedSandbox(0), "concurrency=0"),
        (lambda: EmbeddedSandbox(1, "strong"), "isolation="),
        (lambda: connect_executor("ftp://x"), "ftp://x"),
        (lambda: connect_executor("http://localhost:1", isolation="full"), "isolation="),
    ],
)
def test_bad_arguments_are_named(make, named):
    with refused(named):
        make()


def test_nothing_protects_only_when_asked_for_and_still_limits():
    assert EmbeddedSandbox(1).isolation in ("full", "landlock")
    done = run_one(
        "import os\nprint(os.path.exists('/etc/passwd'), flush=True)\nwhile True: pass", level="none", cpu_s=0.3
    )
    assert (done.stdout, done.status) == (b"True\n", Status.TIME_LIMIT)


def test_what_the_compiler_warns_of_does_not_reach_our_own_stderr(capfd):
    (done,) = run(stdin_job("x = 1if True else 2\nprint('\\d')"), own=True)
    assert done.status == Status.OK
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("level", LEVELS)
def test_what_a_program_started_ends_when_nobody_wants_its_result(level):
    forks = "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        while True: pass\nprint(flush=True)\nwhile True: pass\n"

    async def go() -> None:
        async with EmbeddedSandbox(1, level) as box:
            (zygote,) = box._zygotes.values()

            async def until(wanted) -> None:
                while not wanted(len(descendants(str(zygote.process.pid)))):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

            running = asyncio.ensure_future(collect(box, stdin_job(forks, b"", b"")))
            # The worker, the supervisor, and four of the program's.
            await asyncio.wait_for(until(lambda number: number >= 6), 60)
            running.cancel()
            await asyncio.wait_for(until(lambda number: number <= 1), 60)

    asyncio.run(go())


def test_it_starts_whatever_descriptors_are_open():
    script = (
        "import os\nfrom code_rl.grading.sandbox.server import EmbeddedSandbox\n"
        "for _ in range(5):\n    EmbeddedSandbox(1).close()\n    os.open('/dev/null', os.O_RDONLY)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def _silence_of_a_second(monkeypatch: pytest.MonkeyPatch, wall_s: float) -> None:
    monkeypatch.setattr("code_rl.grading.sandbox.local.link.SILENCE_S", 1.0 - wall_s)


@pytest.mark.long
def test_a_worker_that_says_nothing_for_too_long_is_given_up(monkeypatch):
    _silence_of_a_second(monkeypatch, wall_s=10)
    found = run_one("import time\ntime.sleep(4)", wall_s=10.0)
    assert found.status is Status.RUNTIME_ERROR


@pytest.mark.long
def test_silence_is_counted_anew_for_each_result_and_not_while_nobody_waits(monkeypatch):
    _silence_of_a_second(monkeypatch, wall_s=10)

    async def go() -> tuple[list[bytes], int]:
        outputs = []
        async with EmbeddedSandbox(1) as box:
            async for found in box.run(
                stdin_job("import time\ntime.sleep(.4)\nprint(input())", b"1", b"2", b"3", wall_s=10.0)
            ):
                outputs.append(found.stdout)
                await asyncio.sleep(1.1)
            return outputs, box.retries

    assert asyncio.run(go()) == ([b"1\n", b"2\n", b"3\n"], 0)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sandbox_starts_where_the_program_that_warms_it_has_to_wait(tmp_path, level):
    warmup = copy_source(tmp_path) / "grading" / "sandbox" / "local" / "guest" / "warmup.py"
    text = warmup.read_text()
    for quick, slow in (
        ("\nimport sys\nfrom", "\nimport sys, time\ntime.sleep(0.3)\nfrom"),
        ("_TIMES = 20", "_TIMES = 2"),
    ):
        assert quick in text
        text = text.replace(quick, slow)
    warmup.write_text(text)
    code = f"from code_rl.grading.sandbox.server import EmbeddedSandbox\nEmbeddedSandbox(1, {level!r}).close()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, check=True)
