"""A sandbox or a back end that is gone: the run waits and says so, goes on where it was, and past its outage_timeout stops resumable."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future

import httpx
import pytest

from code_rl.engine import place_of
from code_rl.engine.remote import Link, RemoteFuture
from code_rl.grading.sandbox.blame import MAX_LOST_RESULTS, OUTAGES, Retries
from code_rl.grading.sandbox.executor import Execution, Job, LostError, RefusedError, Status, StdinInput
from code_rl.util.errors import BackendError, OutageError, SandboxError
from tests.refusals import names_all, refused
from tests.waiting import until


class Flaky:
    """Attempts that echo each input reversed. They fail while `gone`, and at tests that say how."""

    def __init__(self) -> None:
        self.gone = False
        self.seen: list[bytes] = []
        self.alone: list[bool] = []

    async def attempt(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        for case in job.cases:
            await asyncio.sleep(0)
            assert isinstance(case, StdinInput)
            if b"down" in case.stdin:
                self.gone = True
                asyncio.get_running_loop().call_later(0.05, setattr, self, "gone", False)
            if case.stdin == b"is lost, and takes it down":
                raise LostError("its server went away")
            if self.gone:
                raise SandboxError("nobody answers")
            self.alone.append(alone)
            match case.stdin:
                case b"poison":
                    raise LostError("its worker died", Status.MEMORY_LIMIT)
                case b"unlucky" if self.alone.count(True) == 0:
                    raise LostError("its worker died")
                case b"trouble":
                    raise SandboxError("no worker could be started")
                case b"refused":
                    raise RefusedError("never")
            self.seen.append(case.stdin)
            yield Execution(Status.OK, stdout=case.stdin.strip()[::-1] + b"\n")


def patient(flaky: Flaky, outage_timeout_s: float, stop: asyncio.Event | None = None) -> Retries:
    return Retries(flaky.attempt, outage_timeout_s=outage_timeout_s, stop=stop or asyncio.Event())


async def executions(retries: Retries, *inputs: bytes) -> list[Execution]:
    return [each async for each in retries.run(Job("", tuple(map(StdinInput, inputs))))]


async def outputs(retries: Retries, *inputs: bytes) -> list[bytes]:
    return [each.stdout for each in await executions(retries, *inputs)]


class Said(logging.Handler):
    """The lines about outages while it listens; `caplog` may stand at two loggers at once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("code_rl.outages").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("code_rl.outages").removeHandler(self)


def test_an_outage_within_the_patience_costs_no_test_and_repeats_none():
    async def go() -> list[list[bytes]]:
        flaky = Flaky()
        executor = patient(flaky, 60.0)

        async def cut() -> None:
            while len(flaky.seen) < 40:  # noqa: ASYNC110 - what it waits for is the other tasks, turn by turn
                await asyncio.sleep(0)
            flaky.gone = True
            await asyncio.sleep(0.3)
            flaky.gone = False

        names = [[b"%d.%d" % (job, test) for test in range(20)] for job in range(8)]
        *answers, _ = await asyncio.gather(*(outputs(executor, *each) for each in names), cut())
        assert sorted(flaky.seen) == sorted([*(name for each in names for name in each), *[b"control\n"] * flaky.seen.count(b"control\n")])  # fmt: skip
        await executor.aclose()
        return answers

    with Said() as said:
        answers = asyncio.run(go())
    assert answers == [[(b"%d.%d" % (job, test))[::-1] + b"\n" for test in range(20)] for job in range(8)]
    assert len(said) == 2, said
    assert "nobody answers" in said[0]


