"""Runs one chunk of tests inside a remote sandbox, and leaves the result file when it ends.

This process forks a supervisor for each test, and the supervisor forks the test. Inputs are descriptors here, outputs are read by the
supervisor and go to a file without a name: this process, from which every test descends, never holds a byte of either. A test
that searches its memory finds its own program and its own input.

As root, each test runs under a user id of its own, so that a program can neither signal these processes nor reach their files.
Without root they share the account; the client then tells a destroyed result from a lost one.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import re
import select
import signal
import struct
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

from code_rl.sandbox import runner
from code_rl.sandbox.ending import Allowed, Ended, exception_line, status_of
from code_rl.sandbox.fusion.remote.confine import (
    COMPILE_CPU_S,
    DATA_RESERVE,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    accounts,
    anonymous_file,
    fresh_uid,
    libc,
    read_all,
    take_file,
)
from code_rl.sandbox.fusion.remote.processes import kill, open_pidfd, reap, remove
from code_rl.sandbox.fusion.remote.watch import VALUE_FD, Outcome, Rules, UnfinishedError, watch
from code_rl.sandbox.starvation import Load

JOB_FILE, RESULT_FILE = "job.json", "results.bin"
MAGIC, PREFIX = b"CRX1", struct.Struct("<4sIQI")
SOURCE = "solution.py"
MEMORY_DEATHS = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
LATE_S = 1.0
"""How long past the chunk's deadline a supervisor may take to say so."""
OK, FAILED, FULL, UNTIDY, DEADLINE, LOST = range(6)
"""What a supervisor's exit code says: one bit about the test, at most."""
Judged = tuple[Outcome, str, str]
"""What was seen of a process, its status, and a short text for people."""
SHARED_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")  # noqa: S108 - searched for what a test's account left


class Chunk:
    """The request as it was sent. `inputs` are descriptors."""

    def __init__(self, job: dict[str, Any], began: float) -> None:
        self.limits: dict[str, Any] = job["limits"]
        self.nonce: str = job["nonce"]
        self.result_bytes: int = job["result_bytes"]
        self.deadline: float = began + job["budget_s"]
        self.fn_name: str | None = job["fn_name"]
        self.sources: tuple[str, str | None, str, str] = (job["code"], job["fn_name"], job["preamble"], job["setup"])
        self.inputs = [take_file(f"case_{index}") for index in range(job["count"])]
        self.results = anonymous_file()
        self.load = Load()
        self.apart = False
        """Whether its programs get accounts of their own."""
        self.home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.known = set(os.listdir("."))

    def rules(self) -> Rules:
        """For one more process."""
        return Rules(self.limits, self.deadline, self.load, fresh_uid() if self.apart else None)


def main() -> None:
    """Run the chunk described by the files in the working directory; write the result file."""
    began = time.monotonic()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open(JOB_FILE, "rb") as file:
        job = json.loads(file.read())
    for name in (JOB_FILE, "testing_util.py"):
        os.unlink(name)
    for module in [name for name in sys.modules if name.partition(".")[0] in ("code_rl", "testing_util")]:
        del sys.modules[module]
    chunk = Chunk(job, began)
    try:
        end, detail = run_chunk(chunk)
    except OSError as error:
        end, detail = "error", f"{type(error).__name__}: {error}"
    append(chunk, {"end": end, "detail": detail}, b"")
    open_home(chunk)
    if os.path.lexists(RESULT_FILE):
        remove(RESULT_FILE)
    fd = os.open(RESULT_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    runner.write_all(fd, read_all(chunk.results))  # the last test is over: now its outputs may be in this memory


def run_chunk(chunk: Chunk) -> tuple[str, str]:
    """Compile, then run test after test. Returns why it stopped: done, failed, bytes, deadline, lost or untidy, and a detail."""
    chunk.apart = accounts()
    open_home(chunk)
    if supervised(chunk, 0, functools.partial(compile_apart, chunk)) != OK:
        return "failed", "compile_error"
    program = runner.Program(*chunk.sources)
    if len(chunk.inputs) > 1 and re.search(r"^\s*(import|from)\s+numpy", chunk.sources[0], re.MULTILINE):
        with contextlib.suppress(ImportError):  # once instead of in every test
            importlib.import_module("numpy")
    gc.collect()
    gc.freeze()
    for index in range(len(chunk.inputs)):
        size = os.fstat(chunk.results).st_size
        code = supervised(chunk, index, functools.partial(run_case, chunk, program, index))
        if code == FAILED:
            return "failed", ""
        if code in (FULL, UNTIDY):
            return ("bytes" if code == FULL else "untidy"), ""
        if code != OK:
            os.ftruncate(chunk.results, size)
            os.lseek(chunk.results, size, os.SEEK_SET)
            return ("deadline" if code == DEADLINE else "lost"), f"test {index} of the chunk"
    return "done", ""


def supervised(chunk: Chunk, index: int, act: Callable[[], Judged | None]) -> int:
    """Run `act` in a fork, whose memory ends with it, and append what it saw. Returns one of the codes: LOST when the fork was killed, DEADLINE when it came to no end."""
    supervisor = os.fork()
    if supervisor == 0:
        code = LOST
        try:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            code = settle(chunk, index, act())
        except UnfinishedError:
            code = DEADLINE
        except OSError as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "backslashreplace"))
        finally:
            os._exit(code)
    death = open_pidfd(supervisor)
    while True:
        gone, status = os.waitpid(supervisor, os.WNOHANG)
        late = time.monotonic() > chunk.deadline + LATE_S
        if gone or late:
            break
        if death is None:
            time.sleep(0.002)
        else:
            select.select([death], [], [], max(chunk.deadline + LATE_S - time.monotonic(), 0) + 0.01)
    if death is not None:
        os.close(death)
    if not gone:
        kill(supervisor)
    reap(supervisor)  # itself, and what it left if it was killed
    if not gone:
        return DEADLINE  # stopped, or kept from its work by what it watches
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else LOST


