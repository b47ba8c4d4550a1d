"""Runs one chunk of tests inside a remote sandbox: a process with limits and one line of results
for each test.

The harness and the programs run under one account. If a program ends the harness, its results do
not count. A result file written by a program is replaced: results are kept in memory and written
once, when every process of the programs is dead. Expected outputs are never here.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, NoReturn

from code_rl.grading.sandbox import runner
from code_rl.grading.sandbox.ending import Allowed, Ended, exception_line, status_of

JOB_FILE, RESULT_FILE = "job.json", "results.jsonl"
STDERR_KEPT = 64 << 10
_VALUE_FD, _FAULT_FD = 3, 4
_NOT_COMPILED = "compile_error"
_DATA_RESERVE, _THREAD_STACK = 1 << 30, 8 << 20
"""Writable memory beyond the limit, for thread stacks and untouched buffers. The limit applies to
touched memory."""
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.002


def main() -> None:
    """Run the chunk that the files in the working directory describe, and write the result file,
    its last line being why it ended. The other files are deleted; processes of the programs are
    dead by then.

    An OSError of the harness is in that line; anything else passes, and there is no result file.
    """
    began = time.monotonic()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with open(JOB_FILE, "rb") as file:
        job = json.loads(file.read())
    for module in [
        name for name in sys.modules if name.partition(".")[0] in ("code_rl", "testing_util")
    ]:
        del sys.modules[module]
    rows: list[bytes] = []
    try:
        end, detail = _run_all(job, rows, began + job["budget_s"])
    except OSError as error:
        end, detail = "error", f"{type(error).__name__}: {error}"
    rows.append(_line(job, {"end": end, "detail": detail}))
    _replace(RESULT_FILE, b"".join(rows))


def _run_all(job: Mapping[str, Any], rows: list[bytes], deadline: float) -> tuple[str, str]:
    """Run the tests one by one, up to the first that is not `ok`, and append a line for each to
    `rows`. Return why it stopped (done, failed, bytes, deadline, traces), and a detail. `deadline`
    is a time of `time.monotonic`. Raises OSError.

    All inputs are opened and every file removed before the first program runs, so that no program
    can read another's input.
    """
    home = os.getcwd()
    inputs = [open(f"case_{index}", "rb") for index in range(job["count"])]  # noqa: SIM115
    _cleared()
    for index, case_file in enumerate(inputs):
        row = _run(job, case_file, tempfile.mkdtemp(dir=home), deadline)
        clear = _cleared()
        if row is None:
            return "deadline", f"test {index} of the chunk"
        rows.append(_line(job, {"index": index, **row}))
        if row["status"] != "ok":
            return "failed", ""
        if sum(map(len, rows)) > job["result_bytes"]:
            return "bytes", ""
        if not clear:
            return "traces", f"test {index} of the chunk left files that cannot be removed"
    return "done", ""


def _cleared() -> bool:
    """Remove everything in the working directory, the tests' parent, so that no test finds traces
    of an earlier one there. Return False if a file is left."""
    with suppress(OSError):
        os.chmod(".", 0o700)
    for name in os.listdir("."):
        shutil.rmtree(name, ignore_errors=True)
        with suppress(OSError):
            os.unlink(name)
    with suppress(OSError):
        os.utime(".", (0, 0))
    return not os.listdir(".")


def _run(
    job: Mapping[str, Any], given: IO[bytes], place: str, deadline: float
) -> dict[str, Any] | None:
    """Run one test in the new directory `place`. Return its row of the result file, or None if the
    chunk's time is over. All its processes are dead afterwards. Raises OSError for a failure of the
    harness in the test's process."""
    with (
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
        tempfile.TemporaryFile() as value,
        tempfile.TemporaryFile() as fault,
    ):
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become(job, place, [file.fileno() for file in (given, stdout, stderr, value, fault)])
        end = min(began + job["limits"]["wall_s"], deadline)
        over = False
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if time.monotonic() > end:
                over = True
                break
            time.sleep(_LOOK_S)
        wall_s = time.monotonic() - began
        exit_code, cpu_s, peak = _reap(pid)
        if over and time.monotonic() > deadline:
            return None
        output = job["limits"]["output_bytes"]
        printed, said, record, failure = (
            _read(file, most)
            for file, most in (
                (stdout, output),
                (stderr, STDERR_KEPT),
                (value, output),
                (fault, STDERR_KEPT),
            )
        )
    if failure and failure != _NOT_COMPILED.encode():
        raise OSError(failure.decode("utf-8", "replace"))
    row = _row(job, (exit_code, cpu_s, wall_s, peak), over, printed, said, record)
    if failure:
        row.update(status=_NOT_COMPILED, detail=exception_line(said), exit_code=1, value=None)
    return row


