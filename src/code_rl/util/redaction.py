"""Keys stay in the environment: settings refuse them, and logs, errors and reports show ***
instead.

A key is the value of an environment variable or a setting named like one (`…_KEY`, `…_TOKEN`,
`…_SECRET`, `…_PASSWORD`), a text in the format of a well-known service's keys, or a password in a
URL.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"
LEAST_LENGTH = 12
"""The least number of characters of a variable's value that counts as a key; shorter values are
words that occur anywhere."""
_NAMES = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_FORMS = re.compile(
    r"(?<![A-Za-z0-9_-])"
    r"(?:tml-|hf_|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abp]-|AKIA|sk-(?:ant-|proj-)?)"
    r"[A-Za-z0-9._~+=-]{12,}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
)
_RUNS = re.compile(r"[A-Za-z0-9]+")
LIKE_FOLDERS = ("hf_", "sk-", "tml-")
LEAST_RUN = 16
"""The least number of letters and digits in a row of a key. Names of folders have separators."""
_IN_URL = re.compile(r"(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)")


def redacted(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return `text` with every key in it replaced by ***. Keys of `environment` are the values of
    at least 12 characters under names like `…_KEY`."""
    for value in sorted(_values(environment), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _IN_URL.sub(HIDDEN, _FORMS.sub(_hidden, text))


def holds_key(text: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if a setting's value contains a key: one of `environment`, one in the format of a
    known service, or a password in a URL. A variable's value that is a path does not count."""
    known = [value for value in _values(environment) if not value.startswith(("/", "~", "."))]
    return (
        any(value in text for value in known)
        or any(map(_is_key, _FORMS.findall(text)))
        or _IN_URL.search(text) is not None
    )


def _is_key(found: str) -> bool:
    """Return True if a text that begins like a key is one. Folders begin like some keys, so these
    need a long run of letters and digits, with both, as keys have and words have not."""
    return not found.startswith(LIKE_FOLDERS) or any(
        len(run) >= LEAST_RUN and not run.isalpha() and not run.isdigit()
        for run in _RUNS.findall(found)
    )


def _hidden(found: re.Match[str]) -> str:
    """Return the replacement of a text that begins like a key."""
    return HIDDEN if _is_key(found[0]) else found[0]


def without_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, nested ones too, with *** for each value that is a key, or whose name is
    that of one."""
    return {name: _shown(str(name), value) for name, value in settings.items()}


def _shown(name: str, value: Any) -> Any:
    """Return the value of a setting as it may be written."""
    if isinstance(value, Mapping):
        return without_keys(value)
    hidden = value and _names_a_key(name)
    return HIDDEN if hidden or (isinstance(value, str) and holds_key(value)) else value


class RedactingFormatter(logging.Formatter):
    """A formatter that removes keys from its lines, exceptions included."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as text, with its exception, redacted. Keys are looked up in the
        environment each time."""
        return redacted(super().format(record))


def install_hooks() -> None:
    """Redact Python's own output: uncaught exceptions, also of threads, and log records without a
    handler. It replaces `sys.excepthook` and `threading.excepthook` for the whole process."""
    sys.excepthook = lambda *raised: print_exception(raised[1])
    threading.excepthook = _print_thread_exception
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(RedactingFormatter())


def _values(environment: Mapping[str, str]) -> set[str]:
    """Return the values of the variables that are named like a key, at least 12 characters long."""
    return {
        value
        for name, value in environment.items()
        if len(value) >= LEAST_LENGTH and _names_a_key(name)
    }


@lru_cache(maxsize=1024)
def _names_a_key(variable: str) -> bool:
    return _NAMES.search(variable) is not None


def print_exception(error: BaseException) -> None:
    """Print an exception's traceback on stderr, redacted."""
    sys.stderr.write(redacted("".join(traceback.format_exception(error))))


def _print_thread_exception(failed: Any) -> None:
    """Print a thread's uncaught exception, redacted. SystemExit ends a thread silently, as in
    Python."""
    if failed.exc_type is not SystemExit and failed.exc_value is not None:
        print_exception(failed.exc_value)
