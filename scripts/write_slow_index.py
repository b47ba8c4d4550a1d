"""Write docs/slow-tests.md: what each file of slow tests proves, how long it takes and how it ended, from the XML files that pytest wrote.

    pytest -m slow tests/walls --junitxml=build/walls.xml; python scripts/write_slow_index.py build/*.xml

The suite may be run in parts, an XML file each, in any order: of each test the newest run counts. One that no file holds, or that was
interrupted, is not run, and stands on the page as such.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "slow-tests.md"
ENDS = ("passed", "failed", "skipped", "not run")
HEAD = """# Slow tests

`make slow` runs what `make test` leaves out and writes this page anew (`scripts/write_slow_index.py`). One file: `pytest -m slow tests/test_fork.py`.
Seconds are those of the tests of a file one after the other, on the machine of that day. Skipped ones name what they lack.

| file | what it proves | passed | failed | skipped | not run | seconds | date |
|---|---|---:|---:|---:|---:|---:|---|
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """One test in one run: when the run began (ISO 8601), how the test ended (of `ENDS`), its seconds."""

    began: str
    end: str
    seconds: float


def read(xml_files: Iterable[str | Path]) -> dict[tuple[str, str], Ran]:
    """The newest run of each test, by the dotted path of its file and its name.

    A file that was skipped as a whole has one entry, with the name "". What was interrupted has no class name: it did not end.
    """
    found: dict[tuple[str, str], Ran] = {}
    for file in xml_files:
        for suite in ET.parse(file).getroot().iter("testsuite"):  # noqa: S314 - our own file
            began = suite.attrib["timestamp"]
            for case in suite.iter("testcase"):
                where, name = case.get("classname"), case.get("name", "")
                if where is None:
                    continue
                tags = {child.tag for child in case}
                end = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
                test = (where, name) if where else (name, "")
                before = found.get(test)
                # An error of the teardown is a second entry of its test, in the same run.
                if before is None or began > before.began or (began == before.began and end == "failed"):
                    found[test] = Ran(began, end, float(case.get("time", 0)))
    return found


def slow_tests() -> dict[str, list[str]]:
    """The names of the slow tests, by file; none for a file that cannot be collected here, for want of a package."""
    command = [sys.executable, "-m", "pytest", "-m", "slow", "--collect-only", "-q"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {
        str(path.relative_to(ROOT)): []
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.slow" in path.read_text(encoding="utf-8")
    }
    for line in listed.splitlines():
        path, separator, name = line.partition("::")
        if separator:
            found.setdefault(path, []).append(name)
    return found


def proves(path: str) -> str:
    """The first sentence of a file of tests."""
    said = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
    return " ".join(said.partition("\n\n")[0].split()).replace("|", "\\|")


def page(tests: Mapping[str, list[str]], ran: Mapping[tuple[str, str], Ran]) -> str:
    """The page: a row for each file, and below it each test that was not run."""
    rows, left = [], defaultdict[str, list[str]](list)
    for path in sorted(tests):
        where = path.removesuffix(".py").replace("/", ".")
        # Names of tests that the file no longer has, or that are slow no longer, are left out.
        its = [ran.get((where, name)) for name in tests[path] or [""]]
        counts = Counter(one.end if one else "not run" for one in its)
        days = sorted(one.began[:10] for one in its if one)
        left[path] = [name for name, one in zip(tests[path], its, strict=False) if one is None]
        date = "" if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        seconds = f"{sum(one.seconds for one in its if one):.0f}" if days else ""
        cells = [f"`{path}`", proves(path), *(counts[end] for end in ENDS), seconds, date]
        rows.append(f"| {' | '.join(map(str, cells))} |\n")
    missing = [f"- `{path}`: {', '.join(f'`{name}`' for name in names)}\n" for path, names in left.items() if names]
    return HEAD + "".join(rows) + ("\n## Not run\n\n" + "".join(missing) if missing else "")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(slow_tests(), read(sys.argv[1:])), encoding="utf-8")


if __name__ == "__main__":
    main()
