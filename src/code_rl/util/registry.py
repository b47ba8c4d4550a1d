"""Parts that a user may bring, found by name: a built-in name, or `package.module:object`."""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import secrets
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from inspect import isasyncgenfunction, iscoroutinefunction
from pkgutil import resolve_name
from typing import Any, TypeVar, cast

from code_rl.util.errors import CodeRLError, ConfigError
from code_rl.util.suggestion import suggestion

T = TypeVar("T")
LARGEST = 1e38
"""The largest value of 32-bit floats, which rewards, advantages and log-probabilities are in a
datum."""


_NOT_THEIRS = re.compile(
    rf"{re.escape(__file__.rpartition('util')[0])}|{re.escape(sysconfig.get_path('stdlib'))}|"
    "<frozen|.*/(site|dist)-packages/"
)
"""Files of this package, of the standard library and of installed packages."""
_logger = logging.getLogger("code_rl")

GIVEN = "given:"
"""The prefix of names of objects that were passed to this process and cannot be imported."""
_given: dict[str, object] = {}
"""Objects by unique names, so that a run keeps its own object."""


def name_object(value: object) -> str:
    """Return a name by which `find` finds an object: `package.module:object` if it can be imported,
    else a name that is valid only in this process, which then keeps the object. The same object has
    the same name."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    with contextlib.suppress(Exception):  # an attribute may raise any exception
        if name and module != "__main__" and resolve_name(f"{module}:{name}") is value:
            return f"{module}:{name}"
    known = (given for given, each in _given.items() if each is value)
    own = re.sub(r"\W", "", (name or type(value).__name__).rpartition(".")[2])
    given = next(known, None) or f"{GIVEN}{own}_{secrets.token_hex(4)}"
    _given[given] = value
    return given


def given_object(name: str) -> object | None:
    """Return the object that was passed to this process under a name of `name_object`, or None."""
    return _given.get(name)


def require_given(settings: Mapping[str, object]) -> None:
    """Raise ConfigError, which names all of them, for objects among `settings` that were not passed
    to this process: names of `name_object` in a file of another process."""
    missing = [
        f"{setting}=…"
        for setting, name in settings.items()
        if isinstance(name, str) and name.startswith(GIVEN) and name not in _given
    ]
    if missing:
        raise ConfigError(
            f"{', '.join(missing)} had objects of another process, which cannot be found again: "
            f"give them again as arguments of the call ({', '.join(missing)})"
        )


def find(setting: str, name: str, ours: Mapping[str, T]) -> T:
    """Return the object that `setting=name` means: a built-in part of `ours`, an object given to
    this process, or `package.module:object`. Modules in the working directory are found too, since
    it is added to `sys.path`. The module is imported.

    Raises ConfigError if no built-in part has that name, the module cannot be imported, or it has
    no such object.
    """
    if name in ours:
        return ours[name]
    if name in _given:
        return cast(T, _given[name])
    require_given({setting: name})
    if ":" not in name:
        raise ConfigError(
            f"unknown {setting} {name!r}{suggestion(name, ours)}; there are: {', '.join(ours)}; "
            "or package.module:object for your own"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = resolve_name(name)
    except (Exception, SystemExit) as error:  # a user's module may raise any exception
        hint = "; mine:part is the part of mine.py, in this folder or installed"
        hint = hint if isinstance(error, ModuleNotFoundError) else ""
        raise _failure(f"{setting}={name} cannot be loaded", error, hint) from error
    return cast(T, found)


def arity(setting: str, name: str, part: Any, *counts: int, may_wait: bool = False) -> int:
    """Return the first of `counts` that is a number of arguments with which a user's function can
    be called. It is not called. A builtin without a signature is taken to accept the first.

    Raises ConfigError if none is, for a class, for an async generator, and, unless `may_wait`, for
    an async function.
    """
    calls = part, getattr(part, "__call__", None)  # noqa: B004
    waits = any(map(iscoroutinefunction, calls)) and not may_wait
    refused = isinstance(part, type) or waits or any(map(isasyncgenfunction, calls))
    for count in () if refused else counts:
        try:
            inspect.signature(part).bind(*[None] * count)
        except TypeError:  # not callable, or with other arguments
            continue
        except ValueError:  # a builtin without a signature
            pass
        return count
    raise ConfigError(
        f"{setting}={name} must be a function of {' or '.join(map(str, counts))} arguments"
        f"{'' if may_wait else ', and not async'}"
    )


def about(part: object) -> tuple[str, str]:
    """Return a part's description (its `about`, or the first line of its docstring, without a
    capital or a period) and its source (the rest on one line). The generated settings pages show
    both."""
    first, _, rest = (getattr(part, "about", "") or inspect.getdoc(part) or "").partition("\n")
    return first[:1].lower() + first[1:].rstrip("."), " ".join(rest.split()).rstrip(".")


@contextlib.contextmanager
def attribute_errors_to(setting: str, name: str) -> Iterator[None]:
    """Turn an exception of a user's part in the block, SystemExit included, into a ConfigError that
    names the part (`setting=name`), and the file and line of theirs. The traceback goes into the
    run's log, if there is one.

    A CodeRLError passes unchanged, as do KeyboardInterrupt and a cancellation.
    """
    try:
        yield
    except CodeRLError:
        raise
    except (Exception, SystemExit) as error:
        if _logger.handlers:
            _logger.error("%s=%s failed", setting, name, exc_info=error)
        raise _failure(f"{setting}={name} failed", error) from error


def _failure(what: str, error: BaseException, hint: str = "") -> ConfigError:
    """Return the ConfigError for an exception of a user's part: `what`, the last file and line of
    the traceback that is the user's own, and the exception. The caller raises it."""
    places = [
        f" at {frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not _NOT_THEIRS.match(frame.filename)
    ]
    return ConfigError(f"{what}{(places or [''])[-1]}: {type(error).__name__}: {error}{hint}")


def require_finite(values: Sequence[float], what: str) -> None:
    """Raise ValueError, with `what` and the index, for the first of `values` that is NaN or
    infinite, or becomes so in 32 bits."""
    for index, value in enumerate(values):
        if not abs(value) <= LARGEST:
            raise not_finite(f"{what} {index}", value)


def not_finite(name: str, value: object) -> ValueError:
    """Return the error for a value that is no number of at most `LARGEST`. The caller raises it."""
    return ValueError(f"{name} is {value!r:.80}; it must be a finite number, {LARGEST:.0e} at most")
