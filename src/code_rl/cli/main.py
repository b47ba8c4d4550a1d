"""The command line: `code-rl VERB key=value …`. Exit codes: 0 success, 2 bad input, 1 other
failure; one line on stderr."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, NoReturn

from code_rl.util.errors import (
    OF_THE_MACHINE,
    TRAIN,
    CodeRLError,
    ConfigError,
    ResourceError,
    describe_error,
    is_resource_error,
    require,
)
from code_rl.util.redaction import install_hooks
from code_rl.util.streams import outlive_readers
from code_rl.util.suggestion import suggestion
from code_rl.util.version import __version__

HELP = ("--help", "-h", "help")
VERSION = "--version"
OF_THE_PATH = (
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
)
"""The system's errors about a path, which another path would avoid."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: its settings class and its command (imported when used), and a line of help.
    `defaults` returns defaults on this machine that replace the settings class's own."""

    settings: str
    command: str
    summary: str
    defaults: str | None = None

    def settings_class(self) -> type[Any]:
        """Import and return the class that `--help` describes."""
        loaded: type[Any] = resolve_name(self.settings)
        return loaded

    def run(self, given: Mapping[str, str]) -> int:
        """Import the command, run it with its settings as text, and return the exit code. Errors
        pass."""
        command: Callable[[Mapping[str, str]], int] = resolve_name(self.command)
        return command(given)


VERBS = {
    "train": Verb(
        "code_rl.training.config:Config",
        "code_rl.cli.train:train_command",
        "train a model with GRPO on code problems",
        "code_rl.training.config:defaults_here",
    ),
    "controls": Verb(
        "code_rl.cli.controls:ControlsConfig",
        "code_rl.cli.controls:controls_command",
        "train beside controls that learn nothing from verdicts, and compare them",
    ),
    "eval": Verb(
        "code_rl.evaluation.settings:EvalConfig",
        "code_rl.cli.evaluate:eval_command",
        "evaluate a model on benchmarks, with intervals; compare two evaluations",
    ),
    "judge": Verb(
        "code_rl.cli.judge:JudgeConfig",
        "code_rl.cli.judge:judge_command",
        "judge programs against problems' tests",
    ),
    "export": Verb(
        "code_rl.cli.export:ExportConfig",
        "code_rl.cli.export:export_command",
        "hand a trained model over, as a peft adapter or a merged Hugging Face folder",
    ),
    "report": Verb(
        "code_rl.cli.report:ReportConfig",
        "code_rl.cli.report:report_command",
        "show what happened in a run: page, text",
    ),
    "prepare": Verb(
        "code_rl.data.preparation.settings:PrepareConfig",
        "code_rl.cli.prepare:prepare_command",
        "filter, deduplicate, decontaminate and verify problems before training on them",
    ),
    "audit": Verb(
        "code_rl.cli.audit:AuditConfig",
        "code_rl.cli.audit:audit_command",
        "check a grader that others wrote: which cheats it pays, which honest programs it fails",
    ),
    "sandbox": Verb(
        "code_rl.cli.sandbox:SandboxConfig",
        "code_rl.cli.sandbox:sandbox_command",
        "serve Sandbox Fusion's protocol on the embedded sandbox",
    ),
    "serve": Verb(
        "code_rl.cli.serve:ServeConfig",
        "code_rl.cli.serve:serve_command",
        "serve the embedded engine to programs that use the Tinker SDK",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `code-rl` with the words of `argv` (None: `sys.argv[1:]`) and return the exit code. An
    unknown verb is one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == [VERSION]:
        return _show(f"code-rl {__version__}")
    if not words or words[0] in HELP:
        return _show(overview())
    if words[0] not in VERBS:
        return _fail(
            ConfigError(
                f"unknown verb {words[0]!r}{suggestion(words[0], VERBS)}; there are: "
                f"{', '.join(VERBS)}"
            )
        )
    return run_verb(words[0], words[1:], f"code-rl {words[0]}")


def run_verb(name: str, words: Sequence[str], program: str) -> int:
    """Run one verb with its command-line words and return the exit code; `program` is its name in
    help. A CodeRLError, and a failure of this machine's resources, become one line on stderr; other
    exceptions are programming errors and pass. `.env` of the working directory is loaded. After
    Ctrl-C the code is 130, and the process ends within two seconds."""
    verb = VERBS[name]
    if VERSION in words:
        return _show(f"code-rl {__version__}")
    try:
        require("train", program, *TRAIN)
    except ConfigError as error:
        return _fail(error)
    from dotenv import find_dotenv, load_dotenv

    from code_rl.util.settings import describe, read_arguments

    if any(word in HELP for word in words):
        load_dotenv(find_dotenv(usecwd=True))
        holds = resolve_name(verb.defaults)() if verb.defaults else None
        return _show(describe(verb.settings_class(), f"{program} key=value …", holds))
    install_hooks()
    outlive_readers(quietly=name == "report")
    # Texts are encoded one at a time, so a pool of threads gains nothing, and if threads are not
    # available it ends the process.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        given = read_arguments(words)
        load_dotenv(find_dotenv(usecwd=True))
        return verb.run(given)
    except CodeRLError as error:
        return _fail(error)
    except OF_THE_MACHINE as error:
        if not is_resource_error(error):
            raise
        return _fail(_of_a_setting(error, words) or ResourceError(describe_error(error)))
    except KeyboardInterrupt as interrupt:
        # A second Ctrl-C ends the rest without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        said = ["interrupted", *getattr(interrupt, "__notes__", ())]
        print("; ".join(said), file=sys.stderr)
        # In case a thread still waits, for example for a hub
        ends = threading.Timer(2.0, os._exit, (130,))
        ends.daemon = True
        ends.start()
        return 130


def _of_a_setting(error: BaseException, words: Sequence[str]) -> ConfigError | None:
    """Return a ConfigError for a system's error that is about a path on the command line, else
    None."""
    if not isinstance(error, OSError) or error.errno not in OF_THE_PATH:
        return None
    refused = os.path.abspath(os.fsdecode(error.filename or os.curdir))
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        paths = [os.path.abspath(os.path.expanduser(part)) for part in value.split(",") if part]
        if any(refused.startswith(path) for path in paths):
            return ConfigError(
                f"{name}={value} cannot be used: {error.strerror}; give another path"
            )
    return None


def run_script(settings: type[Any], main: Callable[[Any], int], description: str) -> NoReturn:
    """Run a script with its own `settings` class (a benchmark, a build script) on `sys.argv`, with
    the same syntax, errors and exit codes as a verb, and exit. `main` returns the exit code."""
    from code_rl.util.settings import describe, make_settings, read_arguments

    words = sys.argv[1:]
    if any(word in HELP for word in words):
        usage = describe(settings, f"python {sys.argv[0]} key=value …")
        sys.exit(_show(f"{description.strip()}\n\n{usage}"))
    try:
        sys.exit(main(make_settings(settings, read_arguments(words))))
    except CodeRLError as error:
        sys.exit(_fail(error))


def overview() -> str:
    """Return the text of `code-rl --help`."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: code-rl VERB key=value …",
            "",
            *lines,
            "",
            "code-rl VERB --help lists the settings of a verb.",
        ]
    )


def _show(text: str) -> int:
    """Print a text and return 0; a reader that is gone, such as `head`, is no error."""
    outlive_readers(quietly=True)
    print(text, flush=True)
    return 0


def _fail(error: CodeRLError) -> int:
    """Print an error as one line on stderr and return its exit code."""
    print(f"error: {error.line()}", file=sys.stderr)
    return error.exit_code
