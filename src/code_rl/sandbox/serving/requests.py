"""Reading a /run_code body: what is malformed answers 422, what cannot be run answers SandboxError.

The 422 body has FastAPI's shape (`detail`: list of `type`, `loc`, `msg`, `input`), which clients of the real server may read.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from code_rl.sandbox.fusion.protocol import (
    LANGUAGES,
    OVER_LONGEST_RUN,
    PYTHON,
    ProtocolError,
    RunRequest,
    decode_file,
)

MISSING = object()
SHOWN_INPUT_CHARS = 200
MOST_FILES, MOST_LEVELS = 4000, 64
IGNORED_FILE = "IGNORE_THIS_FILE"
"""The real server skips a file whose path contains this, whatever its content."""


class MalformedRequestError(Exception):
    """The body is not of the protocol's form; `detail` is FastAPI's list of problems."""

    def __init__(self, kind: str, location: tuple[str, ...], message: str, value: Any = None) -> None:
        super().__init__(message)
        shown = value if value is None or isinstance(value, int | float) else str(value)[:SHOWN_INPUT_CHARS]
        self.detail = [{"type": kind, "loc": ["body", *location], "msg": message, "input": shown}]


class UnrunnableRequestError(Exception):
    """The request is well formed and will not be run: the server answers status SandboxError with this message."""


def parse_request(body: bytes | bytearray, longest_run_s: float) -> RunRequest:
    """Read a body. Raises MalformedRequestError or UnrunnableRequestError, each naming the field and the value."""
    try:
        data = json.loads(body.decode("utf-8-sig"))  # nothing but UTF-8: `bodies` counted the parts of that
    except (ValueError, RecursionError) as error:
        raise MalformedRequestError("json_invalid", (), f"JSON decode error: {error}") from error
    if not isinstance(data, dict):
        raise MalformedRequestError("model_attributes_type", (), "Input should be an object", data)
    code = _field(data, "code", MISSING, _text)
    language = _field(data, "language", MISSING, _language)
    run_timeout = _field(data, "run_timeout", 10.0, _seconds)
    compile_timeout = _field(data, "compile_timeout", 10.0, _seconds)
    memory_mb = _field(data, "memory_limit_MB", -1, _whole)
    stdin = _field(data, "stdin", None, _optional_text)
    files = _field(data, "files", {}, _files)
    fetch = _field(data, "fetch_files", [], _paths)
    if language != PYTHON:
        raise UnrunnableRequestError(f"language {language!r} is not supported by this server, which runs python only")
    if run_timeout > longest_run_s:
        raise UnrunnableRequestError(f"run_timeout={run_timeout:g}{OVER_LONGEST_RUN}{longest_run_s:g} s")
    for name, text in (("code", code), ("stdin", stdin or "")):
        if not _encodable(text):
            raise UnrunnableRequestError(f"{name} holds lone surrogates and cannot be written as UTF-8")
    try:
        contents = {
            _inside(path): decode_file(path, text, strict=False)
            for path, text in files.items()
            if text is not None and IGNORED_FILE not in path
        }
    except ProtocolError as error:
        raise UnrunnableRequestError(f"files: {error}") from error
    _check_layout(contents)
    return RunRequest(
        code=code,
        language=language,
        run_timeout=run_timeout,
        compile_timeout=compile_timeout,
        memory_limit_mb=memory_mb,
        stdin=stdin,
        files=contents,
        fetch_files=tuple(_inside(path) for path in fetch),
    )


def _inside(path: str) -> str:
    """The path, if it stays inside the working directory."""
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "\0" in path or not _encodable(path) or path.endswith("/"):
        raise UnrunnableRequestError(f"path {path!r} does not name a file inside the working directory")
    if parts[-1] == "." or len(parts) > MOST_LEVELS or max(len(part.encode()) for part in parts) > 255:
        raise UnrunnableRequestError(f"path {path[:300]!r} does not name a file inside the working directory")
    return path


def _check_layout(paths: Iterable[str]) -> None:
    """Raise UnrunnableRequestError unless there can be a file at each of the paths, and not too many of them."""
    files = {posixpath.normpath(path) for path in paths}
    directories: set[str] = set()
    for path in files:
        parent = posixpath.dirname(path)
        while parent and parent not in directories:
            if parent in files:
                raise UnrunnableRequestError(
                    f"files: {parent[:300]!r} is a file, and {path[:300]!r} needs a directory there"
                )
            directories.add(parent)
            parent = posixpath.dirname(parent)
        if len(files) + len(directories) > MOST_FILES:
            raise UnrunnableRequestError(f"files: there are more than {MOST_FILES} files and directories")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _field(data: Mapping[str, Any], name: str, default: Any, read: Callable[[str, Any], Any]) -> Any:
    value = data.get(name, MISSING)
    if value is not MISSING:
        return read(name, value)
    if default is MISSING:
        raise MalformedRequestError("missing", (name,), "Field required")
    return default


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise MalformedRequestError("string_type", (name,), "Input should be a valid string", value)
    return value


def _optional_text(name: str, value: Any) -> str | None:
    return None if value is None else _text(name, value)


def _language(name: str, value: Any) -> str:
    if value not in LANGUAGES:
        choices = ", ".join(repr(language) for language in LANGUAGES)
        raise MalformedRequestError("literal_error", (name,), f"Input should be {choices}", value)
    return str(value)


def _seconds(name: str, value: Any) -> float:
    number = _number(name, value)
    if not math.isfinite(number):
        raise MalformedRequestError("finite_number", (name,), "Input should be a finite number", value)
    return number


def _whole(name: str, value: Any) -> int:
    number = _number(name, value)
    if number != number // 1:
        raise MalformedRequestError("int_type", (name,), "Input should be a valid integer", value)
    return int(number)


def _number(name: str, value: Any) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise MalformedRequestError("float_type", (name,), "Input should be a valid number", value)


def _files(name: str, value: Any) -> dict[str, str | None]:
    if not isinstance(value, dict):
        raise MalformedRequestError("dict_type", (name,), "Input should be a valid dictionary", value)
    for path, content in value.items():
        if content is not None:
            _text_at((name, path), content)
    return value


def _paths(name: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise MalformedRequestError("list_type", (name,), "Input should be a valid list", value)
    for index, path in enumerate(value):
        _text_at((name, str(index)), path)
    return value


def _text_at(location: tuple[str, ...], value: Any) -> None:
    if not isinstance(value, str):
        raise MalformedRequestError("string_type", location, "Input should be a valid string", value)
