"""Many small trainings at little cost: a process that has imported everything and forks a child for each.

It runs no tensor operation itself, so that a child finds no half-copied threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 120.0
HUNG = -999


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code (negative: killed by that signal, HUNG: it did not end) and its output."""

    code: int
    out: str
    err: str

    @property
    def clean(self) -> bool:
        """One of our exit codes, one line at most on stderr for a failure, no traceback."""
        said = "Traceback" not in self.err + self.out and "Exception ignored" not in self.err
        lines = [line for line in self.err.splitlines() if line.strip()]
        return said and (self.code in (0, 130, 143) or (self.code in (1, 2) and sum(line.startswith("error: ") for line in lines) == 1))  # fmt: skip


class Forge:
    """The process; `run` gives it one training at a time. A context manager."""

    def __enter__(self) -> Self:
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "TINKER_TELEMETRY": "0"}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def run(
        self, words: dict[str, Any], fault: str = "", stage: str = "", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Outcome:
        """`code-rl train` with these settings, and (when named) a fault that strikes at a stage."""
        verb = more.pop("verb", "train")
        asked = [verb, *(f"{name}={value}" for name, value in words.items())]
        case = {"words": asked, "fault": fault, "stage": stage, "timeout_s": timeout_s, "more": more}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Outcome(answer["code"], answer["out"], answer["err"])


def serve() -> None:
    """Fork a child for each line of stdin; answer with its exit code and output."""
    import_everything()
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)


def import_everything() -> None:
    """All that a training imports."""
    sys.path.insert(0, str(ROOT))
    import code_rl.training.trainer
    from tests.training.survival.kill_suite import preload

    preload()
    code_rl.training.trainer._report = lambda log_path: ""  # the page costs more than the run


def forked(case: dict[str, Any]) -> dict[str, Any]:
    """One child, waited for."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            child(case, out.fileno(), err.fileno())
        code = waited(pid, case["timeout_s"])
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return {"code": code, "out": texts[0], "err": texts[1]}


def waited(pid: int, timeout_s: float) -> int:
    """The exit code of a child, which is killed when it does not end."""
    deadline, pause = time.monotonic() + timeout_s, 0.002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return HUNG
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def child(case: dict[str, Any], out: int, err: int) -> None:
    """Be one training, to the exit."""
    code = 1
    try:
        os.setpgid(0, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        if case["fault"]:
            from tests.training.faults import strikes

            strikes.arm(case["fault"], case["stage"], case["more"])
        from code_rl.cli.main import main

        code = main(case["words"])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException as error:  # noqa: BLE001 - what Python itself would print
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
