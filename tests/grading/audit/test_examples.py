"""The two bad graders of examples/: each pays right answers, and the audit names its hole."""

from __future__ import annotations

import contextlib

import pytest

from code_rl.cli.audit import AuditConfig, open_grader
from code_rl.grading.audit import Corpus, audit_grader, load_corpus
from code_rl.util.concurrency import wait_for
from code_rl.util.settings import make_settings
from tests.paths import ROOT

EXAMPLES = ROOT / "examples"
HOLES = {"grader_exec": "early exit", "grader_marker": "forged results"}


def corpus(*groups: str) -> Corpus:
    """Some programs on stdin of some classes."""
    whole, kept = load_corpus(), []
    for group in groups:
        members = [entry for entry in whole.entries if entry.group == group and not entry.problem.calls]
        kept += members[:: max(1, len(members) // 8)]
    return Corpus(whole.version, tuple(kept))


@pytest.mark.long
@pytest.mark.parametrize("name", HOLES)
def test_the_audit_names_the_hole_of_an_example(name):
    config = make_settings(AuditConfig, {"grader": f"{EXAMPLES / name}.py:grade", "timeout": 20.0})

    async def run() -> list[str]:
        async with contextlib.aclosing(open_grader(config)) as grader:
            card = await audit_grader(grader, corpus("early exit", "forged results", "mutant"), 2, print)
        return card.findings()

    found = wait_for(run())
    assert any(HOLES[name] in finding for finding in found), found
    assert not any("mutant" in finding for finding in found), found


@pytest.mark.parametrize("name", HOLES)
def test_an_example_is_twenty_lines_of_code_at_most(name):
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20
