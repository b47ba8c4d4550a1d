"""Limits of whoever starts the sandbox (`ulimit`): lifted where that is allowed, refused by name where they would fail right programs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.grading.sandbox.sandbox_boxes import LEVELS

PROGRAM = """
import asyncio, resource
{before}
from code_rl.util.errors import ConfigError
from code_rl.grading.sandbox import Job, StdinInput
from code_rl.grading.sandbox.server import EmbeddedSandbox
resource.setrlimit(resource.{kind}, ({limit}, {limit}))

async def go():
    async with EmbeddedSandbox(1, {level!r}) as box:
        return [done.stdout async for done in box.run(Job("print(len(bytearray(900 << 20)))", (StdinInput(b""),)))]

try:
    print(asyncio.run(go()))
except ConfigError as error:
    print("refused:", error)
"""
UNPRIVILEGED = "import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0"
"""A user namespace of its own: what root may there, it may not to the machine's limits."""
CAP_SYS_RESOURCE = 24


def may_lift() -> bool:
    status = Path("/proc/self/status").read_text()
    return bool(int(status.partition("CapEff:")[2].split()[0], 16) >> CAP_SYS_RESOURCE & 1)


def start(kind: str, limit: int, level: str, before: str = "") -> str:
    code = PROGRAM.format(kind=kind, limit=limit, level=level, before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() + done.stderr


@pytest.mark.skipif(not may_lift(), reason="lifting limits needs CAP_SYS_RESOURCE")
@pytest.mark.parametrize("level", LEVELS)
def test_low_limits_are_lifted_for_the_tests_where_that_is_allowed(level):
    assert start("RLIMIT_AS", 1 << 30, level) == f"[b'{900 << 20}\\n']"


@pytest.mark.parametrize(
    ("kind", "limit", "said"),
    [
        ("RLIMIT_AS", 1 << 30, "memory as address space (ulimit -v)"),
        ("RLIMIT_NOFILE", 128, "open files (ulimit -n)"),
        ("RLIMIT_FSIZE", 1 << 20, "the size of a file (ulimit -f)"),
    ],
)
def test_limits_that_cannot_be_lifted_are_refused_by_name(kind, limit, said):
    answer = start(kind, limit, LEVELS[0], UNPRIVILEGED if may_lift() else "")
    assert answer.startswith("refused:"), answer
    assert said in answer
    assert str(limit) in answer


@pytest.mark.long
def test_under_a_limit_that_leaves_room_programs_run():
    assert start("RLIMIT_AS", 4 << 30, LEVELS[0]) == f"[b'{900 << 20}\\n']"
