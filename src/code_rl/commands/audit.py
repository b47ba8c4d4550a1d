"""The verb `audit`: settings to a target, a card of what it did, and an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import chz

from code_rl.config.setting import AT_LEAST_1, must, option
from code_rl.errors import ConfigError
from code_rl.files import make_folder, write_atomically, writes
from code_rl.settings import make_settings

if TYPE_CHECKING:
    from code_rl.audit.checklist import Checklist
    from code_rl.audit.graders.base import Grader
    from code_rl.audit.programs import Corpus
    from code_rl.audit.scorecard import Scorecard

SHARES = {"quick": 0.2, "full": 1.0}
TARGETS = ("grader", "backend", "script")
_GRADERS = ("ours", "fusion", "http", "function")
OF_KINDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("corpus", "concurrency", "loads", "under_load"), _GRADERS),
    **dict.fromkeys(("executor", "isolation"), ("ours",)),
    **dict.fromkeys(("pays_at", "shape", "takes"), ("function",)),
    **dict.fromkeys(("python", "confine"), ("function", "script")),
    **dict.fromkeys(("ob_len", "learning_steps"), ("script",)),
    "style": ("fusion",),
    "url": ("http",),
    "model_name": ("backend",),
}
"""The kinds of target that read a setting; those that are not named, each does."""


@chz.chz
class AuditConfig:
    """Check what others built: a grader (cheats, honest programs, mutants), a Tinker server, or the four functions of a training script.

    Exactly one of grader=, backend=, script=. Exit code 0: nothing was found; 1: something was; 2: it cannot be asked.
    """

    # fmt: off
    grader: str | None = option(None,
        "Which grader: ours; fusion:URL (a Sandbox Fusion server); http:FILE.toml, or http:NAME for one that is known (nemo-gym); "
        "package.module:function or file.py:function.")
    backend: str | None = option(None, "Address of a server of the Tinker protocol.")
    script: str | None = option(None, "File with compute_advantages, should_skip, make_datum and train_step.")
    corpus: Literal["full", "quick"] = option("full", "Graders: all programs, or about a fifth of each class.")
    out: str | None = option(None, "Folder for audit.json and audit.html. None: the table only.")
    concurrency: int = option(4, "Graders: programs at once.", AT_LEAST_1)
    loads: str = option("1,8,64", "Graders: numbers at once between which verdicts are compared. Empty: not compared.")
    under_load: int = option(60, "Graders: programs that are compared so.", must(lambda count: count >= 2, "at least 2"))
    timeout: float | None = option(None,
        "Seconds for one answer. None: 120 of a grader, 60 of a server, 20 of a function of the script.", must(lambda seconds: seconds >= 1, "at least 1"))
    pays_at: float = option(1.0, "Functions: the score from which a program counts as paid.")
    shape: Literal["plain", "trl", "verl", "verifiers"] = option("plain", "Functions: how they are called. plain: grade(code, problem).")
    takes: Literal["all", "stdin", "call"] = option("all", "Functions: the problems that it can be asked about; the others are skipped, and counted.")
    python: str | None = option(None, "Functions, scripts: the interpreter that has what they import (None: this one).")
    confine: bool = option(True,
        "Functions, scripts: no network, a file system that cannot be written. false: they, and the hostile programs that graders run, have your rights.")
    style: Literal["script", "lcb"] = option("script",
        "fusion: script runs the program once a test and compares here; lcb sends the course's harness with the tests.")
    url: str | None = option(None, "http: the address, in place of the file's.")
    executor: str = option("embedded", "ours: where programs run, as judge's executor=.")
    isolation: Literal["auto", "full", "landlock", "none"] = option("auto", "ours: as judge's isolation=.")
    ob_len: Literal["either", "prompt", "shifted"] = option("either",
        "script: what make_datum's ob_len counts: the tokens of the prompt, or one less (the cookbook's).")
    learning_steps: int = option(12,
        "script: steps of training with the functions. 0: none; else at least 8.", must(lambda steps: steps == 0 or steps >= 8, "0 or at least 8"))
    model_name: str | None = option(None, "backend: the base model.")
    # fmt: on

    @chz.validate
    def _one_target(self) -> None:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(f"{' and '.join(given) or 'nothing'} given; give one of grader=, backend= and script=")

    @chz.validate
    def _whole_loads(self) -> None:
        if not all(load.strip().isdigit() and int(load) >= 1 for load in self.loads.split(",") if load.strip()):
            raise ConfigError(f"loads={self.loads!r} must be whole numbers of at least 1, comma-separated")

    @chz.validate
    def _belongs(self) -> None:
        """A setting of another kind of grader would silently do nothing."""
        fields = chz.chz_fields(type(self))
        for name, kinds in OF_KINDS.items():
            if self.kind not in kinds and getattr(self, name) != fields[name]._default:
                target = self.target
                raise ConfigError(
                    f"{name}={getattr(self, name)} does nothing with {target}={getattr(self, target)}; leave it out"
                )

    @property
    def target(self) -> str:
        """Which of TARGETS was given."""
        return next((name for name in TARGETS if getattr(self, name) is not None), TARGETS[0])

    @property
    def kind(self) -> str:
        """`backend`, `script`, or which of the four kinds of grader it is."""
        if self.target != "grader" or self.grader is None:
            return self.target
        head = self.grader.partition(":")[0]
        return head if head in ("ours", "fusion", "http") else "function"

    def timeout_s(self, default_s: float) -> float:
        """`timeout`, or this."""
        return default_s if self.timeout is None else self.timeout

    @property
    def numbers_at_once(self) -> tuple[int, ...]:
        """`loads`, as numbers."""
        return tuple(int(load) for load in self.loads.split(",") if load.strip())


def audit_command(given: Mapping[str, str]) -> int:
    """Run `code-rl audit`. Returns the exit code; raises ConfigError where the target cannot be asked."""
    config = make_settings(AuditConfig, given)
    out = None if config.out is None else make_folder(Path(config.out).expanduser())
    card: Scorecard | Checklist
    if config.target == "grader":
        card = _audit_grader(config)
    else:
        card = _audit_backend(config) if config.target == "backend" else _audit_script(config)
    print()
    for finding in card.findings() or ["nothing was found"]:
        print(f"- {finding}")
    if out is not None:
        _write(card, out)
    return 0 if card.clean else 1


def _audit_script(config: AuditConfig) -> Checklist:
    from code_rl.audit.script import audit_script
    from code_rl.audit.script.student import Student

    file = Path(config.script or "").expanduser().resolve()
    if not file.is_file():
        raise ConfigError(f"script={config.script} is no file; give the Python file that has the four functions")
    if not config.confine:
        print(f"{file.name} will run WITH YOUR RIGHTS")
    student = Student(file, config.python, config.timeout_s(20), config.confine)
    return asyncio.run(audit_script(student, config.ob_len, config.learning_steps, _say))


def _audit_backend(config: AuditConfig) -> Checklist:
    from code_rl.audit.backend import audit_backend
    from code_rl.backends.preflight import survey
    from code_rl.places import place_of, resolve_backend

    if config.backend == "embedded":
        raise ConfigError("backend=embedded is no server; start one with `code-rl serve` and give its address")
    place = place_of(resolve_backend(config.backend or ""))
    asyncio.run(survey(place, config.model_name))
    return audit_backend(place, config.model_name or "", config.timeout_s(60), _say)


def _audit_grader(config: AuditConfig) -> Scorecard:
    from code_rl.audit.programs import load_corpus

    corpus = load_corpus().share(SHARES[config.corpus])
    grader = open_grader(config)
    print(f"{grader.name}: {len(corpus.entries)} programs of corpus {corpus.version}")
    if config.kind == "function":
        where = "without network, on a file system that it cannot write" if config.confine else "WITH YOUR RIGHTS"
        print(f"this grader is code that will run hostile programs, {where}")
    elif config.kind != "ours":
        print("this grader will be sent hostile programs; what they do to its machine is what is being tried")
    card = asyncio.run(_asked(config, corpus, grader))
    if card.skipped:
        print(f"{card.skipped} programs were not put to it: their problems have forms that it does not take")
    return card


_say = functools.partial(print, flush=True)


async def _asked(config: AuditConfig, corpus: Corpus, grader: Grader) -> Scorecard:
    from code_rl.audit.scorecard import audit_grader

    async with contextlib.aclosing(grader):
        return await audit_grader(grader, corpus, config.concurrency, config.numbers_at_once, config.under_load, _say)


def open_grader(config: AuditConfig) -> Grader:
    """The grader that the settings name. Raises ConfigError."""
    rest = (config.grader or "").partition(":")[2]
    timeout_s = config.timeout_s(120)
    if config.kind == "ours":
        from code_rl.audit.graders.ours import Ours
        from code_rl.sandbox.connect import connect_executor

        return Ours(connect_executor(config.executor, isolation=config.isolation))
    if config.kind == "fusion":
        from code_rl.audit.graders.fusion import Fusion

        if not rest.startswith(("http://", "https://")):
            raise ConfigError(f"grader={config.grader} needs an address: fusion:http://HOST:PORT")
        return Fusion(rest, config.style, timeout_s)
    if config.kind == "http":
        from code_rl.audit.graders.http import Http, read_description

        return Http(read_description(rest, config.url), timeout_s)
    from code_rl.audit.graders.function import Function

    if not rest:
        raise ConfigError(
            f"grader={config.grader} is none; use ours, fusion:URL, http:FILE.toml or package.module:function"
        )
    return Function(
        config.grader or "",
        config.shape,
        config.python or sys.executable,
        config.pays_at,
        timeout_s,
        max(config.concurrency, *config.numbers_at_once, 1),
        config.confine,
        config.takes,
    )


def _write(card: Scorecard | Checklist, out: Path) -> None:
    from code_rl.audit.page import render

    with writes(out):
        write_atomically(out / "audit.json", json.dumps(card.to_json(), indent=1) + "\n")
        write_atomically(out / "audit.html", render(card))
    print(f"card: {out / 'audit.html'}, {out / 'audit.json'}")