def test_a_program_that_kills_its_worker_is_to_blame_after_three_losses_and_the_others_go_on():
    async def go() -> tuple[list[Execution], Flaky]:
        flaky = Flaky()
        return await executions(patient(flaky, 60.0), b"a", b"poison", b"b"), flaky

    found, flaky = asyncio.run(go())
    assert [each.status for each in found] == [Status.OK, Status.MEMORY_LIMIT, Status.OK]
    assert "its worker died" in found[1].detail
    assert flaky.alone.count(True) == 2, "the last loss and the control, in processes of their own"
    assert MAX_LOST_RESULTS == 3
    assert asyncio.run(outputs(patient(Flaky(), 60.0), b"a", b"unlucky")) == [b"a\n", b"ykculnu\n"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "error", "attempts"),
    [
        (b"trouble", SandboxError, range(3, 4)),
        (b"takes it down", SandboxError, range(3, OUTAGES + 4)),
        (b"is lost, and takes it down", SandboxError, range(3, OUTAGES + 4)),
        (b"refused", RefusedError, range(1)),
    ],
)
def test_trouble_that_stays_with_one_program_is_ours_after_a_few_attempts(program, error, attempts, monkeypatch):
    monkeypatch.setattr("code_rl.grading.sandbox.blame.FIRST_PAUSE_S", 0.06)

    async def go() -> int:
        retries = patient(Flaky(), 60.0)
        with pytest.raises(error):
            await asyncio.wait_for(outputs(retries, b"a", program), 100)
        return retries.count

    assert asyncio.run(go()) in attempts


def test_past_the_patience_every_waiting_submission_ends_with_one_clear_error():
    async def go() -> Sequence[object]:
        flaky = Flaky()
        flaky.gone = True
        executor = patient(flaky, 0.2)
        found = await asyncio.gather(*(outputs(executor, b"x") for _ in range(5)), return_exceptions=True)
        await executor.aclose()
        return found

    for error in asyncio.run(go()):
        assert isinstance(error, OutageError)
        names_all(str(error), "outage_timeout=0.2", "nobody answers")


def test_a_run_that_is_asked_to_stop_waits_no_longer():
    async def go() -> None:
        flaky, stop = Flaky(), asyncio.Event()
        flaky.gone = True
        executor = patient(flaky, 3600.0, stop)
        asyncio.get_running_loop().call_later(0.1, stop.set)
        with pytest.raises(OutageError):
            await asyncio.wait_for(outputs(executor, b"x"), 30)
        await executor.aclose()

    asyncio.run(go())


class Health:
    """Stands for a server's health page: well or silent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.well, self.asked = True, 0
        monkeypatch.setattr(httpx, "get", self._get)

    def _get(self, *_: object, **__: object) -> object:
        self.asked += 1
        if not self.well:
            raise httpx.ConnectError("refused")
        return httpx.Response(200)


def link(outage_timeout_s: float) -> Link:
    return Link(place_of("http://s"), outage_timeout_s)


def test_a_request_that_a_well_server_never_answers_ends(monkeypatch):
    Health(monkeypatch)
    never: RemoteFuture[int] = RemoteFuture(Future(), link(0.03), int)
    with refused("outage_timeout=", kind=BackendError):
        never.result()
    never = RemoteFuture(Future(), link(0.03), int)
    with pytest.raises(BackendError):
        asyncio.run(asyncio.wait_for(never.result_async(), 20))


def test_a_server_that_comes_back_within_the_patience_ends_no_request(monkeypatch):
    health, answer = Health(monkeypatch), Future[int]()
    health.well = False

    def come_back_and_answer() -> None:
        until(lambda: len(said) == 1)
        health.well = True
        until(lambda: len(said) == 2)
        answer.set_result(7)

    with Said() as said:
        threading.Thread(target=come_back_and_answer, daemon=True).start()
        waiting: RemoteFuture[int] = RemoteFuture(answer, link(30.0), int)
        waiting._link.check_every_s = 0.1
        assert waiting.result() == 7
    assert len(said) == 2, said


@pytest.mark.parametrize("well", [True, False])
def test_many_waiting_requests_do_not_all_ask_for_the_servers_health(monkeypatch, well):
    health = Health(monkeypatch)
    health.well = well
    watched = link(60.0)
    for _ in range(100):
        watched.check()
    assert health.asked <= 2
