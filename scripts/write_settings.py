"""Write docs/settings.md (every verb's settings and every recipe), docs/metrics.md and the table of docs/backends.md, from what defines them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import chz

from code_rl.algorithm import metrics
from code_rl.backends.support import BEGIN, END, table
from code_rl.cli import VERBS
from code_rl.config import RECIPES

DOCS = Path(__file__).parent.parent / "docs"
PAGE, METRICS, BACKENDS = DOCS / "settings.md", DOCS / "metrics.md", DOCS / "backends.md"
HEAD = """# Settings

Generated from the settings' own definitions by `python scripts/write_settings.py`; `code-rl VERB --help` shows the same. `key=value`, `--key=value` and `--key value` mean
the same everywhere.
"""
METRICS_HEAD = """# Metrics

Generated from `algorithm/metrics.py` by `make docs`. A line of `metrics.jsonl` has `step` and those of these that belong to it; null where there is nothing to take a mean of. `*` stands for a name: a
verdict, a reason, a split, a number. The line of step −1 is the evaluation before training; later ones carry `eval/…` where one was due.
"""


def metrics_page() -> str:
    """Every metric of a run."""
    return f"{METRICS_HEAD}\n{metrics.table()}\n"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(verb_section, VERBS), recipes_section()]).rstrip() + "\n"


def verb_section(name: str) -> str:
    """One verb's table of settings."""
    rows = []
    for field, described in chz.chz_fields(VERBS[name].settings_class()).items():
        default = described._default
        shown = "required" if type(default).__name__ == "MISSING_TYPE" else f"`{default}`"
        rows.append(f"| `{field}` | {cell(shown)} | {cell(described._doc)} |")
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{VERBS[name].summary.capitalize()}.",
            "",
            "| setting | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def recipes_section() -> str:
    """What each recipe sets."""
    lines = [
        "## Recipes",
        "",
        "`recipe=NAME` sets several at once; what is written beside it wins.",
        "",
        "| recipe | sets |",
        "|---|---|",
    ]
    for path in sorted(RECIPES.glob("*.toml")):
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        lines.append(f"| `{path.stem}` | {cell(', '.join(f'`{name}={value}`' for name, value in values.items()))} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text as the content of a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    METRICS.write_text(metrics_page(), encoding="utf-8")
    before, _, rest = BACKENDS.read_text(encoding="utf-8").partition(BEGIN)
    BACKENDS.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(f"wrote {PAGE}, {METRICS} and {BACKENDS}", file=sys.stderr)
