"""Requests to a Sandbox Fusion server that is not ours, and how their answers are read: the harness
with a Python program and the inputs of one chunk of tests, or a program of another language.

A request has no field for an expected output. `TEST_UTIL` is the harness as one self-contained
module (sent as `testing_util.py`), and `TEST_CODE` the entry point that the server runs.
"""

from __future__ import annotations

import base64
import importlib.util
import inspect
import json
import marshal
import math
import secrets
import zlib
from dataclasses import asdict, dataclass, replace

from code_rl.grading import values
from code_rl.grading.languages import language
from code_rl.grading.sandbox import ending, runner
from code_rl.grading.sandbox.executor import (
    CaseInput,
    Execution,
    Job,
    RefusedError,
    Status,
    StdinInput,
    case_messages,
)
from code_rl.grading.sandbox.fusion import harness
from code_rl.grading.sandbox.fusion.harness import JOB_FILE, RESULT_FILE
from code_rl.grading.sandbox.fusion.jobs import DETAIL_CHARS, execution_of
from code_rl.grading.sandbox.fusion.protocol import (
    TIME_LIMIT_EXCEEDED,
    CommandResult,
    RunRequest,
    RunResponse,
)

UTIL_FILE = "testing_util.py"
MODULES = (values, runner, ending, harness)
"""In the order of their imports. Each is sent as text under its own name, so the code that is
tested here is the code that runs there."""

TEST_CODE = """\
from testing_util import main

main()
"""

LOADER = '''\
"""The in-sandbox harness of code-rl: each module as text, loaded under its own name."""

import binascii
import importlib.util
import marshal
import sys
import types
import zlib

SOURCES = {sources!r}
COMPILED = {{}}
if importlib.util.MAGIC_NUMBER == {magic!r}:
    COMPILED = marshal.loads(zlib.decompress(binascii.a2b_base64({compiled!r})))


def load(name, source):
    module = types.ModuleType(name)
    module.__file__ = name
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules.get(parent) or load(parent, ""), last, module)
    sys.modules[name] = module
    exec(COMPILED.get(name) or compile(source, name, "exec"), module.__dict__)
    return module


for name, source in SOURCES.items():
    main = load(name, source).__dict__.get("main")
'''


def _util() -> str:
    """Return the harness as the source of one module. An interpreter of this one's version uses the
    included bytecode instead of compiling."""
    sources = {module.__name__: inspect.getsource(module) for module in MODULES}
    compiled = marshal.dumps(
        {name: compile(source, name, "exec") for name, source in sources.items()}
    )
    packed = base64.b64encode(zlib.compress(compiled)).decode()
    return LOADER.format(sources=sources, compiled=packed, magic=importlib.util.MAGIC_NUMBER)


TEST_UTIL = _util()

CHUNK_INPUT_BYTES = 16 << 20
CHUNK_RESULT_BYTES = 32 << 20
SPARE_S = 10.0
"""Seconds by which the harness stops before the server does, so that its results are still fetched.
"""
COMPILE_S = 60.0
"""Seconds for the compiler of another language."""
STARTING_S = 5.0
"""Seconds of a request in addition to those of its tests."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request for `count` tests. `nonce` ties its results to it."""

    request: RunRequest
    count: int
    nonce: str


