"""Pages from templates: single-file HTML with escaped values, or plain text. Undefined names are
errors."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

STYLE = Path(__file__).with_name("style.css")
"""The style that all pages share."""


@functools.cache
def _environment(folder: Path, *, html: bool = True) -> Environment:
    loader = FileSystemLoader([folder, Path(__file__).parent])
    return Environment(
        loader=loader,
        autoescape=html,  # noqa: S701
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_page(template: Path, **values: Any) -> str:
    """Return a self-contained HTML file; a template may extend `plain.html.j2`."""
    return _environment(template.parent).get_template(template.name).render(**values)


def render_text(template: Path, **values: Any) -> str:
    """Return a Markdown file. The filter `cell` makes foreign text safe for a line or a cell."""
    environment = _environment(template.parent, html=False)
    environment.filters["cell"] = markdown_cell
    return environment.get_template(template.name).render(**values)


def markdown_cell(text: object) -> str:
    """Return a text on one line, with the characters escaped that mean something in Markdown."""
    return re.sub(r"([\\`*\[\]<>|])", r"\\\1", " ".join(str(text).split()))
