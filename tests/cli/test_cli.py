"""The command line as a user meets it: real processes, exit codes, one line on stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest

from code_rl import __version__
from code_rl.cli.main import VERBS, main
from code_rl.util.errors import DISTRIBUTION, install_command
from tests.paths import ROOT
from tests.refusals import one_line
from tests.training.pipeline_support import small


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """`python train.py` with these words."""
    return subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["learning_rat=1"], "'learning_rate'"),
        (["sandbox_concurrency=few"], "sandbox_concurrency='few'"),
        (["stray"], "'stray'"),
        (["dataset=missing.jsonl"], "dataset=missing.jsonl"),
        (["dataset=deepcodr"], "'deepcoder'"),
        (["log_path=/proc/nothing/here"], "log_path=/proc/nothing/here"),
        (["log_path=train.py"], "log_path=train.py"),
        (["isolation=strong"], "isolation='strong'"),
        (["executor=localhost"], "executor"),
    ],
)
def test_bad_settings_are_one_clear_line_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    assert main(["train", *words]) == 2
    one_line(capsys, message)


LONG = "x" * 300
PATHS = [
    "report log_path=", "report log_path=RUN compare=", "report log_path=RUN out=",
    "export out=out checkpoint=", "export checkpoint=P.jsonl out=", "eval model_name=reference benchmark=",
    "eval model_name=reference benchmark=mbpp data=", "eval model_name=reference benchmark=P.jsonl out=", "eval benchmark=P.jsonl samples=",
    "judge out=out programs=P.jsonl dataset=", "judge out=out dataset=P.jsonl programs=", "judge dataset=P.jsonl programs=Q.jsonl out=",
    "prepare out=out dataset=", "prepare dataset=P.jsonl out=", "train dataset=", "train log_path=", "train log_path=out init_from=", "train log_path=out prices=",
    "serve models=", "serve port=0 state_dir=", "audit grader=ours out=",
]  # fmt: skip


@pytest.mark.parametrize("words", PATHS)
def test_a_path_that_no_system_takes_is_one_clear_line_that_names_its_setting(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "cache"))
    problem = {
        "id": "a",
        "statement": "Say 1.",
        "tests": [{"kind": "stdin", "input": "", "expected": "1"}],
        "solutions": ["print(1)"],
    }
    (tmp_path / "P.jsonl").write_text(json.dumps(problem) + "\n")
    (tmp_path / "Q.jsonl").write_text('{"problem_id": "a", "program_id": "1", "code": "print(1)"}\n')
    (tmp_path / "RUN").mkdir()
    (tmp_path / "RUN" / "metrics.jsonl").write_text('{"step": -1}\n')
    assert main((words + LONG).split()) == 2
    error = one_line(capsys, LONG[:80])
    assert words.split()[-1] in error or words.endswith("programs=")


@pytest.mark.long
def test_a_process_says_it_alike():
    result = call("log_path=train.py")
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("error: ")


def test_a_python_without_the_installation_says_so_in_one_line():
    done = subprocess.run([sys.executable, "-S", "-E", ROOT / "train.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert sys.executable in done.stderr


@pytest.mark.parametrize(
    ("setting", "rows"), [("test_dataset", None), ("test_dataset", '{"id": 1}\n'), ("dataset", '{"id": 1}\n')]
)
def test_the_setting_of_a_set_that_fails_is_named(setting, rows, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    if rows is not None:
        path.write_text(rows)
    settings = small(tmp_path / "run", eval_every=0, **{setting: path})
    assert main(["train", *(f"{name}={value}" for name, value in settings.items())]) == 2
    assert f" {setting}={path}" in one_line(capsys)


def test_unknown_verb_gets_a_suggestion(capsys):
    assert main(["trian"]) == 2
    one_line(capsys, "unknown verb 'trian', did you mean 'train'?")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: code-rl {verb}" in shown
    assert "settings:" in shown


@pytest.mark.parametrize("module", ["code_rl.cli", "train"])
def test_help_loads_neither_torch_nor_tinker(module):
    words = ["--help"] if module == "train" else ["train", "--help"]
    script = (
        f"import sys; sys.argv = ['x', *{words!r}]; from code_rl.cli.main import main, run_verb; "
        + ("run_verb('train', ['--help'], 'x')" if module == "train" else "main()")
        + "; print(sorted({'torch', 'tinker', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("[]")


@pytest.mark.parametrize("words", [["train.py", "--help"], ["-m", "code_rl.cli", "--help"]])
def test_help_for_a_reader_who_has_seen_enough_is_no_traceback(words):
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, *words], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "")


def test_version(capsys):
    for words in (["--version"], ["train", "--version"]):
        assert main(words) == 0
        assert capsys.readouterr().out == f"code-rl {__version__}\n"
    result = call("--version")
    assert (result.returncode, result.stdout) == (0, f"code-rl {__version__}\n")


def test_what_installs_an_extra_installs_this_package():
    """`code-rl` on the index is another project: no page and no message may send anybody there."""
    clone = install_command("data")
    assert clone == f"{sys.executable} -m pip install -e '{ROOT}[data]'"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION != "code-rl"
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("scripts/*.py")]
    named = re.compile(r"install [^\n`]*code-rl(?!-grpo)\b")
    assert not [str(file) for file in files if named.search(file.read_text())]
