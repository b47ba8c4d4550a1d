"""The verb `judge`: verdicts for a file of programs on problems of any data set, in the programs'
order, in bounded memory. An interrupted run can continue."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

import chz

from code_rl.data import load_dataset, open_dataset
from code_rl.evaluation.programs import (
    Judged,
    JudgingView,
    check_programs,
    judge_programs,
)
from code_rl.grading.sandbox import check_executor, connect_executor
from code_rl.util.errors import ConfigError
from code_rl.util.options import SandboxOptions, option
from code_rl.util.outage import noted
from code_rl.util.settings import make_settings


@chz.chz
class JudgeConfig(SandboxOptions):
    """Judge programs: run each on its problem's tests in the sandbox, and write one verdict per
    line."""

    dataset: str = chz.field(doc="Problems: a file, folder or hub name, as train's dataset=.")
    programs: str = chz.field(
        doc="Programs, a JSON object per line: problem_id, program_id, and code or completion "
        "(its last fenced block is the program). Also .jsonl.gz, or a run's rollouts.jsonl."
    )
    out: str = chz.field(
        doc="File of verdicts, in the order of the programs. If it exists, only programs without "
        "a verdict in it are run."
    )
    dry_run: bool = option(False, "Check both files, print the plan, and stop.")

    @chz.validate
    def _distinct(self) -> None:
        """Raise ConfigError if `out` is compressed, or is a file that is read, also through a
        link."""
        if self.out.endswith((".gz", ".zst")):
            raise ConfigError(f"out={self.out}: verdicts are plain lines of JSON; name a .jsonl")
        for name in ("dataset", "programs"):
            if os.path.realpath(self.out) == os.path.realpath(getattr(self, name)):
                raise ConfigError(
                    f"out={self.out} would overwrite the file given as {name}; name another"
                )


def judge_command(given: Mapping[str, str]) -> int:
    """Run `code-rl judge` with its settings as text. Return 0 if every program got a decided
    verdict or for a dry run, else 1. Raises ConfigError and DataError for bad input, before a
    program is run."""
    config = make_settings(JudgeConfig, given)
    kept = f"the verdicts so far are in {config.out}; the same command goes on"
    with noted(lambda: kept if os.path.exists(config.out) else None):
        judged = asyncio.run(_run(config))
    return 0 if judged is None or judged.complete else 1


async def _run(config: JudgeConfig) -> Judged | None:
    """Judge the programs, or return None for a dry run, which runs and writes nothing. Raises
    ConfigError, before anything is written, if the sandbox cannot be used."""

    async with contextlib.aclosing(connect_executor(**config.connection)) as executor:
        store = await load_dataset(open_dataset(config.dataset), executor)
        total, languages = check_programs(config.programs, store, config.language)
        view = JudgingView()
        if config.dry_run:
            view.say(
                f"both files are sound: {total} programs on {len(store)} problems; nothing was run"
            )
            return None
        for language in sorted(languages):
            await check_executor(executor, language)
        view.say(f"{total} programs; {executor.description}")
        with view.judging(total) as on_verdict:
            judged = await judge_programs(
                store,
                config.programs,
                config.out,
                executor,
                language=config.language,
                cpu_limit_s=config.reward_timeout,
                on_verdict=on_verdict,
            )
        view.summary(judged, config.out)
        return judged
