"""The one error taxonomy.

Every error that a user can meet derives from `CodeRLError`. The command line prints its message as
one line on stderr and exits with `exit_code`: 2 when the input was bad, 1 when something else
failed.
"""

import contextlib
import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from code_rl.util.redaction import redacted

DISTRIBUTION = "code-rl-grpo"
"""This package's name on PyPI, where `code-rl` is someone else's package."""


class CodeRLError(Exception):
    """Base of every error raised on purpose by this project."""

    exit_code = 1

    def line(self) -> str:
        """Return the message and its notes on one line, without keys, as the command line and
        reports show it."""
        said = "; ".join([str(self), *getattr(self, "__notes__", ())])
        return redacted(" ".join(said.split()))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback: the class and `line`."""
        return [f"{type(self).__name__}: {self.line()}"]


class InputError(CodeRLError):
    """User input cannot be used; the message names the field, the value and the remedy."""

    exit_code = 2


class ConfigError(InputError):
    """A setting is unknown, malformed, or not supported by the chosen back end."""


class DataError(InputError):
    """A problem row, program row or data file is malformed; the message names file, row and
    reason."""


class SandboxError(CodeRLError):
    """The sandbox itself failed (a worker died, a server is down, the protocol broke).

    It never says anything about a program: callers retry, then report `sandbox_error`.
    """


class OutageError(CodeRLError):
    """A service was unreachable for longer than the run waits; the run stops and can be resumed."""


class ResourceError(CodeRLError):
    """The machine lacks a resource (disk, memory, file descriptors), which the message names."""


class IsolationError(InputError):
    """This machine cannot provide the isolation level; the message names the missing part."""


class BackendError(CodeRLError):
    """The back end that holds the model failed or refused a request."""


class CheckpointError(CodeRLError):
    """A checkpoint is missing, damaged or made by an incompatible version."""


def install_command(extra: str) -> str:
    """Return the shell command that installs this package with one of its extras, from its clone if
    it runs from one. Nothing is run."""
    clone = Path(__file__).parents[3]
    what = (
        f"-e '{clone}[{extra}]'"
        if (clone / "pyproject.toml").is_file()
        else f"'{DISTRIBUTION}[{extra}]'"
    )
    return f"{sys.executable} -m pip install {what}"


TRAIN = ("chz", "dotenv", "numpy", "rich")
"""Modules whose presence shows that the extra `train` is installed."""


def require(extra: str, what: str, *modules: str) -> None:
    """Raise ConfigError with the command that installs `extra` if one of its `modules`, needed by
    `what`, is not installed. Modules are looked for, not imported."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f"{what} needs the extra {extra} ({module} is not installed); run: "
                f"{install_command(extra)}"
            )


def command_line(verb: str) -> str:
    """Return a verb as the user would type it, for messages, as this process was started: with a
    command that the shell finds, else with its path."""
    script, here = Path(sys.argv[0]), Path(sys.executable).with_name("code-rl")
    if (
        verb == "train"
        and script.suffix == ".py"
        and script.name != "__main__.py"
        and script.is_file()
    ):
        found = shutil.which("python")
        same = found and Path(found) == Path(sys.executable)
        return f"{'python' if same else _from_here(Path(sys.executable))} {_from_here(script)}"
    if script.name == "__main__.py":
        return f"{_from_here(Path(sys.executable))} -m code_rl.cli {verb}"
    if script.name == "code-rl":
        here = script.absolute()
    known = shutil.which("code-rl")
    on_path = not here.exists() or (known is not None and Path(known) == here)
    return f"{'code-rl' if on_path else _from_here(here)} {verb}"


def _from_here(path: Path) -> str:
    """Return a path as a shell word, relative to the working directory if it is below that."""
    absolute = path.absolute()
    return shlex.quote(
        str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)
    )


_MEMORY = re.compile(
    r"can't allocate memory|cannot allocate memory|out of memory|bad_alloc|can't start new "
    r"thread|failed to map segment",
    re.IGNORECASE,
)
OF_THE_MACHINE = (OSError, MemoryError, RuntimeError, ImportError)
"""Exceptions that may mean a missing resource of the machine; `is_resource_error` decides."""


def is_resource_error(error: BaseException) -> bool:
    """Return True for the errors of a machine without enough memory, descriptors or disk space, or
    without a file: every OSError and MemoryError, and RuntimeErrors and ImportErrors whose message
    is about memory."""
    worded = isinstance(error, RuntimeError | ImportError)  # imports map libraries into memory
    return isinstance(error, OSError | MemoryError) or (worded and bool(_MEMORY.search(str(error))))


def describe_error(error: BaseException) -> str:
    """Return an exception for which `is_resource_error` is true on one line, with the missing
    resource and the file."""
    if isinstance(error, RuntimeError | ImportError):
        return f"out of memory ({str(error).splitlines()[0][:200]})"
    if isinstance(error, MemoryError):
        return f"out of memory{f' ({error})' if str(error) else ''}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f': {error.filename}' if error.filename is not None else ''}"
    return str(error) or type(error).__name__


@contextlib.contextmanager
def resource_errors() -> Iterator[None]:
    """Turn an OSError of the block into a ResourceError, which no part of a user's is blamed for.
    Other exceptions pass."""
    try:
        yield
    except OSError as error:
        raise ResourceError(describe_error(error)) from error


def with_resume_hint(error: Exception, hint: str) -> CodeRLError:
    """Return an error of the same class that also says how to resume; anything but a CodeRLError
    becomes a ResourceError. The caller raises it. Notes of `error` are not copied."""
    if isinstance(error, CodeRLError):
        return type(error)(f"{error}; {hint}")
    return ResourceError(f"the run stopped: {describe_error(error)}; {hint}")
