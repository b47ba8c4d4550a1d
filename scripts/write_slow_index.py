"""Write docs/slow-tests.md: what each file of slow tests proves, how long it takes and how it ended, from the XML files that pytest wrote.

    pytest -m slow --junitxml=build/slow.xml; python scripts/write_slow_index.py build/slow.xml

A file that was run more than once counts as in the last XML file that has it; one that was not run is named as such.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "slow-tests.md"
HEAD = """# Slow tests

`make slow` runs what `make test` leaves out and writes this page anew (`scripts/write_slow_index.py`). One file: `pytest -m slow tests/…`.
Seconds are those of the tests of a file one after the other, on the machine of that day. Skipped ones name what they lack.

| file | what it proves | passed | failed | skipped | seconds | date |
|---|---|---:|---:|---:|---:|---|
"""


@dataclass
class Ran:
    """How the slow tests of one file ended."""

    date: str
    ends: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def read(xml_files: Iterable[str]) -> dict[str, Ran]:
    """The files that were run, by path from the root."""
    found: dict[str, Ran] = {}
    for name in xml_files:
        here: dict[str, Ran] = {}
        for suite in ET.parse(name).getroot().iter("testsuite"):  # noqa: S314 - our own file
            for case in suite.iter("testcase"):
                path = case.attrib["classname"].replace(".", "/") + ".py"
                ran = here.setdefault(path, Ran(suite.attrib["timestamp"][:10]))
                ends = {child.tag for child in case}
                ran.ends["failed" if ends & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"] += 1
                ran.seconds += float(case.attrib["time"])
        found |= here
    return found


def slow_files() -> list[str]:
    """The files that have slow tests."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "--collect-only", "-q"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({line.partition("::")[0] for line in listed.splitlines() if "::" in line})


def proves(path: str) -> str:
    """The first sentence of a file of tests."""
    said = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")


def main() -> None:
    """Write the page."""
    ran, rows = read(sys.argv[1:]), []
    for path in slow_files():
        it = ran.get(path)
        counts = [it.ends[end] for end in ("passed", "failed", "skipped")] if it else ["", "", ""]
        rows.append(
            [f"`{path}`", proves(path), *counts, f"{it.seconds:.0f}" if it else "", it.date if it else "not run"]
        )
    PAGE.write_text(HEAD + "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
