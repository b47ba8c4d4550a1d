"""The card as one page."""

from __future__ import annotations

from datetime import date

from code_rl import __version__
from code_rl.grading.audit.scorecard import Scorecard
from code_rl.training.report.page import render_plain


def render(card: Scorecard) -> str:
    """HTML that needs nothing else."""
    made = date.today().isoformat()  # noqa: DTZ011
    return render_plain("audit.html.j2", card=card, findings=card.findings(), version=__version__, made=made)
