"""From a run_code request to a job of the embedded sandbox, and from the execution to a
response."""

from __future__ import annotations

import os
from dataclasses import dataclass

from code_rl.grading.languages import PYTHON, language_of_fusion
from code_rl.grading.sandbox.executor import Execution, Executor, Job, Limits, Status, StdinInput
from code_rl.grading.sandbox.fusion.protocol import (
    FAILED,
    FINISHED,
    SANDBOX_ERROR,
    SUCCESS,
    TIME_LIMIT_EXCEEDED,
    CommandResult,
    RunRequest,
    RunResponse,
)
from code_rl.util.concurrency import closing
from code_rl.util.errors import ConfigError, SandboxError

KILLED = -9
FILE_TOO_LARGE = -25
SPARE_FILE_MB = 256


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The server's own limits on every run."""

    memory_mb: int
    output_bytes: int
    processes: int
    longest_s: float
    """The longest run_timeout of a request."""


async def run_request(sandbox: Executor, request: RunRequest, limits: RunLimits) -> RunResponse:
    """Run one program. The sandbox's own failures become a response with status SandboxError."""
    if (
        request.run_timeout <= 0
    ):  # like the real server, which starts the program and stops it before it does anything
        return RunResponse(FAILED, run_result=CommandResult(TIME_LIMIT_EXCEEDED, 0.0))
    job = _job(request, limits)
    try:
        async with closing(sandbox.run(job)) as executions:
            async for execution in executions:
                return _response(execution, job)
    except (ConfigError, SandboxError) as error:
        return RunResponse(SANDBOX_ERROR, message=str(error))
    return RunResponse(SANDBOX_ERROR, message="the sandbox returned nothing")


def _job(request: RunRequest, limits: RunLimits) -> Job:
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
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n"
