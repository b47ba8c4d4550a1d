"""From a job's cases to the bytes that are sent into a sandbox, local or remote."""

from __future__ import annotations

from code_rl.grading import values
from code_rl.grading.sandbox.executor import CallInput, Job, StdinInput, case_bytes
from code_rl.grading.sandbox.retries import RefusedError


def case_messages(job: Job) -> list[bytes]:
    """Encode each case. Raises RefusedError for cases of the wrong kind, and for values that cannot
    be encoded."""
    wanted = StdinInput if job.fn_name is None else CallInput
    if not all(isinstance(case, wanted) for case in job.cases):
        raise RefusedError(
            "a job with fn_name takes CallInput cases, one without takes StdinInput cases"
        )
    try:
        return [case_bytes(case) for case in job.cases]
    except values.ValueCodecError as error:
        raise RefusedError(f"the input of a test cannot be sent: {error}") from error
