"""Sandbox Fusion's `POST /run_code`: the request and response records that the client and our
server share.

Source: github.com/bytedance/SandboxFusion, sandbox/server/sandbox_api.py and
sandbox/runners/types.py.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from code_rl.util.errors import ConfigError

RUN_PATH = "/run_code"
PING_PATH = "/v1/ping"
JOBS_PATH = "/v1/jobs"
"""A path of our own server only: it takes a whole `Job` (`fusion.jobs`)."""
BOXES_PATH = "/v1/boxes"
"""A path of our own server only: a connection there is a box (`fusion.boxes`)."""
JOBS_HEADER = "X-Code-RL-Jobs"
"""A header of our server's answer to a ping from whoever may send it jobs."""

PYTHON = "python"


SUCCESS, FAILED, SANDBOX_ERROR = "Success", "Failed", "SandboxError"
FINISHED, TIME_LIMIT_EXCEEDED, ERROR = "Finished", "TimeLimitExceeded", "Error"


def run_urls(text: str, name: str = "SANDBOX_URL") -> tuple[str, ...]:
    """Split comma-separated URLs; one without `/run_code` gets it appended, and repeated ones are
    dropped. Raises ConfigError, naming `name`, for anything but HTTP URLs, for none, and for one
    with a user or a password."""
    urls = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    for url in urls or [text]:
        scheme, _, rest = url.partition("://")
        if scheme not in ("http", "https") or not rest or rest.startswith("/"):
            raise ConfigError(
                f"{name}: {url!r} is not a URL; give http://host:port/run_code of a Sandbox Fusion "
                "server, several separated by commas, or executor=embedded or ray (in a process on "
                "a node of the cluster)"
            )
        if "@" in rest.partition("/")[0]:
            raise ConfigError(
                f"{name} holds a user or a password; give a plain URL like "
                "http://host:port/run_code"
            )
    return tuple(dict.fromkeys(url if url.endswith(RUN_PATH) else url + RUN_PATH for url in urls))


def beside(run_url: str, path: str) -> str:
    """Return the address of another path of the server with this `/run_code` address."""
    return run_url.removesuffix(RUN_PATH) + path


class ProtocolError(ValueError):
    """The body does not follow the protocol."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One program run. Times are wall seconds; `files` maps paths relative to the working directory
    to contents."""

    code: str
    language: str = PYTHON
    run_timeout: float = 10.0
    compile_timeout: float = 10.0
    memory_limit_mb: int = -1
    stdin: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the request body, with Sandbox Fusion's own names; files are base64."""
        body = {item.name: getattr(self, item.name) for item in fields(self)}
        return body | {
            "memory_limit_MB": body.pop("memory_limit_mb"),
            "files": _encoded(self.files),
        }


@dataclass(frozen=True, slots=True)
class CommandResult:
    """One command of a run: `status` is Finished, TimeLimitExceeded or Error; a negative return
    code is a signal."""

    status: str
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str = ""
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class RunResponse:
    """The answer to a RunRequest; `files` has the fetched files that exist. Without a `run_result`
    the program was not run: `compile_result` says why."""

    status: str
    message: str = ""
    run_result: CommandResult | None = None
    compile_result: CommandResult | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the response body, with Sandbox Fusion's own names; files are base64."""
        return {
            "status": self.status,
            "message": self.message,
            "compile_result": asdict(self.compile_result) if self.compile_result else None,
            "run_result": asdict(self.run_result) if self.run_result else None,
            "executor_pod_name": None,
            "files": _encoded(self.files),
        }

    @classmethod
    def from_json(cls, body: Any) -> RunResponse:
        """Read a response body. Raises ProtocolError for anything that a Fusion server cannot have
        sent."""
        if not isinstance(body, dict) or body.get("status") not in (SUCCESS, FAILED, SANDBOX_ERROR):
            raise ProtocolError(f"not a run_code response: {str(body)[:200]}")
        files = body.get("files") or {}
        if not isinstance(files, dict):
            raise ProtocolError("`files` is not an object")
        fetched = {str(path): decode_file(str(path), text) for path, text in files.items()}
        return cls(
            body["status"],
            str(body.get("message") or ""),
            _command(body.get("run_result")),
            _command(body.get("compile_result")),
            fetched,
        )


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {path: base64.b64encode(data).decode("ascii") for path, data in files.items()}


def decode_file(path: str, text: Any, strict: bool = True) -> bytes:
    """Return the bytes of one base64 file, which may have line breaks. Raises ProtocolError naming
    `path`.

    If not `strict`, characters outside the alphabet are ignored, as on the real server.
    """
    if not isinstance(text, str):
        raise ProtocolError(f"the content of {path!r} is not a string")
    if "\n" in text:
        text = "".join(text.split())
    try:
        return base64.b64decode(text, validate=strict)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"the content of {path!r} is not base64: {error}") from error


def _command(data: Any) -> CommandResult | None:
    """Read a compile or run result. Raises ProtocolError for another shape."""
    if data is None:
        return None
    if not isinstance(data, dict) or data.get("status") not in (
        FINISHED,
        TIME_LIMIT_EXCEEDED,
        ERROR,
    ):
        raise ProtocolError(f"not a run_result: {str(data)[:200]}")
    code = data.get("return_code")
    if code is not None and not isinstance(code, int):
        raise ProtocolError(f"return_code is {code!r}")
    return CommandResult(
        status=data["status"],
        execution_time=data.get("execution_time"),
        return_code=code,
        stdout=str(data.get("stdout") or ""),
        stderr=str(data.get("stderr") or ""),
    )
