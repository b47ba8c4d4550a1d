"""Our own server's `POST /v1/jobs`: a whole `Job` as JSON, answered by a line of JSON for each
execution as soon as it ends.

So every test keeps a process, namespaces and directory of its own there, at the server's isolation
level, while a Sandbox Fusion server runs the harness of `payload`. Expected outputs cannot travel:
a `Job` has none, and a trusted one is refused. Empty lines say that the server still works on it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

import aiohttp

from code_rl.grading.sandbox.executor import (
    CallInput,
    Execution,
    Job,
    Limits,
    RefusedError,
    Status,
    StdinInput,
    case_messages,
)
from code_rl.grading.sandbox.fusion.transport import (
    CONNECT_TIMEOUT_S,
    TroubleError,
    failure_row,
    raise_failure,
    refusal,
)
from code_rl.util.proxies import via_proxy

ALIVE_S = 10.0
"""Seconds after which a server that has no execution to send sends an empty line."""
SILENCE_S = 60.0
"""Seconds without a line after which a server is given up."""
_LONGEST_LINE_BYTES = 128 << 20
_TEXTS = ("code", "fn_name", "preamble", "setup", "language")
DETAIL_CHARS = 2000
_NUMBERS = ("exit_code", "cpu_s", "wall_s", "peak_memory_bytes", "compile_s")


def job_to_json(job: Job) -> dict[str, Any]:
    """Return the body of a request, which `job_from_json` reads. Raises RefusedError for a trusted
    job, one with files, and one whose cases cannot be encoded."""
    if job.trusted or job.files or job.fetch:
        raise RefusedError("a trusted job, or one with files, runs on this machine only")
    cases = [base64.b64encode(case).decode() for case in case_messages(job)]
    return {name: getattr(job, name) for name in _TEXTS} | {
        "cases": cases,
        "limits": asdict(job.limits),
    }


def job_from_json(body: Mapping[str, Any]) -> Job:
    """Read a request. Raises KeyError, TypeError or ValueError (ConfigError for limits) for
    anything that `job_to_json` does not make. The server's own limits are checked by the caller."""
    texts = {name: body[name] for name in _TEXTS}
    for name, text in texts.items():
        if not isinstance(text, str) and (name, text) != ("fn_name", None):
            raise TypeError(f"{name} is not text")
    inputs = [base64.b64decode(text, validate=True) for text in body["cases"]]
    cases = (
        tuple(map(StdinInput, inputs))
        if texts["fn_name"] is None
        else tuple(CallInput((), message=message) for message in inputs)
    )
    return Job(cases=cases, limits=Limits(**body["limits"]), **texts)


def line_of(execution: Execution) -> bytes:
    """Return an execution as one line of JSON with its line end; streams are base64. `files` are
    left out, since such jobs are refused."""
    row: dict[str, Any] = {name: getattr(execution, name) for name in _NUMBERS}
    row |= {"status": execution.status.value, "detail": execution.detail}
    for name in ("stdout", "stderr", "value"):
        data = getattr(execution, name)
        row[name] = None if data is None else base64.b64encode(data).decode()
    return json.dumps(row).encode() + b"\n"


def execution_of(row: dict[str, Any]) -> Execution:
    """Return the execution of a row, which a program may have written. Raises KeyError, TypeError,
    ValueError or OverflowError for a malformed row."""
    code, value = row["exit_code"], row.get("value")
    return Execution(
        status=Status(row["status"]),
        stdout=base64.b64decode(row.get("stdout", "")),
        value=None if value is None else base64.b64decode(value),
        stderr=base64.b64decode(row.get("stderr", "")),
        exit_code=None if code is None else int(code),
        cpu_s=float(row["cpu_s"]),
        wall_s=float(row["wall_s"]),
        peak_memory_bytes=int(row.get("peak_memory_bytes", 0)),
        detail=str(row["detail"])[:DETAIL_CHARS],
        compile_s=float(row.get("compile_s", 0.0)),
    )


def last_line(failure: Exception | None = None) -> bytes:
    """Return the line that ends an answer, with the failure that ended it (None: it is
    complete)."""
    row = {"end": True} if failure is None else failure_row(failure)
    return json.dumps(row).encode() + b"\n"


async def post_job(session: aiohttp.ClientSession, url: str, job: Job) -> AsyncIterator[Execution]:
    """Yield the executions of `job` on the server whose jobs have this address, each as soon as it
    arrives. Closing it closes the connection, by which the server stops the job.

    Raises TroubleError if the server or the connection fails, OverloadedError if it is busy,
    RefusedError if it refuses the job, whose limits may be above its own, IsolationError if its
    level has no boxes.
    """
    left = len(job.cases)
    timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S)
    try:
        async with session.post(
            url,
            json=job_to_json(job),
            timeout=timeout,
            read_bufsize=_LONGEST_LINE_BYTES,
        ) as response:
            if response.status != 200:
                raise await refusal(url, response)
            async for line in response.content:
                row = json.loads(line) if line.strip() else {}
                raise_failure(url, row)
                if "end" in row and not left:
                    return
                if row:
                    execution = execution_of(row)
                    left = 0 if execution.status is Status.COMPILE_ERROR else left - 1
                    yield execution
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise TroubleError(f"{url}{via_proxy(url)}: {error or type(error).__name__}") from error
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TroubleError(f"{url}: an unreadable line: {error}") from error
    raise TroubleError(f"{url}: the answer ended early")
