"""The verb `audit`: settings to a target, a card of what it did, and an exit code."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import chz

from code_rl.errors import ConfigError
from code_rl.settings import make_settings

if TYPE_CHECKING:
    from code_rl.audit.graders.base import Grader
    from code_rl.audit.programs import Corpus
    from code_rl.audit.scorecard import Scorecard

SHARES = {"quick": 0.2, "full": 1.0}


@chz.chz
class AuditConfig:
    """Put programs that cheat, honest programs that graders fail, and wrong versions of right ones to a grader, and say what it paid.

    Exit code 0: every program was decided, and rightly; 1: not so; 2: the grader cannot be asked.
    """

    grader: str = chz.field(
        doc="Which: ours; fusion:URL (a Sandbox Fusion server); http:FILE.toml, or http:NAME for one that is known (nemo-gym); "
        "package.module:function or file.py:function."
    )
    corpus: Literal["full", "quick"] = chz.field(default="full", doc="All programs, or about a fifth of each class.")
    out: str | None = chz.field(default=None, doc="Folder for audit.json and audit.html. None: the table only.")
    concurrency: int = chz.field(default=4, doc="Programs at once.")
    loads: str = chz.field(
        default="1,8,64", doc="Numbers at once between which verdicts are compared. Empty: not compared."
    )
    under_load: int = chz.field(default=60, doc="Programs that are compared so.")
    timeout: float = chz.field(default=120.0, doc="Seconds after which an answer counts as a failure of the grader.")
    pays_at: float = chz.field(default=1.0, doc="Functions: the score from which a program counts as paid.")
    shape: Literal["plain", "trl", "verl", "verifiers"] = chz.field(
        default="plain", doc="Functions: how they are called. plain: grade(code, problem)."
    )
    takes: Literal["all", "stdin", "call"] = chz.field(
        default="all", doc="Functions: the problems that it can be asked about; the others are skipped, and counted."
    )
    python: str | None = chz.field(default=None, doc="Functions: the interpreter that has them (None: this one).")
    confine: bool = chz.field(
        default=True,
        doc="Functions: no network, a file system that cannot be written. false: they, and the hostile programs that they run, have your rights.",
    )
    style: Literal["script", "lcb"] = chz.field(
        default="script",
        doc="fusion: script runs the program once a test and compares here; lcb sends the course's harness with the tests.",
    )
    url: str | None = chz.field(default=None, doc="http: the address, in place of the file's.")
    executor: str = chz.field(default="embedded", doc="ours: where programs run, as judge's executor=.")
    isolation: Literal["auto", "full", "landlock", "none"] = chz.field(
        default="auto", doc="ours: as judge's isolation=."
    )

    @chz.validate
    def _ranges(self) -> None:
        for name, least in (("concurrency", 1), ("under_load", 2), ("timeout", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {least}")
        if any(not load.isdigit() or int(load) < 1 for load in self._loads()):
            raise ConfigError(f"loads={self.loads!r} must be whole numbers of at least 1, comma-separated")

    @chz.validate
    def _belongs(self) -> None:
        """A setting of another kind of grader would silently do nothing."""
        kinds = {
            "ours": ("executor", "isolation"),
            "fusion": ("style",),
            "http": ("url",),
            "function": ("pays_at", "shape", "takes", "python", "confine"),
        }
        fields = chz.chz_fields(type(self))
        for kind, names in kinds.items():
            for name in names if kind != self.kind else ():
                if getattr(self, name) != fields[name]._default:
                    raise ConfigError(
                        f"{name}={getattr(self, name)} does nothing with grader={self.grader}; leave it out"
                    )

    @property
    def kind(self) -> str:
        """Which of the four kinds of grader it is."""
        head = self.grader.partition(":")[0]
        return head if head in ("ours", "fusion", "http") else "function"

    def _loads(self) -> list[str]:
        return [load.strip() for load in self.loads.split(",") if load.strip()]

    @property
    def numbers_at_once(self) -> tuple[int, ...]:
        """`loads`, as numbers."""
        return tuple(map(int, self._loads()))


def audit_command(given: Mapping[str, str]) -> int:
    """Run `code-rl audit`. Returns the exit code; raises ConfigError where the grader cannot be asked."""
    from code_rl.audit.programs import load_corpus

    config = make_settings(AuditConfig, given)
    corpus = load_corpus().share(SHARES[config.corpus])
    grader = open_grader(config)
    _say_before(config, corpus, grader)
    card = asyncio.run(_run(config, corpus, grader))
    print()
    for finding in card.findings() or ["nothing was decided wrongly"]:
        print(f"- {finding}")
    if card.skipped:
        print(f"{card.skipped} programs were not put to it: their problems have forms that it does not take")
    if config.out is not None:
        _write(card, Path(config.out).expanduser())
    return 0 if card.clean else 1


async def _run(config: AuditConfig, corpus: Corpus, grader: Grader) -> Scorecard:
    from code_rl.audit.scorecard import audit_grader

    try:
        return await audit_grader(
            grader,
            corpus,
            config.concurrency,
            config.numbers_at_once,
            config.under_load,
            lambda line: print(line, flush=True),
        )
    finally:
        await grader.aclose()


def _say_before(config: AuditConfig, corpus: Corpus, grader: Grader) -> None:
    print(f"{grader.name}: {len(corpus.entries)} programs of corpus {corpus.version}")
    if config.kind == "function":
        where = "without network, on a file system that it cannot write" if config.confine else "WITH YOUR RIGHTS"
        print(f"this grader is code that will run hostile programs, {where}")
    elif config.kind != "ours":
        print("this grader will be sent hostile programs; what they do to its machine is what is being tried")


def open_grader(config: AuditConfig) -> Grader:
    """The grader that the settings name. Raises ConfigError."""
    rest = config.grader.partition(":")[2]
    if config.kind == "ours":
        from code_rl.audit.graders.ours import Ours
        from code_rl.sandbox.connect import connect_executor

        return Ours(connect_executor(config.executor, isolation=config.isolation))
    if config.kind == "fusion":
        from code_rl.audit.graders.fusion import Fusion

        if not rest.startswith(("http://", "https://")):
            raise ConfigError(f"grader={config.grader} needs an address: fusion:http://HOST:PORT")
        return Fusion(rest, config.style, config.timeout)
    if config.kind == "http":
        from code_rl.audit.graders.http import Http, read_description

        return Http(read_description(rest, config.url), config.timeout)
    from code_rl.audit.graders.function import Function

    if not rest:
        raise ConfigError(
            f"grader={config.grader} is none; use ours, fusion:URL, http:FILE.toml or package.module:function"
        )
    return Function(
        config.grader,
        config.shape,
        config.python or sys.executable,
        config.pays_at,
        config.timeout,
        max(config.concurrency, *config.numbers_at_once, 1),
        config.confine,
        config.takes,
    )


def _write(card: Scorecard, out: Path) -> None:
    from code_rl.audit.page import render
    from code_rl.runs.files import write_atomically

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "audit.json", json.dumps(card.to_json(), indent=1) + "\n")
        write_atomically(out / "audit.html", render(card))
    except OSError as error:
        raise ConfigError(f"out={out} cannot be written: {error.strerror or error}; choose another folder") from error
    print(f"card: {out / 'audit.html'}, {out / 'audit.json'}")
