"""Programs of other languages than Python on a Sandbox Fusion server, which has compilers of its
own."""

from __future__ import annotations

from code_rl.grading.languages import language
from code_rl.grading.sandbox.executor import CaseInput, Execution, Job, Status, StdinInput
from code_rl.grading.sandbox.fusion.protocol import (
    TIME_LIMIT_EXCEEDED,
    CommandResult,
    RunRequest,
    RunResponse,
)
from code_rl.grading.sandbox.retries import RefusedError

COMPILE_S = 60.0


def program_request(job: Job, case: CaseInput) -> RunRequest:
    """Return the request for one test. Raises RefusedError for a job that such a server cannot
    run."""
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
    """Return the execution of one test from the server's answer."""
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
