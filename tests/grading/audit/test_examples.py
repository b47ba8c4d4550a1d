"""The two bad graders of examples/: each pays right answers, and the audit names its hole."""

from __future__ import annotations

import pytest

from tests.grading.audit.conftest import Audit
from tests.grading.audit.samples import short_programs
from tests.paths import ROOT

EXAMPLES = ROOT / "examples"
HOLES = {"grader_exec": "early exit", "grader_marker": "forged results"}


@pytest.mark.long
@pytest.mark.parametrize("name", HOLES)
def test_the_audit_names_the_hole_of_an_example(name: str, audit: Audit) -> None:
    programs = short_programs("early exit", "forged results", "mutant", each=8)
    found = audit(f"{EXAMPLES / name}.py:grade", programs, timeout=20)["findings"]
    assert any(HOLES[name] in finding for finding in found), found
    assert not any("mutant" in finding for finding in found), found


@pytest.mark.parametrize("name", HOLES)
def test_an_example_is_twenty_lines_of_code_at_most(name: str) -> None:
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 20
