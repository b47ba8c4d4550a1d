"""The page: one HTML file with everything in it, under a policy that lets only its own scripts and styles run."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from code_rl import __version__
from code_rl.reports.book import embed, make_book, shelved
from code_rl.reports.overview import side_by_side
from code_rl.reports.run import RunReader
from code_rl.reports.text import summary
from code_rl.runs.files import write_atomically

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "vendor/uPlot.iife.min.js", "prism-manual.js", "vendor/prism-core.min.js", "vendor/prism-python.min.js",
    "dom.js", "source.js", "answer.js", "charts.js", "viewer.js", "sample.js", "app.js",
)  # fmt: skip
STYLES = ("vendor/uPlot.min.css", "style.css")


@functools.cache
def _asset(names: tuple[str, ...]) -> str:
    text = "\n".join((ASSETS / name).read_text(encoding="utf-8").strip() for name in names) + "\n"
    if "</script" in text.lower() or "</style" in text.lower():
        raise AssertionError("an asset would end its own element")
    return text


def policy(live: bool) -> str:
    """The page's content security policy: only the scripts and styles with these hashes; nothing is fetched, or only from its server."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {_hash(_asset(SCRIPTS))}; style-src {_hash(_asset(STYLES))}; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def render(readers: Sequence[RunReader], live: bool = False) -> str:
    """The page of one run, or of several side by side. `live`: rollouts and news are asked of the server that sent the page."""
    overviews = side_by_side(readers)
    books = [] if live else [shelved(make_book(reader)) for reader in readers]
    environment = Environment(loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html.j2").render(
        title=" and ".join(view["name"] for view in overviews),
        policy=policy(live),
        style=Markup(_asset(STYLES)),  # noqa: S704 - files of this package
        script=Markup(_asset(SCRIPTS)),  # noqa: S704
        data=Markup(embed({"live": live, "made": _now(), "by": f"code-rl {__version__}", "runs": overviews})),  # noqa: S704
        books=[{"text": text, "table": Markup(table)} for text, table in books],  # noqa: S704
        summary="\n\n".join(summary(view) for view in overviews),
    )


def write_report(readers: Sequence[RunReader], path: Path) -> None:
    """Write the page. A crash leaves the old file or the new one."""
    write_atomically(path, render(readers))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
