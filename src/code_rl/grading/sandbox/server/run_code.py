"""One `/run_code` request: it is read, run by the embedded sandbox, and answered.

A malformed body is answered 422 in FastAPI's form (`detail`: list of `type`, `loc`, `msg`), which
clients of the real server may read; a valid one that cannot run gets the status SandboxError.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from code_rl.grading.languages import PYTHON, language_of_fusion
from code_rl.grading.sandbox.executor import Execution, Executor, Job, Limits, Status, StdinInput
from code_rl.grading.sandbox.fusion.protocol import (
    FAILED,
    FINISHED,
    SANDBOX_ERROR,
    SUCCESS,
    TIME_LIMIT_EXCEEDED,
    CommandResult,
    ProtocolError,
    RunRequest,
    RunResponse,
    decode_file,
)
from code_rl.util.concurrency import closing
from code_rl.util.errors import CodeRLError

KILLED = -9
FILE_TOO_LARGE = -25
SPARE_FILE_MB = 256
MOST_FILES, MOST_LEVELS = 4000, 64
IGNORED_FILE = "IGNORE_THIS_FILE"
"""The real server skips a file whose path contains this."""

Seconds = Annotated[FiniteFloat, Field(ge=0)]


class _Body(BaseModel):
    """The protocol's form of a request; unknown fields are ignored."""

    code: str
    language: str
    run_timeout: Seconds = 10.0
    compile_timeout: Seconds = 10.0
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class MalformedRequestError(Exception):
    """The body does not follow the protocol; `detail` is FastAPI's list of problems."""

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        """`detail` is a list of `type`, `loc` and `msg`, sent as it is."""
        super().__init__(str(detail))
        self.detail = detail

    @classmethod
    def of(cls, field: str, message: str) -> MalformedRequestError:
        """Return the error of one field of the body, in FastAPI's form."""
        return cls([{"type": "value_error", "loc": ["body", field], "msg": message}])


class UnrunnableRequestError(Exception):
    """The request is valid but cannot run; the server answers status SandboxError with this
    message."""


