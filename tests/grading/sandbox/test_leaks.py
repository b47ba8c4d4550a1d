"""Nothing is left behind: processes, descriptors, mounts, control groups, working directories."""

import asyncio
import os
import tempfile
import time
from pathlib import Path

import pytest

from code_rl.grading.sandbox import Job
from code_rl.grading.sandbox.server import EmbeddedSandbox
from tests.grading.jobs import collect, stdin_job
from tests.grading.sandbox.sandbox_boxes import LEVELS

JOBS = (
    stdin_job("print(input())", b"1", b"2"),
    stdin_job("1/0", b"1", b"2"),
    stdin_job("x = (", b"1"),
    stdin_job("import os\nopen('f', 'w').write('x')\nos.fork()", b"1", b"2"),
    stdin_job("import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass", b"1", b"2"),
)


@pytest.fixture(autouse=True)
def own_temporary_directory(monkeypatch):
    """Where no other test's sandbox has its directories; open to others, as /tmp is."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _mounts() -> list[str]:
    """All but those that another test has beneath the usual temporary directory just now."""
    mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted(" ".join(m) for m in mounts if not m[1].startswith("/tmp/") or m[1].startswith(tempfile.gettempdir()))


def _descendants() -> list[str]:
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[entry] = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
    found = more = {str(os.getpid())}
    while more:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found = found | more
    return sorted(found - {str(os.getpid())})


def _groups() -> list[str]:
    mine = f"code-rl-{os.getpid()}-"
    # Groups of other processes vanish meanwhile, which os.walk passes over.
    return [path for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name.startswith(mine)]


def _scratch() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("code-rl-")}


IDLE = 9
"""The zygote, its four workers and their keepers."""


async def _churn(level: str, count: int) -> int:
    """Run `count` submissions, a third of them cut short; the number of processes that the sandbox has when idle again."""
    others = set(_descendants())
    async with EmbeddedSandbox(4, level) as box:

        async def one(number: int) -> None:
            job: Job = JOBS[number % len(JOBS)]
            if number % 3:
                await collect(box, job)
                return
            stream = box.run(job)
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]

        numbers = iter(range(count))

        async def lane() -> None:
            for number in numbers:
                await one(number)

        await asyncio.gather(*(lane() for _ in range(6)))
        for _ in range(100):  # those cut short last are still ending
            idle = len(set(_descendants()) - others)
            if idle <= IDLE:
                break
            await asyncio.sleep(0.05)
        return idle


def _settled(others: set[str]) -> None:
    """Wait until a sandbox that was closed just now has ended everything; `others` were there before it."""
    for _ in range(100):
        if others.issuperset(_descendants()):
            return
        time.sleep(0.05)


def _check(level: str, count: int) -> None:
    others = set(_descendants())
    asyncio.run(_churn(level, 8))
    _settled(others)
    before = (_descriptors(), _mounts(), _descendants(), _groups(), _scratch())
    idle = asyncio.run(_churn(level, count))
    assert idle <= IDLE
    _settled(others)
    assert (_descriptors(), _mounts(), _descendants(), _groups(), _scratch()) == before


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_left_after_many_submissions(level):
    _check(level, 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_left_after_a_hundred_thousand_submissions(level):
    _check(level, 100_000)