def _row(
    job: Mapping[str, Any],
    measured: tuple[int, float, float, int],
    over: bool,
    printed: bytes,
    said: bytes,
    record: bytes,
) -> dict[str, Any]:
    """Return the row of one test: its status by the limits, and its outputs as base64. `measured`
    is (exit code, CPU seconds, wall seconds, peak bytes); `over` means that it was stopped by its
    wall time; `record` is the encoded value."""
    exit_code, cpu_s, wall_s, peak = measured
    output = job["limits"]["output_bytes"]
    answer = runner.decode_value(record) if job["fn_name"] is not None else None
    seen = Ended(
        exit_code,
        cpu_s,
        wall_s,
        peak,
        said,
        over_time=over,
        killed_for_memory=False,
        overflow=f"{output} bytes of output" if max(len(printed), len(record)) > output else "",
        unanswered="the function did not return"
        if job["fn_name"] is not None and answer is None
        else "",
    )
    limits = job["limits"]
    status, detail = status_of(
        seen, Allowed(limits["cpu_s"], limits["wall_s"], limits["memory_mb"] << 20)
    )
    stopped = over or status in ("time_limit", "output_limit")
    return {
        "status": status,
        "detail": detail,
        "exit_code": None if stopped else exit_code,
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "peak_memory_bytes": peak,
        "stdout": _text(printed[:output]),
        "stderr": _text(said[:STDERR_KEPT]),
        "value": _text(answer) if answer is not None and status == "ok" else None,
    }


def _become(job: Mapping[str, Any], place: str, descriptors: list[int]) -> NoReturn:
    """In the forked process: take the descriptors (stdin, stdout, stderr, value, fault) and the
    limits, and run the program. Never returns. A failure of the harness, or a program that does not
    compile, is written to the fault descriptor, which is closed before the program runs."""
    try:
        with suppress(OSError):  # our own server refuses new sessions
            os.setsid()
        for target, fd in enumerate([os.dup(fd) for fd in descriptors]):
            os.dup2(fd, target)
        os.closerange(len(descriptors), 1 << 12)
        os.chdir(place)
        os.environ.update(HOME=place, TMPDIR=place)
        sys.path[0] = place
        _limit(job["limits"])
        arguments = os.pread(0, os.fstat(0).st_size, 0)
        program = _compiled(job)
        if program is None:
            os.write(_FAULT_FD, _NOT_COMPILED.encode())
            os._exit(1)
        with open("solution.py", "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(job["code"])
        if job["fn_name"] is None:
            os.closerange(_VALUE_FD, _FAULT_FD + 1)
            runner.run_script(program, f"{place}/solution.py")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.close(_FAULT_FD)
        runner.run_call(program, arguments, _VALUE_FD, f"{place}/solution.py")
    except BaseException as error:  # noqa: BLE001 - a failure of the harness, not of the program
        os.write(_FAULT_FD, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(1)


def _compiled(job: Mapping[str, Any]) -> runner.Program | None:
    """Compile the program. If that fails, write the error to stderr (descriptor 2) and return
    None."""
    try:
        return runner.Program(job["code"], job["fn_name"], job["preamble"], job["setup"])
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace"))
    return None


def _limit(limits: Mapping[str, Any]) -> None:
    """Set the program's limits in this process for good, as far as the hard limits allow. The CPU
    limit is up to two seconds above the test's, since the harness decides by what it measures."""
    import resource  # here, since the client that sends this file may not have it

    seconds = math.ceil(limits["cpu_s"]) + 1
    stacks = max(_DATA_RESERVE, limits["processes"] * _THREAD_STACK)
    for kind, most in (
        (resource.RLIMIT_DATA, (limits["memory_mb"] << 20) + stacks),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_FSIZE, max(limits["file_mb"] << 20, limits["output_bytes"] + 1)),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _reap(pid: int) -> tuple[int, float, int]:
    """End the test and all its processes, orphans included, and wait for them. Return its exit
    code, negative for a signal, the CPU seconds of all, and the peak memory of the largest in
    bytes."""
    exit_code, cpu_s, peak = 1, 0.0, 0
    while True:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        for target in (pid, *_children()):
            with suppress(ProcessLookupError):
                os.kill(target, signal.SIGKILL)
        try:
            ended, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return exit_code, cpu_s, peak
        cpu_s += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss << 10)
        if ended == pid:
            exit_code = os.waitstatus_to_exitcode(status)


def _children() -> list[int]:
    """Return the process ids of this thread's children; none if /proc cannot be read."""
    try:
        with open("/proc/thread-self/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _read(file: IO[bytes], most: int) -> bytes:
    """Return the file's first `most` bytes, plus one more if there are more."""
    file.seek(0)
    return file.read(most + 1)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _line(job: Mapping[str, Any], row: Mapping[str, Any]) -> bytes:
    """Return a line of the result file; the nonce ties it to its request."""
    return json.dumps({"nonce": job["nonce"], **row}).encode() + b"\n"


def _replace(path: str, data: bytes) -> None:
    """Write a new file in place of anything that a program left there."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "xb") as file:
        file.write(data)
