"""The walls of each level, as the present user and as an ordinary one; programs see nothing of our environment."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from code_rl.grading.sandbox import Status
from tests.grading.jobs import stdin_job
from tests.grading.sandbox.sandbox_boxes import LEVELS, run, run_jobs, run_one
from tests.paths import ROOT
from tests.refusals import names_all

level = pytest.mark.parametrize("level", LEVELS)

# Attempts beside those of `tests/grading/corpus/probes.jsonl`. Each prints what it got hold of; a contained program prints nothing.
ESCAPES = {
    "execution": "import os, subprocess\nfor p in ('/bin/true', '/usr/bin/env', '/bin/sh'):\n  try: print(subprocess.run([p]))\n  except OSError: pass",
    "supervisor_signals": """
import os
for sig in (9, 15, 19, 14, 2, 6, 11, 31):
    for pid in (1, os.getppid(), os.getppid() or 1):
        try: os.kill(pid, sig) if pid not in (0,) else None
        except OSError: pass""",
    "supervisor_limits": """
import resource, os
for pid in {1, os.getppid()} - {0}:
    for kind in range(16):
        try: print(resource.prlimit(pid, kind, (0, 0)))
        except (OSError, ValueError): pass""",
    "supervisor_memory": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in {1, os.getppid()} - {0}:
    if libc.ptrace(16, pid, 0, 0) == 0: print("ptrace")
    for name in ("mem", "environ", "maps", "fd/0", "cmdline"):
        try: print(name, open(f"/proc/{pid}/{name}", "rb").read(8))
        except OSError: pass
    for call in (310, 311, 438):
        if libc.syscall(call, pid, 0, 0, 0, 0, 0) >= 0: print(call)""",
    "scheduling": "import os\nfor pid in {1, os.getppid()} - {0}:\n  for f in (lambda: os.sched_setaffinity(pid, {0}), lambda: os.setpriority(0, pid, 19)):\n    try: print(f(), 'changed')\n    except OSError: pass",
    "kernel_objects": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, number, *args in (("shmget", 29, 1, 4096, 0o1600), ("semget", 64, 1, 1, 0o1600), ("msgget", 68, 1, 0o1600), ("keyctl", 250, 0, -3, 1),
    ("bpf", 321, 0, 0, 0), ("io_uring", 425, 8, 0), ("userfaultfd", 323, 1), ("memfd", 319, b"x", 0), ("perf", 298, 0, 0, -1, -1, 0), ("mq_open", 240, b"x", 0o100, 0o600, 0)):
    if libc.syscall(number, *args) >= 0: print(name)""",
}


@level
def test_escapes_find_nothing(level):
    done = run_jobs(*(stdin_job(code) for code in ESCAPES.values()), level=level, own=True)
    found = {name: (one[0].status, one[0].stdout.strip()) for name, one in zip(ESCAPES, done, strict=True)}
    assert found == dict.fromkeys(ESCAPES, (Status.OK, b""))


def test_a_submission_sees_only_its_own_processes():
    if "full" not in LEVELS:
        pytest.skip("no PID namespaces here")
    code = "import os\nprint([p for p in os.listdir('/proc') if p.isdigit()], os.getpid() > 1)"
    assert run_one(code, level="full").stdout in (b"['2'] True\n", b"[] True\n")


PRINT_ENVIRONMENT = """
import ctypes, os
print(dict(os.environ), dict(os.environb))
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print([libc.getenv(name) for name in (b"TINKER_API_KEY", b"PLANTED", b"HOME", b"USER")])
for pid in ("self", 1, os.getppid()):
    try: print(open(f"/proc/{pid}/environ", "rb").read())
    except OSError: pass
"""
SECRETS = {"TINKER_API_KEY": "tml-5ecret5ecret5ecret", "HF_TOKEN": "hf_5ecret5ecret5ecret", "PLANTED": "planted-5ecret"}


@pytest.mark.parametrize("level", [*LEVELS, "none"])
def test_a_program_that_prints_its_environment_prints_none_of_ours(level, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (seen,) = run(stdin_job(PRINT_ENVIRONMENT), level, own=True)
    assert seen.stdout, seen.detail
    assert b"5ecret" not in seen.stdout + seen.stderr
    assert not any(name.encode() in seen.stdout for name in ("PLANTED", "HF_TOKEN", "USER'", "SSH_", "VIRTUAL_ENV"))


ATTEMPTS = """
import asyncio, json, sys
from code_rl.util.errors import IsolationError
from code_rl.grading.sandbox import Job, StdinInput
from code_rl.grading.sandbox.server import EmbeddedSandbox
async def go(level):
    async with EmbeddedSandbox(1, level) as box:
        job = Job("import os\\ntry: print(open('/etc/passwd').read(1))\\nexcept OSError: print('contained')", (StdinInput(b""),) * 2)
        return [box.isolation, *[one.stdout.decode() async for one in box.run(job)]]
found = {}
for level in ("full", "landlock", "auto"):
    try: found[level] = asyncio.run(go(level))
    except IsolationError as error: found[level] = str(error)
print(json.dumps(found))
"""


def _ordinary_interpreter() -> str:
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if shutil.which("setpriv") and os.access(name, os.X_OK):
            version = subprocess.run(
                [name, "-c", "import sys; print(sys.version_info >= (3, 11))"],
                capture_output=True,
                text=True,
                check=False,
            )
            if version.stdout.strip() == "True":
                return name
    pytest.skip("no setpriv, or no interpreter of 3.11 or newer that other users can reach")


def test_both_levels_work_for_an_ordinary_user():
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    python = _ordinary_interpreter()
    source = ROOT / "src"
    command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", python, "-B", "-c", ATTEMPTS]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd="/",
        env={"PYTHONPATH": str(source), "PATH": os.defpath},
        check=False,
    )
    if "ModuleNotFoundError: No module named 'code_rl'" in done.stderr:
        pytest.skip("other users cannot reach the source")
    found = json.loads(done.stdout)
    assert {name: found[name] for name in LEVELS} == {name: [name, "contained\n", "contained\n"] for name in LEVELS}


WITHOUT_USER_NAMESPACES = """
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0
open("/proc/sys/user/max_user_namespaces", "w").write("0")
"""


def test_a_level_that_is_not_there_is_refused_by_name_and_auto_takes_the_next():
    if LEVELS != ["full", "landlock"]:
        pytest.skip("this machine lacks a level itself")
    command = [sys.executable, "-c", WITHOUT_USER_NAMESPACES + ATTEMPTS]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    names_all(found["full"], "isolation=full", "CLONE_NEWUSER")
    assert found["auto"] == found["landlock"] == ["landlock", "contained\n", "contained\n"]
