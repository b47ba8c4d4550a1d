"""Expected values from a trusted reference, the way EvalPlus defines its tests: inputs plus a canonical solution."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from code_rl.problems import values
from code_rl.problems.problem import CallTest, Problem
from code_rl.problems.sources.build import expected_rule
from code_rl.problems.sources.records import Draft, Skipped
from code_rl.sandbox.executor import CallInput, Execution, Executor, Job, Limits, Status

REFERENCE_LIMITS = Limits(cpu_s=60.0, memory_mb=4096)
"""Values may be as long as those of any program that is judged by them."""
_BEYOND = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT)
_MOST_LEFT_OUT = 0.05
"""Of a problem's calls; a reference beyond its limits on more of them has failed."""


async def with_expected(draft: Draft, executor: Executor, limits: Limits = REFERENCE_LIMITS) -> Problem | Skipped:
    """Run the draft's reference on its inputs and return the problem with the values it gave as expected values.

    The reference runs under generous limits in the same sandbox as any program: fresh inputs for each call, so that a reference that
    changes its arguments cannot disturb another test. A reference that fails makes the row a Skipped, `reference_failed`. A few calls on
    which it only goes beyond the limits (a value of a gigabyte) are left out, and named in `meta["calls_left_out"]`.
    Raises SandboxError when the executor itself fails.
    """
    problem = draft.problem
    executions = [run async for run in executor.run(_job(draft, limits))]
    beyond = {index: str(run.status) for index, run in enumerate(executions) if run.status in _BEYOND}
    if len(beyond) > _MOST_LEFT_OUT * len(draft.calls):
        beyond = {}
    failed = _first_failure(draft, executions, beyond)
    if failed is not None:
        return failed
    kept = [index for index in range(len(executions)) if index not in beyond]
    expected = [values.loads(executions[index].value or b"") for index in kept]
    tests = tuple(
        CallTest(draft.calls[index], value, public=index < draft.public)
        for index, value in zip(kept, expected, strict=True)
    )
    compare = problem.compare if problem.compare.checker else expected_rule(expected, draft.abs_tol)
    left_out = {"calls_left_out": {str(index): status for index, status in beyond.items()}} if beyond else {}
    return dataclasses.replace(problem, tests=tests, compare=compare, meta={**problem.meta, **left_out})


def _job(draft: Draft, limits: Limits) -> Job:
    meta = draft.problem.meta
    return Job(
        code=draft.reference,
        cases=tuple(CallInput(args) for args in draft.calls),
        fn_name=draft.problem.fn_name,
        preamble=str(meta.get("preamble", "")),
        setup=str(meta.get("setup", "")),
        limits=limits,
    )


def _first_failure(draft: Draft, executions: list[Execution], beyond: Mapping[int, str]) -> Skipped | None:
    for index, run in enumerate(executions):
        if index in beyond:
            continue
        if run.status is not Status.OK or run.value is None:
            return Skipped(draft.problem.id, "reference_failed", f"call {index}: {run.status} {run.detail[:200]}")
    if len(executions) != len(draft.calls):
        return Skipped(draft.problem.id, "reference_failed", f"{len(executions)} of {len(draft.calls)} calls answered")
    return None
