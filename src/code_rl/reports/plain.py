"""Pages without script: what `prepare` kept, what an audit found. Drawn from the templates in `assets/` that extend `plain.html.j2`."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment() -> Environment:
    loader = PackageLoader("code_rl", "reports/assets")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render_plain(template: str, **values: Any) -> str:
    """One HTML file that needs nothing else."""
    return _environment().get_template(template).render(**values)