def make_chunk(job: Job, start: int, count: int) -> Chunk:
    """Return the request for up to `count` tests of `job` from `start` on; it has fewer if their
    inputs are large.

    The harness gets `cpu_s + 1` seconds for each test, and at least the wall cap of one.

    Raises RefusedError if an argument of a call is not plain data, or if the job has files: neither
    can be sent.
    """
    if job.files or job.fetch:
        raise RefusedError(
            "a job with files runs in the embedded sandbox only; a request to a remote server "
            "has no place for them"
        )
    inputs = _fitting(case_messages(replace(job, cases=job.cases[start : start + count])))
    limits = job.limits
    tests_s = max((math.ceil(limits.cpu_s) + 1) * len(inputs), limits.wall_cap_s)
    budget_s = tests_s + STARTING_S
    nonce = secrets.token_hex(8)
    description = {
        "nonce": nonce,
        "code": job.code,
        "preamble": job.preamble,
        "setup": job.setup,
        "fn_name": job.fn_name,
        "count": len(inputs),
        "budget_s": budget_s,
        "result_bytes": CHUNK_RESULT_BYTES,
        "limits": asdict(limits) | {"wall_s": limits.wall_cap_s},
    }
    files = {UTIL_FILE: TEST_UTIL.encode(), JOB_FILE: json.dumps(description).encode()}
    files.update({f"case_{index}": data for index, data in enumerate(inputs)})
    request = RunRequest(
        TEST_CODE, run_timeout=budget_s + SPARE_S, files=files, fetch_files=(RESULT_FILE,)
    )
    return Chunk(request, len(inputs), nonce)


def _fitting(inputs: list[bytes]) -> list[bytes]:
    """Return the first inputs that fit into one request (16 MiB), at least one."""
    total = 0
    for index, data in enumerate(inputs):
        total += len(data)
        if total > CHUNK_INPUT_BYTES and index:
            return inputs[:index]
    return inputs


@dataclass(frozen=True, slots=True)
class Records:
    """The content of a result file. `executions` are the tests from the chunk's first on, without
    gaps.

    `end` is why the harness stopped (done, failed, bytes, deadline, traces, error), or None if the
    file ends before its last line.
    """

    executions: tuple[Execution, ...]
    end: str | None
    detail: str


def read_records(data: bytes, nonce: str, count: int) -> Records:
    """Read up to `count` executions of the request with this `nonce`. Never raises: an unreadable
    or foreign line, which a program may have written, ends the records."""
    executions: list[Execution] = []
    for line in data.split(b"\n"):
        try:
            row = json.loads(line)
            if row["nonce"] != nonce:
                break
            if "end" in row:
                return Records(
                    tuple(executions), str(row["end"]), str(row["detail"])[:DETAIL_CHARS]
                )
            if row["index"] != len(executions) or len(executions) >= count:
                break
            executions.append(execution_of(row))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            break
    return Records(tuple(executions), None, "no last line")


def program_request(job: Job, case: CaseInput) -> RunRequest:
    """Return the request for one test of a program in another language than Python, with the wall
    cap as its time limit. Raises RefusedError for a language that such a server lacks, a call, or
    files."""
    name = language(job.language).fusion
    if not name or not isinstance(case, StdinInput) or job.files or job.fetch:
        raise RefusedError(
            f"language={job.language}: a Sandbox Fusion server cannot run it; use the embedded "
            "sandbox, or a `code-rl sandbox` with its token"
        )
    return RunRequest(
        job.code,
        name,
        run_timeout=job.limits.wall_cap_s,
        compile_timeout=COMPILE_S,
        memory_limit_mb=job.limits.memory_mb + language(job.language).spare_mb,
        stdin=case.stdin.decode("utf-8", "replace"),
    )


def execution_of_program(answer: RunResponse) -> Execution:
    """Return the execution of one test from the server's answer. Without a `run_result` it is a
    COMPILE_ERROR. CPU time and memory are 0, since the server does not measure them."""
    result = answer.run_result
    if result is None:
        failure = answer.compile_result or CommandResult("")
        detail = (failure.stderr or failure.stdout)[:2000]
        return Execution(Status.COMPILE_ERROR, exit_code=failure.return_code, detail=detail)
    late = result.status == TIME_LIMIT_EXCEEDED
    code = None if late else result.return_code
    return Execution(
        Status.TIME_LIMIT if late else Status.RUNTIME_ERROR if code else Status.OK,
        stdout=result.stdout.encode(),
        stderr=result.stderr.encode(),
        exit_code=code,
        wall_s=result.execution_time or 0.0,
        detail=f"exit code {code}" if code else "",
    )
