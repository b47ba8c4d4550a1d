"""Audit the pinned dependencies with pip-audit, in an environment of its own: `python scripts/audit.py`, or `make audit`.

Exit code 1 for a vulnerability that `audit-accepted.txt` does not list (`ID  reason`, one a line), else 0. Without the network nothing can be
audited; that is said, and is no failure.
"""

from __future__ import annotations

import json
import re
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

import chz

from code_rl.cli.main import run_script
from code_rl.util.errors import CodeRLError, ConfigError

ROOT = Path(__file__).parent.parent
PINNED = "pip-audit==2.10.1"
LIMIT_S = 300
OFFLINE = re.compile(
    r"connection|max retries|timed? ?out|resolve|unreachable|no matching distribution|serviceerror|50[234]|404",
    re.IGNORECASE,
)


@chz.chz
class Audit:
    """Settings of the audit."""

    requirements: Path = chz.field(default=ROOT / "requirements-dev.txt", doc="What is audited: a pinned set.")
    accepted: Path = chz.field(default=ROOT / "audit-accepted.txt", doc="Vulnerabilities that are known and accepted.")
    tool: Path = chz.field(
        default=ROOT / ".venv" / "audit" / "bin" / "pip-audit",
        doc="pip-audit; installed beside the other tools if missing.",
    )


@dataclass(frozen=True, slots=True)
class Vulnerability:
    """One finding."""

    package: str
    ids: tuple[str, ...]
    fixed_in: tuple[str, ...]

    def __str__(self) -> str:
        fixed = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no fix yet"
        return f"{self.package}: {self.ids[0]} ({fixed})"


class OfflineError(CodeRLError):
    """The audit could not be made: no network."""


def main(settings: Audit) -> int:
    """Audit, and print the finds."""
    accepted = read_accepted(settings.accepted)
    try:
        count, found = audit(settings)
    except OfflineError as error:
        print(f"not audited: offline ({error})")
        return 0
    unlisted = [each for each in found if not accepted.keys() & set(each.ids)]
    for each in found:
        reasons = [accepted[name] for name in each.ids if name in accepted]
        print(f"{each}" + (f": accepted, {reasons[0]}" if reasons else ""))
    for name in sorted(accepted.keys() - {name for each in found for name in each.ids}):
        print(f"{settings.accepted.name} lists {name}, which is not found any more: remove the line")
    print(f"{count} packages audited: {len(found)} vulnerabilities, {len(unlisted)} of them not accepted")
    return 1 if unlisted else 0


def read_accepted(path: Path) -> dict[str, str]:
    """Accepted identifiers with their reasons. Raises ConfigError for a line without a reason."""
    accepted = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.strip() and not line.startswith("#"):
            name, _, reason = line.strip().partition(" ")
            if not reason.strip():
                raise ConfigError(f"{path}: {name} is accepted without a reason; write one behind it")
            accepted[name] = reason.strip()
    return accepted


def audit(settings: Audit) -> tuple[int, list[Vulnerability]]:
    """Return the number of packages and their known vulnerabilities. Raises OfflineError, or CodeRLError for any other failure."""
    if not settings.tool.exists():
        install(settings.tool)
    command = [
        str(settings.tool),
        *(word for each in pinned_sets(settings.requirements) for word in ("--requirement", str(each))),
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
    ]
    done = call([*command, "--progress-spinner", "off", "--timeout", "15"])
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise trouble("pip-audit", done) from None
    found = [
        Vulnerability(
            f"{each['name']} {each['version']}", (known["id"], *known.get("aliases", [])), tuple(known["fix_versions"])
        )
        for each in packages
        for known in each.get("vulns", [])
    ]
    return len(packages), found


def pinned_sets(path: Path) -> list[Path]:
    """The file and those that it includes; pip-audit, told to resolve nothing, does not follow `-r`."""
    included = [line.removeprefix("-r ").strip() for line in path.read_text().splitlines() if line.startswith("-r ")]
    return [path, *(path.parent / each for each in included)]


def install(tool: Path) -> None:
    """Put pip-audit into an environment of its own. Raises OfflineError when it cannot be had."""
    folder = tool.parent.parent
    venv.create(folder, with_pip=True)
    done = call(
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PINNED]
    )
    if done.returncode:
        raise trouble(f"installing {PINNED}", done)


def call(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises OfflineError when it does not end."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise OfflineError(f"{Path(command[0]).name} did not end within {LIMIT_S} s") from None


def trouble(what: str, done: subprocess.CompletedProcess[str]) -> CodeRLError:
    """The error for a failed command: the last line that it said, offline or not."""
    said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1][:300]
    kind = OfflineError if OFFLINE.search(done.stderr) else CodeRLError
    return kind(f"{what}: {said}")


if __name__ == "__main__":
    run_script(Audit, main, __doc__ or "")
