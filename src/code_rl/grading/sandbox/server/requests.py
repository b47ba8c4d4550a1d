"""Reading a /run_code body: what is malformed answers 422, what cannot be run answers SandboxError.

The 422 body has FastAPI's shape (`detail`: list of `type`, `loc`, `msg`, `input`), which clients of
the real server may read.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, FiniteFloat, ValidationError

from code_rl.grading.sandbox.executor import encodable
from code_rl.grading.sandbox.fusion.protocol import (
    PYTHON,
    ProtocolError,
    RunRequest,
    decode_file,
)

SHOWN_INPUT_CHARS = 200
MOST_FILES, MOST_LEVELS = 4000, 64
IGNORED_FILE = "IGNORE_THIS_FILE"
"""The real server skips a file whose path contains this, whatever its content."""


class _Body(BaseModel):
    """The protocol's form of a request; what it does not name is ignored."""

    code: str
    language: str
    run_timeout: FiniteFloat = 10.0
    compile_timeout: FiniteFloat = 10.0
    memory_limit_MB: int = -1
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class MalformedRequestError(Exception):
    """The body is not of the protocol's form; `detail` is FastAPI's list of problems."""

    def __init__(
        self, kind: str, location: tuple[int | str, ...], message: str, value: Any = None
    ) -> None:
        super().__init__(message)
        shown = (
            value
            if value is None or isinstance(value, int | float)
            else str(value)[:SHOWN_INPUT_CHARS]
        )
        self.detail = [
            {"type": kind, "loc": ["body", *map(str, location)], "msg": message, "input": shown}
        ]


class UnrunnableRequestError(Exception):
    """The request is well formed and will not be run: the server answers status SandboxError with
    this message."""


def parse_request(text: bytes, longest_run_s: float) -> RunRequest:
    """Read a body. Raises MalformedRequestError or UnrunnableRequestError, each naming the field
    and the value."""
    try:
        data = json.loads(text.decode("utf-8-sig"))
        body = _Body.model_validate(data, from_attributes=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        value = None if first["type"] == "missing" else first["input"]
        raise MalformedRequestError(first["type"], first["loc"], first["msg"], value) from error
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError("json_invalid", (), f"JSON decode error: {error}") from error
    if body.language != PYTHON:
        raise UnrunnableRequestError(
            f"language {body.language!r} is not supported by this server, which runs python only"
        )
    if body.run_timeout > longest_run_s:
        raise UnrunnableRequestError(
            f"run_timeout={body.run_timeout:g} must be at most max_run_s={longest_run_s:g}"
        )
    for name, text_field in (("code", body.code), ("stdin", body.stdin or "")):
        if not encodable(text_field):
            raise UnrunnableRequestError(
                f"{name} holds lone surrogates and cannot be written as UTF-8"
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
        run_timeout=body.run_timeout,
        compile_timeout=body.compile_timeout,
        memory_limit_mb=body.memory_limit_MB,
        stdin=body.stdin,
        files=contents,
        fetch_files=tuple(map(_inside, body.fetch_files)),
    )


def _inside(path: str) -> str:
    """The path, if it stays inside the working directory."""
    parts = path.split("/")
    names = (
        encodable(path) and "\0" not in path and max(len(part.encode()) for part in parts) <= 255
    )
    if (
        not names
        or parts[0] == ""
        or ".." in parts
        or parts[-1] in ("", ".")
        or len(parts) > MOST_LEVELS
    ):
        raise UnrunnableRequestError(
            f"path {path[:300]!r} does not name a file inside the working directory"
        )
    return path
