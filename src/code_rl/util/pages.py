"""Single-file HTML pages from templates: values are escaped, undefined names are errors."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

STYLE = Path(__file__).with_name("style.css")
"""The style that all pages share."""


@functools.cache
def _environment(folder: Path) -> Environment:
    """Return jinja2 for the templates of `folder`, with autoescaping and strict names."""
    loader = FileSystemLoader([folder, Path(__file__).parent])
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_page(template: Path, **values: Any) -> str:
    """Return a self-contained HTML page as text; a template may extend `plain.html.j2`. All values
    are escaped. Raises jinja2's UndefinedError if the template uses a value that is not given."""
    return _environment(template.parent).get_template(template.name).render(**values)
