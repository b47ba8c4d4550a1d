"""Reads a /run_code body. A malformed one is answered 422; a valid one that cannot run gets the
status SandboxError.

The 422 body has FastAPI's form (`detail`: list of `type`, `loc`, `msg`), which clients of the real
server may read.
"""

from __future__ import annotations

import codecs
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from code_rl.grading.languages import language_of_fusion
from code_rl.grading.sandbox.fusion.protocol import (
    PYTHON,
    ProtocolError,
    RunRequest,
    decode_file,
)

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
        super().__init__(str(detail))
        self.detail = detail

    @classmethod
    def of(cls, field: str, message: str) -> MalformedRequestError:
        """Return the error of one field."""
        return cls([{"type": "value_error", "loc": ["body", field], "msg": message}])


class UnrunnableRequestError(Exception):
    """The request is valid but cannot run; the server answers status SandboxError with this
    message."""


def parse_request(text: bytes, longest_run_s: float) -> RunRequest:
    """Read a body. Raises MalformedRequestError or UnrunnableRequestError, each naming the
    field."""
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
    """Return the path if it stays inside the working directory."""
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
