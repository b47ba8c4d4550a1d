"""Nothing is left behind: processes, descriptors, mounts, control groups, working directories."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from code_rl.grading.sandbox import Job
from code_rl.grading.sandbox.server import EmbeddedSandbox
from tests.boxes import descendants
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


def _groups() -> list[Path]:
    mine = f"code-rl-{os.getpid()}-"
    # Groups of other processes vanish meanwhile, which os.walk passes over.
    return [path for path in (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup")) if path.name.startswith(mine)]


def _scratch() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("code-rl-")}


IDLE = 9
"""The zygote, its four workers and their keepers."""


async def _churn(level: str, count: int) -> int:
    """Run `count` submissions, a third of them cut short; the number of processes that the sandbox has when idle again."""
    others = descendants()
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
            idle = len(descendants() - others)
            if idle <= IDLE:
                break
            await asyncio.sleep(0.05)
        return idle


def _settled(others: set[str]) -> None:
    """Wait until a sandbox that was closed just now has ended everything; `others` were there before it."""
    for _ in range(100):
        if others.issuperset(descendants()):
            return
        time.sleep(0.05)


def _check(level: str, count: int) -> None:
    others = descendants()
    asyncio.run(_churn(level, 8))
    _settled(others)
    before = (_descriptors(), _mounts(), descendants(), _groups(), _scratch())
    idle = asyncio.run(_churn(level, count))
    assert idle <= IDLE
    _settled(others)
    assert (_descriptors(), _mounts(), descendants(), _groups(), _scratch()) == before


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_left_after_many_submissions(level):
    _check(level, 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_left_after_a_hundred_thousand_submissions(level):
    _check(level, 100_000)


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """A control group of this process below each parent."""
    box = EmbeddedSandbox(1)
    asyncio.run(collect(box, JOBS[0]))
    by_parent = {group.parent: group for group in _groups()}
    if not by_parent:
        pytest.skip("no control groups can be made here")
    yield [*by_parent.values()]
    asyncio.run(box.aclose())


def _ended() -> int:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        pytest.param(lambda _: f"code-rl-{_ended()}-7", False, id="a host that is gone"),
        pytest.param(lambda _: f"code-rl-{os.getpid()}-7", False, id="an earlier host with our number"),
        pytest.param(lambda _: f"code-rl-{os.getppid()}-7", True, id="a host that lives"),
        pytest.param(lambda ours: f"{ours.rpartition('-')[0]}-999", True, id="this process"),
    ],
)
def test_a_sandbox_that_starts_removes_the_empty_groups_of_hosts_that_are_gone(
    groups: list[Path], name: Callable[[str], str], stays: bool
) -> None:
    empty = [group.with_name(name(group.name)) for group in groups]
    for folder in empty:
        folder.mkdir()
    EmbeddedSandbox(1).close()
    left = [folder for folder in empty if folder.exists()]
    for folder in left:
        folder.rmdir()
    assert left == (empty if stays else [])
