"""The documents: links lead somewhere, commands exist with the settings they name, generated pages are current."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chz
import pytest

import code_rl
from code_rl.cli.main import VERBS, main, run_verb
from code_rl.engine.losses import LOSSES
from code_rl.training import read_metrics
from code_rl.training.algorithm.metrics import METRICS
from code_rl.util.settings import read_arguments
from tests.paths import ROOT
from tests.training.pipeline_support import small
from tests.verbs import train_command

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_within_the_project_leads_somewhere(page):
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_can_be_reached_from_the_index():
    reached, ahead = set(), [ROOT / "docs" / "README.md"]
    while ahead:
        page = ahead.pop()
        if page not in reached and page.suffix == ".md" and page.is_file():
            reached.add(page)
            ahead += [(page.parent / target.partition("#")[0]).resolve() for target in LINK.findall(page.read_text())]
    assert set((ROOT / "docs").glob("*.md")) <= reached


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command in a fenced block that is not of another language, and of those in a line of text or a table."""
    text = page.read_text()
    blocks = [body for language, body in FENCE.findall(text) if language in ("", "bash", "sh", "console")]
    lines = [line for body in blocks for line in body.replace("\\\n", " ").splitlines()]
    for line in [*lines, *SPAN.findall(FENCE.sub("", text))]:
        line = re.sub(r"\s#\s.*$", "", line).removeprefix("$ ").strip()
        if re.match(r"([A-Z_]+=\S+ )*(\S*/)?(code-rl|python3?|pytest|make)\s", line):
            yield [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S+", word)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_exists_with_the_settings_it_names(page):
    for words in commands(page):
        program, *rest = words
        rest = [word for word in rest if word not in ("&", "…")]
        if Path(program).name == "make":
            assert all(re.search(rf"^{word}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for word in rest), words
        elif Path(program).name == "code-rl":
            check_settings(rest[0], rest[1:], words)
        elif rest[0].endswith(".py") and not rest[0].startswith("/"):
            assert (ROOT / rest[0]).is_file(), words
            if rest[0] == "train.py":
                check_settings("train", [word for word in rest[1:] if word != "main"], words)
        elif Path(program).name == "pytest":
            assert all((ROOT / word).exists() for word in rest if word.startswith("tests")), words


def check_settings(verb: str, rest: list[str], words: list[str]) -> None:
    if verb in ("VERB", "--version", "--help"):
        return
    assert verb in VERBS, words
    given = read_arguments([word for word in rest if word not in ("--help", "KEY=VALUE", "key=value", "…")])
    known = set(chz.chz_fields(VERBS[verb].settings_class()))
    if verb == "controls":  # takes the settings of train as well
        known |= set(chz.chz_fields(VERBS["train"].settings_class()))
    assert not set(given) - known, (words, set(given) - known)


HARMLESS = ("dry_run=true", "--help", "--version", "list")
"""Words of a command that only shows something."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_only_show_something_run_as_written(page, tmp_path, monkeypatch, capsys):
    shown = [
        words
        for words in commands(page)
        if set(words) & set(HARMLESS) and not re.search(r"[A-Z]{4,}|…", " ".join(words[1:]))
    ]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODE_RL_DATA", str(tmp_path / "data"))
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "prices.toml").write_text("[price]\nprefill = 0.1\nsample = 0.4\ntrain = 0.3\n")
    for program, *rest in shown:
        if Path(program).name == "code-rl":
            assert main(rest) == 0, (rest, capsys.readouterr().err)
        elif rest[0] == "train.py":
            assert run_verb("train", rest[1:], "python train.py") == 0, (rest, capsys.readouterr().err)


OBJECT = re.compile(r"`code_rl\.([\w.]+):([\w.]+)`")
TEST = re.compile(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`")
FILE = re.compile(r"`((?:src/code_rl/)?[a-z_]+(?:/[\w]+)*/?(?:\.py)?)`")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_object_and_test_that_a_page_names_exists(page):
    text = page.read_text()
    for module, path in OBJECT.findall(text):
        found = importlib.import_module(f"code_rl.{module}")
        for part in path.split("."):
            found = getattr(found, part)
    for path, name in TEST.findall(text):
        assert (ROOT / path).is_file(), path
        assert not name or f"def {name}(" in (ROOT / path).read_text(), (path, name)


def test_the_files_of_the_tree_are_those_that_contributing_names():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("\nImports")[0]
    named = {
        name.strip("/")
        for row in table.splitlines()
        if row.startswith("| `")
        for name in FILE.findall(row.split("|")[1])
    }
    package = ROOT / "src" / "code_rl"
    parts = {path.name for path in package.iterdir() if path.suffix == ".py" or any(path.glob("*.*"))}
    assert parts - {"__init__.py", "__pycache__", "loop.py"} <= named  # the page itself stands above the table
    assert all((package / name).exists() or (ROOT / name).exists() for name in named)


def test_what_is_generated_is_current():
    for page, text in runpy.run_path(str(ROOT / "scripts" / "write_settings.py"))["pages"]().items():
        assert page.read_text() == text, f"{page} is not: run python scripts/write_settings.py"


SERVE = ROOT / "docs" / "serve.md"


def test_the_losses_and_defaults_of_a_server_are_those_of_its_registry_and_settings():
    (about,) = re.findall(r"^- \*\*Losses\.\*\*(.*?)\(\[losses/\]", SERVE.read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", about) == list(LOSSES)
    defaults = re.findall(r"`(\w+)=?` \(`?(~?[\w./-]+)`?\)", SERVE.read_text())
    assert {"max_models", "idle_s", "state_dir"} <= dict(defaults).keys()
    for name, value in defaults:
        default = chz.chz_fields(VERBS["serve"].settings_class())[name]._default
        assert value == (default if isinstance(default, str) else f"{default:g}"), name


NEW_PARTS = """
import dataclasses, runpy, sys
from code_rl.engine import losses
from code_rl.policy import environments, rewards
from code_rl.policy import prompt_templates
from code_rl.training.algorithm import advantages
losses.POLICY_LOSSES["new_loss"] = dataclasses.replace(losses.POLICY_LOSSES["ppo"], name="new_loss")
for ours in (advantages.ESTIMATORS, rewards.REWARDS, environments.ENVIRONMENTS, prompt_templates.PROMPTS):
    ours["new_part"] = next(iter(ours.values()))
from code_rl.cli.main import main
main(["train", "--help"]), main(["eval", "--help"]), main(["train", "clip_low=0.1"])
print(*runpy.run_path("scripts/write_settings.py")["pages"]().values())
"""


@pytest.mark.long
def test_a_part_that_is_registered_is_in_help_refusals_and_documents():
    done = subprocess.run([sys.executable, "-c", NEW_PARTS], cwd=ROOT, capture_output=True, text=True, check=True)
    helped, _, documents = done.stdout.partition("# Settings")
    train, _, evaluate = helped.partition("usage: code-rl eval")
    assert train.count("new_part") == 4
    assert "new_loss, or" in train
    assert "0.2 for new_loss" in train
    assert evaluate.count("new_part") == 2
    assert "or loss=new_loss" in done.stderr
    assert documents.count("| `new_part` |") == 2
    assert "| `new_loss` |" in documents


@pytest.mark.slow
def test_every_metric_that_a_run_logs_is_declared(tmp_path):
    more = {"environment": "repair", "kl_coef": "0.01", "loss": "ppo", "dynamic_sampling": "1", "overlong": "mask"}
    lengths = {"max_tokens_schedule": "0:24,1:128", "max_tokens": "128"}
    settings = small(
        tmp_path / "run", max_steps=2, eval_every=1, eval_limit=2, max_steps_off_policy=1, **more, **lengths
    )
    assert train_command(settings) == 0
    logged = {name for record in read_metrics(tmp_path / "run") for name in record}
    declared = [metric.name for metric in METRICS]
    assert [
        name for name in sorted(logged - {"step"}) if not any(fnmatch.fnmatch(name, each) for each in declared)
    ] == []
    assert {"kl_reference", "clip_fraction", "turns", "stage", "optim/grad_norm", "eval/pass@k"} <= logged
    assert any(name.startswith("masked/") for name in logged)


NEED_THEIR_FRAMEWORK = {
    f"code_rl.integrations.{name}" for name in ("harbor", "nemo_gym", "openenv", "tinker_cookbook", "verifiers")
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_snippet_takes_from_the_library_is_there(page):
    for language, body in FENCE.findall(page.read_text()):
        if language == "python":
            for node in ast.walk(ast.parse(body)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("code_rl"):
                    if node.module in NEED_THEIR_FRAMEWORK:
                        module = ROOT / "src" / Path(*node.module.split(".")).with_suffix(".py")
                        defined = {getattr(each, "name", "") for each in ast.parse(module.read_text()).body}
                        assert {alias.name for alias in node.names} <= defined
                        continue
                    assert all(hasattr(importlib.import_module(node.module), alias.name) for alias in node.names)
                elif (
                    isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "code_rl"
                ):
                    assert hasattr(code_rl, node.attr)


@pytest.mark.slow
def test_the_snippets_of_the_library_run_as_in_a_notebook(tmp_path):
    notebook = [sys.executable, str(ROOT / "tests" / "notebook.py"), str(ROOT / "docs" / "library.md")]
    environment = {**os.environ, "CODE_RL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(notebook, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_the_examples_of_parts_of_ones_own_are_those_that_are_tested():
    tested = ast.parse((ROOT / "tests" / "newcomer.py").read_text())
    known = {ast.unparse(node) for node in tested.body}
    imported = {name for node in tested.body if isinstance(node, ast.ImportFrom) for name in sources(node)}
    shown: list[str] = []
    for language, body in FENCE.findall((ROOT / "docs" / "extending.md").read_text()):
        if language == "python":
            exec(compile(body, "extending.md", "exec"), {"__name__": "extending"})  # complete as it stands
            for node in ast.parse(body).body:
                if isinstance(node, ast.ImportFrom):
                    assert set(sources(node)) <= imported | {("__future__", "annotations")}
                elif not isinstance(node, ast.Import):
                    assert ast.unparse(node) in known
                    shown.append(getattr(node, "name", ""))
    assert {"_reinforce", "median", "concise", "frontier", "short", "graded", "brief", "Twice"} <= set(shown)


def sources(node: ast.ImportFrom) -> list[tuple[str, str]]:
    return [(node.module or "", alias.name) for alias in node.names]