def settle(chunk: Chunk, index: int, seen: Judged | None) -> int:
    """Tidy up, then append the frame of what was seen: the results may be on the file system that the test has just filled."""
    tidied = tidy(chunk)
    if seen is not None:
        append_outcome(chunk, index, *seen)
        if seen[1] != "ok":
            return FAILED
        if os.fstat(chunk.results).st_size > chunk.result_bytes:
            return FULL
    return OK if tidied else UNTIDY


def compile_apart(chunk: Chunk) -> Judged | None:
    """Compile in a fork first: a source that crashes or exhausts the compiler must not take this process along. None: it compiles."""

    def compile_only() -> None:
        try:
            runner.Program(*chunk.sources)
        except SyntaxError as error:
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace"))
            os._exit(1)

    rules = chunk.rules()
    rules.memory_bytes += DATA_RESERVE  # the compiler's memory is not the program's
    outcome = watch(rules, compile_only, chunk.inputs[0], COMPILE_CPU_S, COMPILE_CPU_S * 4)
    if outcome.limit is None and outcome.exit_code == 0:
        return None
    return (
        outcome,
        "compile_error",
        exception_line(bytes(outcome.stderr)) or f"the compiler stopped with {outcome.exit_code}",
    )


def run_case(chunk: Chunk, program: runner.Program, index: int) -> Judged:
    """Run one test in a fork of this supervisor."""

    def child() -> None:
        file = os.path.abspath(SOURCE)
        with open(file, "w", encoding="utf-8", errors="surrogatepass") as source:
            source.write(program.source)
        if chunk.fn_name is None:
            runner.run_script(program, file)
        else:
            arguments = read_all(0)
            nothing, write_end = os.pipe()
            os.close(write_end)
            os.dup2(nothing, 0)
            os.close(nothing)
            runner.run_call(program, arguments, VALUE_FD, file)

    rules = chunk.rules()
    outcome = watch(rules, child, chunk.inputs[index], chunk.limits["cpu_s"], chunk.limits["wall_s"])
    if chunk.fn_name is not None:
        outcome.value = runner.decode_value(bytes(outcome.record))
    if rules.uid is not None:
        remove_traces(rules.uid)
    return (outcome, *judge_outcome(chunk, outcome))


def judge_outcome(chunk: Chunk, outcome: Outcome) -> tuple[str, str]:
    """The status of a finished test and a short text for people."""
    memory = chunk.limits["memory_mb"] << 20
    seen = Ended(
        outcome.exit_code,
        outcome.cpu_s,
        outcome.wall_s,
        outcome.peak_memory_bytes,
        bytes(outcome.stderr),
        over_time=outcome.limit == "time_limit",
        killed_for_memory=outcome.limit == "memory_limit"
        or (outcome.peak_memory_bytes >= memory * 0.95 and outcome.exit_code in MEMORY_DEATHS),
        overflow=f"{chunk.limits['output_bytes']} bytes of output" if outcome.limit == "output_limit" else "",
        unanswered="the function did not return" if chunk.fn_name is not None and outcome.value is None else "",
    )
    return status_of(seen, Allowed(chunk.limits["cpu_s"], chunk.limits["wall_s"], memory))


def tidy(chunk: Chunk) -> bool:
    """Put the working directory back as it was: its mode, its attributes, nothing new in it. False where that cannot be done.

    A supervisor does it, in whose memory the names of what a test left may be.
    """
    open_home(chunk)
    try:
        for name in set(os.listdir(".")) - chunk.known:
            remove(name)
    except (OSError, RecursionError):
        return False
    with contextlib.suppress(OSError):  # what is refused here is refused to programs too
        for attribute in os.listxattr(chunk.home):
            if attribute.startswith("user."):
                os.removexattr(chunk.home, attribute)
    with contextlib.suppress(OSError):
        os.utime(chunk.home, (0, 0))
    return True


def open_home(chunk: Chunk) -> None:
    """Be in the working directory, whose mode lets others pass through but not look around."""
    with contextlib.suppress(OSError):
        os.fchmod(chunk.home, 0o711 if chunk.apart else 0o700)
    os.fchdir(chunk.home)


def remove_traces(uid: int) -> None:
    """Remove what a test's account left in the places where everyone may write."""
    for place in SHARED_PLACES:
        try:
            with os.scandir(place) as entries:
                left = [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_uid == uid]
        except OSError:
            continue
        for path in left:
            with contextlib.suppress(OSError, RecursionError):
                remove(path)


def append_outcome(chunk: Chunk, index: int, outcome: Outcome, status: str, detail: str) -> None:
    """Append the frame of one test."""
    value = outcome.value if status == "ok" else None
    header = {
        "index": index,
        "status": status,
        "exit_code": None if outcome.limit else outcome.exit_code,
        "cpu_s": outcome.cpu_s,
        "wall_s": outcome.wall_s,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "detail": detail,
        "stdout": len(outcome.stdout),
        "value": -1 if value is None else len(value),
        "stderr": len(outcome.stderr),
    }
    append(chunk, header, bytes(outcome.stdout) + (value or b"") + bytes(outcome.stderr))


def append(chunk: Chunk, header: dict[str, Any], body: bytes) -> None:
    """Append one frame to the results. Their form is described where they are read, in `fusion/records.py`."""
    text = json.dumps({**header, "nonce": chunk.nonce}).encode("utf-8")
    runner.write_all(
        chunk.results, PREFIX.pack(MAGIC, len(text), len(body), zlib.crc32(body, zlib.crc32(text))) + text + body
    )
