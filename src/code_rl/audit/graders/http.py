"""A grader behind HTTP, described by a small TOML file: how a request is made of a program and its tests, where the score is in the answer.

url = "http://localhost:8000/grade"
[request]                       # the body; a string "$name" becomes that value, within a text its text (docs/audit.md has the names)
code = "$code"
tests = "$lcb_input_output"
[answer]
score = "result.reward"         # dots lead into objects and lists
pays_at = 1.0                   # paid from this score on
failed = "error"                # optional: where something stands when the grader itself failed
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp

from code_rl.audit.graders.base import Outcome, OverHttp, outcome_of, shapes
from code_rl.errors import ConfigError
from code_rl.problems.problem import Problem, StdinTest
from code_rl.settings import suggestion

SAID = 300
TAKES = ("all", "stdin", "call")
_MISSING = object()
_NAME = re.compile(r"(\$\$?)([A-Za-z_]\w*)")
_PROGRAM = {"code", "completion"}


@dataclass(frozen=True, slots=True)
class Description:
    """What the TOML file says."""

    url: str
    request: Mapping[str, Any]
    score: str
    pays_at: float = 1.0
    failed: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    takes: str = "all"
    """One of TAKES."""


def known_descriptions() -> dict[str, Any]:
    """Those that come with the package, by name."""
    folder = resources.files("code_rl.audit.graders") / "known"
    return {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}


def read_description(name: str, url: str | None) -> Description:
    """The description in the file `name`, or the one that comes with us; `url` replaces its address. Raises ConfigError."""
    known = known_descriptions()
    source = known.get(name, Path(name).expanduser())
    try:
        table = tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(
            f"grader={name}: no such description{suggestion(name, known)}; name a TOML file or one of {', '.join(known)}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"grader={name} is no TOML: {error}") from None
    answer = table.get("answer")
    address = url or table.get("url")
    if not isinstance(address, str) or not isinstance(table.get("request"), dict) or not isinstance(answer, dict):
        raise ConfigError(f'grader={name} needs url = "…", a table [request] and a table [answer] with score = "…"')
    unknown = {*table} - {"url", "request", "answer", "headers", "takes"} or {*answer} - {"score", "pays_at", "failed"}
    if unknown:
        raise ConfigError(
            f"grader={name}: unknown {', '.join(sorted(unknown))}; docs/audit.md has what may stand there"
        )
    for field_name, value, right, wanted in _told(table, answer):
        if not right:
            raise ConfigError(f"grader={name}: {field_name} = {value!r:.80} must be {wanted}")
    _check_request(name, table["request"])
    return Description(
        address,
        table["request"],
        answer["score"],
        float(answer.get("pays_at", 1.0)),
        answer.get("failed"),
        table.get("headers", {}),
        table.get("takes", "all"),
    )


def _told(table: Mapping[str, Any], answer: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool, str]]:
    """The fields with their values, whether those will do, and what would."""
    score, pays_at, failed = answer.get("score"), answer.get("pays_at", 1.0), answer.get("failed", "")
    headers, takes = table.get("headers", {}), table.get("takes", "all")
    number = isinstance(pays_at, int | float) and not isinstance(pays_at, bool) and math.isfinite(pays_at)
    yield "[answer] score", score, isinstance(score, str), "a text: the place of the score in the answer"
    yield "[answer] pays_at", pays_at, number, "a number"
    yield "[answer] failed", failed, isinstance(failed, str), "a text: the place of a failure in the answer"
    yield "headers", headers, isinstance(headers, dict), "a table of texts"
    if isinstance(headers, dict):
        for key, value in headers.items():
            plain = isinstance(value, str) and value.isprintable()
            yield f"[headers] {key}", value, plain, "a text without control characters"
    yield "takes", takes, takes in TAKES, f"one of {', '.join(TAKES)}"


def _check_request(name: str, request: Mapping[str, Any]) -> None:
    """Every value is one of JSON, every name is known, and the program is in it. Raises ConfigError."""
    leaves = dict(_leaves(request, "[request]"))
    for place, value in leaves.items():
        if not isinstance(value, str | bool | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise ConfigError(f"grader={name}: {place} = {value} is no value of JSON; write it as a text")
    filled(request, shapes(Problem("", "", (StdinTest("", ""),)), ""))
    named = {found[1] for value in leaves.values() if isinstance(value, str) for found in _NAME.findall(value)}
    if not named & _PROGRAM:
        raise ConfigError(f"grader={name}: [request] names neither $code nor $completion; no program would be sent")


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield place, value
    for key, item in items or ():
        yield from _leaves(item, f"{place} {key}")


class Http(OverHttp):
    """Asks with one POST a program."""

    def __init__(self, description: Description, timeout_s: float) -> None:
        self.name = description.url
        self._description = description
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=10)
        self.problems = description.takes

    async def silence(self) -> str | None:
        """Any answer of HTTP will do."""
        try:
            async with self.session.get(self._description.url, timeout=aiohttp.ClientTimeout(total=20)):
                return None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{self._description.url} does not answer ({error})"

    async def grade(self, problem: Problem, code: str) -> Outcome:
        """Anything but an answer with a score is a failure of the grader."""
        body = filled(self._description.request, shapes(problem, code))
        try:
            async with self.session.post(
                self._description.url, json=body, headers=self._description.headers, timeout=self._timeout
            ) as response:
                text = await response.text(errors="replace")
                if response.status != 200:
                    return Outcome(None, f"HTTP {response.status}: {text[:SAID]}")
        except (aiohttp.ClientError, OSError, LookupError, ValueError) as error:  # LookupError: a charset such as hex
            return Outcome(None, f"{type(error).__name__}: {error}"[:SAID], isinstance(error, TimeoutError))
        return read_answer(text, self._description)


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with each string `$name` replaced by a value; `$$name`, and a value that is no text within a longer one, is its JSON text.

    Raises ConfigError for an unknown name.
    """
    if isinstance(template, Mapping):
        return {key: filled(item, values) for key, item in template.items()}
    if isinstance(template, list):
        return [filled(item, values) for item in template]
    if not isinstance(template, str):
        return template
    whole = _NAME.fullmatch(template)
    return _value(whole, values) if whole else _NAME.sub(lambda found: _text(_value(found, values)), template)


def _value(found: re.Match[str], values: Mapping[str, Any]) -> Any:
    mark, name = found.groups()
    if name not in values:
        raise ConfigError(
            f"[request] names ${name}, which there is not{suggestion(name, values)}; there are: {', '.join(values)}"
        )
    return json.dumps(values[name]) if mark == "$$" else values[name]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_answer(text: str, description: Description) -> Outcome:
    """Whether an answer pays."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return Outcome(None, f"no JSON: {text[:SAID]}")
    if description.failed is not None and _at(answer, description.failed) not in (_MISSING, None, False, "", 0):
        return Outcome(None, text[:SAID])
    score = _at(answer, description.score)
    if not isinstance(score, bool | int | float):
        return Outcome(None, f"no score at {description.score}: {text[:SAID]}")
    return outcome_of(score, description.pays_at, text[:SAID])


def _at(answer: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(answer, dict) and part in answer:
            answer = answer[part]
        elif isinstance(answer, list) and part.lstrip("-").isdigit() and -len(answer) <= int(part) < len(answer):
            answer = answer[int(part)]
        else:
            return _MISSING
    return answer
