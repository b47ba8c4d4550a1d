"""A release says one version everywhere, and its hooks run the tools that `make` runs."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from code_rl import __version__
from tests.paths import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def load(path):
    return yaml.safe_load(path.read_text())


def test_the_newest_version_of_the_changelog_is_that_of_the_package():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert versions[0] == __version__
    sections = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert {*sections} <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_has_the_version_date_and_license_of_the_release():
    citation = load(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == __version__
    assert citation["license"] == project["license"]
    assert f"## [{__version__}] - {citation['date-released']}" in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_run_the_pinned_tools_as_make_does():
    makefile = (ROOT / "Makefile").read_text().replace("$(BIN)", ".venv/bin")
    hooks = [hook for repository in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "import-linter", "mypy"}
    for hook in hooks:
        assert re.search(rf"^\t{re.escape(hook['entry'])}$", makefile, re.MULTILINE), hook["entry"]
        assert hook["language"] == "system"


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "config.yml"], ids=lambda form: form.stem)
def test_an_issue_form_has_what_github_requires(form):
    parsed = load(form)
    assert {"name", "description", "body"} <= parsed.keys()
    fields = [part for part in parsed["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields) > 0
    assert all(part["attributes"]["label"] for part in fields)
