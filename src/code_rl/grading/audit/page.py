"""The scorecard as one HTML page."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from code_rl.grading.audit.scorecard import Scorecard
from code_rl.util.pages import render_page
from code_rl.util.version import __version__


def render(card: Scorecard) -> str:
    """Return the scorecard as self-contained HTML."""
    made = date.today().isoformat()  # noqa: DTZ011
    return render_page(
        Path(__file__).with_name("audit.html.j2"),
        card=card,
        findings=card.findings(),
        version=__version__,
        made=made,
    )
