"""The card as one page."""

from __future__ import annotations

from datetime import date

from code_rl import __version__
from code_rl.audit.checklist import Checklist
from code_rl.audit.scorecard import Scorecard
from code_rl.reports.page import render_plain


def render(card: Scorecard | Checklist) -> str:
    """HTML that needs nothing else."""
    made = date.today().isoformat()  # noqa: DTZ011
    template = "audit.html.j2" if isinstance(card, Scorecard) else "checks.html.j2"
    return render_plain(template, card=card, findings=card.findings(), version=__version__, made=made)
