"""The card as one page, drawn by the hand of `prepare`'s."""

from __future__ import annotations

from datetime import date

from jinja2 import Environment, PackageLoader, StrictUndefined

from code_rl import __version__
from code_rl.audit.checklist import Checklist
from code_rl.audit.scorecard import Scorecard


def render(card: Scorecard | Checklist) -> str:
    """HTML that needs nothing else."""
    environment = Environment(
        loader=PackageLoader("code_rl", "reports/assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("audit.html.j2" if isinstance(card, Scorecard) else "checks.html.j2")
    return template.render(card=card, findings=card.findings(), version=__version__, made=date.today().isoformat())  # noqa: DTZ011
