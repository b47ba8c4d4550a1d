from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from code_rl.cli.main import main
from code_rl.grading.audit import Corpus
from tests.grading.audit.samples import short_programs

Audit = Callable[..., dict[str, Any]]


@pytest.fixture
def audit(tmp_path, monkeypatch) -> Audit:
    """`code-rl audit` on a sample of its programs; returns audit.json, and the page as `page`."""

    def run(grader: str, programs: Corpus | None = None, **settings: object) -> dict[str, Any]:
        out = tmp_path / "card"
        settings = {**({} if grader == "ours" else {"timeout": 60}), "grader": grader, "out": out, **settings}
        with monkeypatch.context() as patch:
            patch.setattr(Corpus, "share", lambda *_: programs or short_programs())
            code = main(["audit", *(f"{name}={value}" for name, value in settings.items())])
        card = json.loads((out / "audit.json").read_text())
        assert code == (0 if card["clean"] else 1)
        return {**card, "page": (out / "audit.html").read_text()}

    return run
