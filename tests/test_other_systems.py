"""Clients on macOS and Windows: our code imports and runs where POSIX-only modules and calls of Python do not exist; only the embedded
sandbox asks for Linux, in one line. Shown by taking them away in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.grading.fusion.fusion_support import ServerProcess

TAKEN = """
import asyncio, builtins, os, signal, sys, tempfile, multiprocessing
import torch, transformers, tinker, aiohttp, filelock, rich.console, huggingface_hub  # others look at the real system
found = builtins.__import__
def without(name, globals=None, *rest, **more):
    ours = (globals or {}).get("__name__", "").startswith("code_rl")
    if ours and name in ("resource", "fcntl", "pwd", "grp", "termios", "pty"):
        raise ImportError(f"no module named {name!r} here")
    return found(name, globals, *rest, **more)
builtins.__import__ = without
for name in ("fork", "sysconf", "sched_getaffinity", "O_CLOEXEC", "O_DIRECTORY", "killpg", "getuid", "geteuid"):
    delattr(os, name)
for name in ("sigtimedwait", "pthread_sigmask", "SIGKILL"):
    delattr(signal, name)
def refuse(*_):
    raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = asyncio.SelectorEventLoop.remove_signal_handler = refuse
sys.platform = "darwin"
"""
LINUX_ALONE = (
    "code_rl.grading.sandbox.local",
    "code_rl.grading.sandbox.server.node",
    "code_rl.grading.sandbox.cluster",
    "code_rl.grading.audit.confined",
)
"""The embedded sandbox, and what runs on a machine that has one."""


def there(code, *words, timeout=200):
    """Run code where all that is missing."""
    program = [sys.executable, "-c", TAKEN + code, *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=timeout)


@pytest.mark.long
def test_every_module_is_imported_but_the_embedded_sandbox_which_is_refused_in_one_line_that_says_what_to_do():
    code = f"""
import importlib, pkgutil, code_rl
names = [m.name for m in pkgutil.walk_packages(code_rl.__path__, "code_rl.") if not m.name.startswith({LINUX_ALONE!r})]
failed = []
for name in names:
    if name in ("code_rl.cli.__main__",) or ".integrations." in name or ".guest" in name:
        continue
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append((name, repr(error)))
print(len(names), failed)
from code_rl.cli.main import main
sys.exit(main(["train", "backend=embedded", "executor=embedded", "max_steps=1"]))
"""
    said = there(code)
    count, _, failed = said.stdout.splitlines()[0].partition(" ")
    assert failed == "[]"
    assert int(count) > 150
    assert said.returncode == 2
    assert said.stderr.count("error: ") == 1
    assert "SANDBOX_URL" in said.stderr
    assert "code-rl sandbox" in said.stderr


@pytest.mark.slow
def test_a_run_trains_and_is_reported_with_a_sandbox_elsewhere(tmp_path):
    with ServerProcess() as server:
        code = "from code_rl.cli.main import main; sys.exit(main(sys.argv[1:]) or main(['report', 'log_path=' + sys.argv[2].partition('=')[2]]))"
        where = [f"log_path={tmp_path / 'run'}", f"executor={server.url}"]
        words = [*where, *["backend=embedded", "threads=1", "max_steps=1", "batch_size=8", "group_size=2"]]
        said = there(code, "train", *words, "max_tokens=32", "eval_every=-1")
    assert said.returncode == 0, said.stderr[-800:]
    assert (tmp_path / "run" / "report.html").is_file()
    (row,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert row.get("verdicts/sandbox_error", 0) == 0
