"""Self-contained HTML pages of runs. A content security policy allows only the page's own scripts
and styles.

The rollouts of a run are packed in parts, which the viewer unpacks one at a time.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from markupsafe import Markup

from code_rl.training.report.overview import side_by_side
from code_rl.training.report.run import Place, RunReader, pack
from code_rl.training.report.text import render_text
from code_rl.util.errors import InputError
from code_rl.util.files import write_atomically
from code_rl.util.pages import STYLE, render_page
from code_rl.util.version import __version__

logger = logging.getLogger("code_rl")
REPORT = "report.html"
ASSETS = Path(__file__).parent / "assets"
VENDOR = ASSETS / "vendor"
SCRIPTS = (
    VENDOR / "uPlot.iife.min.js",
    ASSETS / "prism-manual.js",
    VENDOR / "prism-core.min.js",
    VENDOR / "prism-python.min.js",
    *(
        ASSETS / f"{name}.js"
        for name in ("dom", "source", "answer", "charts", "viewer", "sample", "app")
    ),
)
STYLES = (VENDOR / "uPlot.min.css", STYLE)


@functools.cache
def _asset(paths: tuple[Path, ...]) -> str:
    """Return the content of these files, one after the other, read once per process; its hash is in
    the page's policy."""
    return "\n".join(path.read_text(encoding="utf-8").strip() for path in paths) + "\n"


def policy() -> str:
    """Return the page's content security policy. It allows only the scripts and styles of this
    package, by their hashes, and no requests: the page shows untrusted programs."""
    return (
        f"default-src 'none'; script-src {_hash(_asset(SCRIPTS))}; style-src "
        f"{_hash(_asset(STYLES))}; img-src data:; connect-src 'none'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def write_report(
    readers: Sequence[RunReader], path: Path, live: bool = False
) -> list[dict[str, Any]]:
    """Write the page of one run, or of several side by side, for its owner only, and return their
    overviews. A `live` page reloads itself until the run has done its steps. After a crash the file
    has its old content or the new one. Raises ConfigError for more than eight runs, and OSError."""
    overviews = side_by_side(readers)
    live = live and not overviews[0]["progress"]["finished"]
    rollouts = [embedded_rollouts(reader) for reader in readers]
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    data = {"live": live, "made": made, "by": f"code-rl {__version__}", "runs": overviews}
    page = render_page(
        ASSETS / "page.html.j2",
        title=" and ".join(view["name"] for view in overviews),
        policy=policy(),
        style=Markup(_asset(STYLES)),  # noqa: S704 - files of this package
        script=Markup(_asset(SCRIPTS)),  # noqa: S704
        data=Markup(embed(data)),  # noqa: S704
        rollouts=[{"text": text, "table": Markup(table)} for text, table in rollouts],  # noqa: S704
        summary="\n\n".join(render_text(view) for view in overviews),
    )
    write_atomically(path, page)
    return overviews


class LivePage:
    """The page of a run in progress, which reloads itself. Writing it takes at most a twentieth of
    the run's time."""

    def __init__(self, log_path: Path) -> None:
        """Prepare the page `report.html` of the run in `log_path`; the first `update` writes it."""
        self._reader, self._due = RunReader(log_path), 0.0

    def update(self) -> None:
        """Write the page anew if it is due: after 20 times the seconds that the last one took. A
        page that cannot be written causes a warning and does not stop the run."""
        if time.monotonic() < self._due:
            return
        started = time.monotonic()
        try:
            self._reader.refresh()
            started = time.monotonic()  # a resumed run reads its earlier steps only once
            write_report([self._reader], self._reader.log_path / REPORT, live=True)
        except (OSError, InputError) as error:
            logger.warning("the page of the running run cannot be written: %s", error)
        ended = time.monotonic()
        self._due = ended + 20 * (ended - started)


def _hash(text: str) -> str:
    """Return the source expression of an inline script or style for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _index(reader: RunReader, groups: dict[Place, bytes]) -> dict[str, Any]:
    """Return columns of all indexed groups, sorted by (step, group): step, group, problem, verdict
    letters, and bits (1: the page has its text, 2: flagged). The viewer reads these names."""
    places = sorted(reader.index)
    rows = [reader.index[place] for place in places]
    return {
        "step": [step for step, _ in places],
        "group": [group for _, group in places],
        "problem": [row[0] for row in rows],
        "letters": [row[1] for row in rows],
        "bits": [(place in groups) + 2 * row[2] for place, row in zip(places, rows, strict=True)],
        "names": list(reader.problems),
    }


def embedded_rollouts(reader: RunReader) -> tuple[str, str]:
    """Return a run's rollouts for the page: one base64 text of deflated JSON, and a JSON table with
    the offset of each part.

    Parts begin at multiples of three bytes (four base64 characters), so each can be decoded alone.
    """
    raw, groups, index = bytearray(), reader.kept_groups(), reader.index
    problems = reader.problem_records({index[place][0] for place in groups if place in index})

    def append(part: bytes) -> list[int]:
        """Append one part, padded, and return its offset in base64 characters and its length in
        bytes."""
        start = len(raw) // 3 * 4
        raw.extend(part)
        raw.extend(b"\0" * (-len(raw) % 3))
        return [start, len(part)]

    table = {
        "index": append(pack(_index(reader, groups))),
        "groups": [[*place, *append(part)] for place, part in groups.items()],
        "problems": [[number, *append(part)] for number, part in problems.items()],
    }
    return base64.b64encode(bytes(raw)).decode("ascii"), embed(table)


def embed(value: Any) -> str:
    """Return JSON that is safe inside a script element: it cannot end the element or begin a
    comment."""
    text = orjson.dumps(value).decode("utf-8")
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