def parse_request(text: bytes, longest_run_s: float) -> RunRequest:
    """Read a body; nothing runs. A `run_timeout` that is not given is lowered to `longest_run_s`.
    Raises MalformedRequestError (answered 422) or UnrunnableRequestError (status SandboxError),
    each naming the field."""
    try:
        body = _Body.model_validate_json(text.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise MalformedRequestError(
            [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]
        ) from error
    if body.language != PYTHON and language_of_fusion(body.language) is None:
        raise UnrunnableRequestError(f"language {body.language!r} is not supported by this server")
    if "run_timeout" in body.model_fields_set and body.run_timeout > longest_run_s:
        raise MalformedRequestError.of(
            "run_timeout",
            f"run_timeout={body.run_timeout:g} must be at most max_run_s={longest_run_s:g}",
        )
    try:
        contents = {
            _inside(path): decode_file(path, content, strict=False)
            for path, content in body.files.items()
            if content is not None and IGNORED_FILE not in path
        }
    except ProtocolError as error:
        raise UnrunnableRequestError(f"files: {error}") from error
    if len(contents) > MOST_FILES:
        raise UnrunnableRequestError(f"files: there are more than {MOST_FILES}")
    return RunRequest(
        code=body.code,
        language=body.language,
        run_timeout=min(body.run_timeout, longest_run_s),
        memory_limit_mb=body.memory_limit_MB,
        stdin=body.stdin,
        files=contents,
        fetch_files=tuple(map(_inside, body.fetch_files)),
    )


def _inside(path: str) -> str:
    """Return the path if it stays inside the working directory. Raises UnrunnableRequestError for
    any other, and for one that is too long or too deep."""
    parts = path.split("/")
    if (
        "\0" in path
        or max(len(part.encode()) for part in parts) > 255
        or parts[0] == ""
        or ".." in parts
        or parts[-1] in ("", ".")
        or len(parts) > MOST_LEVELS
    ):
        raise UnrunnableRequestError(
            f"path {path[:300]!r} does not name a file inside the working directory"
        )
    return path


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The server's own limits on every run."""

    memory_mb: int
    output_bytes: int
    processes: int
    longest_s: float
    """The longest run_timeout of a request."""


async def run_request(sandbox: Executor, request: RunRequest, limits: RunLimits) -> RunResponse:
    """Run one program and return the answer. A failure of the sandbox, and a language that is not
    installed or needs another isolation level, become a response with status SandboxError."""
    # Like the real server, which starts the program and stops it before it does anything
    if request.run_timeout <= 0:
        return RunResponse(FAILED, run_result=CommandResult(TIME_LIMIT_EXCEEDED, 0.0))
    job = _job(request, limits)
    try:
        async with closing(sandbox.run(job)) as executions:
            async for execution in executions:
                return _response(execution, job)
    except CodeRLError as error:
        return RunResponse(SANDBOX_ERROR, message=str(error))
    return RunResponse(SANDBOX_ERROR, message="the sandbox returned nothing")


def _job(request: RunRequest, limits: RunLimits) -> Job:
    """Convert a request to a job of one test under the server's limits, which bound the request's
    memory. Its time limit is wall time, strictly."""
    memory = request.memory_limit_mb if request.memory_limit_mb > 0 else limits.memory_mb
    carried = sum(map(len, request.files.values()))
    return Job(
        code=request.code,
        cases=(StdinInput((request.stdin or "").encode()),),
        limits=Limits(
            # The protocol limits wall time: the CPU limit must only be large enough.
            cpu_s=request.run_timeout * (os.cpu_count() or 1),
            wall_s=request.run_timeout,
            # as on the real server: a hard wall limit, and memory as address space, so that
            # programs get MemoryError
            strict=True,
            memory_mb=min(memory, limits.memory_mb),
            output_bytes=limits.output_bytes,
            processes=limits.processes,
            file_mb=SPARE_FILE_MB + (carried >> 20),
        ),
        files=request.files,
        fetch=request.fetch_files,
        language=language_of_fusion(request.language) or PYTHON,
    )


def _response(execution: Execution, job: Job) -> RunResponse:
    """Convert an execution to the statuses and messages of the Sandbox Fusion protocol. A limit
    that the protocol does not know is named in stderr and in `message`."""
    code = execution.exit_code
    stderr = execution.stderr.decode("utf-8", "replace")
    status, message = FINISHED, ""
    match execution.status:
        case Status.TIME_LIMIT:
            status, code = TIME_LIMIT_EXCEEDED, None
        case Status.OUTPUT_LIMIT:
            code = FILE_TOO_LARGE
            message = f"output limit: {execution.detail}"
            stderr = _with_line(stderr, message)
        case Status.MEMORY_LIMIT:
            code = code or KILLED
            message = f"memory limit: the run needed more than {job.limits.memory_mb} MB"
            stderr = stderr if "MemoryError" in stderr else _with_line(stderr, message)
        case Status.COMPILE_ERROR if job.language != PYTHON:
            failed = CommandResult(FINISHED, return_code=code or 1, stderr=execution.detail)
            return RunResponse(FAILED, compile_result=failed)
        case Status.COMPILE_ERROR:
            code = code or 1
            stderr = stderr or execution.detail + "\n"
        case _ if code is None:
            message = execution.detail
        case _:
            pass
    run = CommandResult(
        status, execution.wall_s, code, execution.stdout.decode("utf-8", "replace"), stderr
    )
    succeeded = status == FINISHED and code == 0
    return RunResponse(SUCCESS if succeeded else FAILED, message, run, files=execution.files)


def _with_line(text: str, line: str) -> str:
    """Return a text with one more line, which begins on a line of its own."""
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
