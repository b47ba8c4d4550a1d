"""Keys reach no file, log, error or report; run directories are private; the audit reports its finds."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import runpy
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.cli.main import main
from code_rl.training.config import make_config
from tests.paths import ROOT
from tests.refusals import refused
from tests.training.pipeline_support import small
from tests.verbs import train_command
from tinker_utils.log import setup_logging

KEY = "tml-Kq8vXw2LmZ5tRn7B"
PASSWORD = "correct-horse-battery"
SECRETS = {
    "TINKER_API_KEY": KEY,
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "MY_SERVICE_PASSWORD": PASSWORD,
}


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **SECRETS, **environment}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)


def assert_no_secret(text: str) -> None:
    for value in SECRETS.values():
        assert value not in text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("secrets") / "made" / "run"
    settings = {"max_steps": 1, "save_every": 1, "eval_every": 0, "batch_size": 8, "max_tokens": 32}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        assert train_command(small(log_path, **settings)) == 0
    return log_path


@pytest.mark.long
def test_a_run_directory_and_all_in_it_are_for_the_owner_only_and_hold_no_key(run):
    for path in [run, *run.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert path.is_dir() or not any(value.encode() in path.read_bytes() for value in SECRETS.values()), path


WITH_KEYS = (
    f"model_name={KEY}", f"dataset=x-{PASSWORD}.jsonl", f"executor=http://user:{PASSWORD}@host:1", "backend=http://u:abc@host:1",
    "model_name=hf_abcdefghijklmnopqrst", f"backend=https://host/?key={KEY}",
)  # fmt: skip
EACH = """
import contextlib, io, json, sys
from code_rl.cli.main import run_verb
for number, word in enumerate(sys.argv[2:]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run_verb("train", [word, f"log_path={sys.argv[1]}/{number}"], "python train.py")
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str, bool]]:
    """Exit code, output, errors, and whether a run was begun, of each word: all in one process, which takes longer to start than to refuse."""
    folder = tmp_path_factory.mktemp("refused")
    done = command("-c", EACH, str(folder), *WITH_KEYS)
    assert done.stderr == ""
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        word: (*line, (folder / str(number)).exists())
        for number, (word, line) in enumerate(zip(WITH_KEYS, said, strict=True))
    }


@pytest.mark.parametrize("word", WITH_KEYS)
def test_a_setting_that_holds_a_key_is_refused_without_showing_it(word, refusals):
    code, out, err, begun = refusals[word]
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert_no_secret(out + err)
    assert not begun


def test_log_and_report_of_a_run_whose_settings_and_errors_hold_keys_show_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    settings = {"seed": 1, "model_name": KEY, "executor": f"http://u:{PASSWORD}@h", "server": {"wandb_token": PASSWORD}}
    logger = setup_logging(tmp_path, config=settings)
    logger.log_metrics({"loss": 1.0}, 0)
    try:
        raise RuntimeError(f"401 for Bearer {KEY} at https://me:{PASSWORD}@host/x")
    except RuntimeError:
        logging.getLogger("code_rl").exception("request %s failed", {"key": KEY})
    logger.close()
    text = (tmp_path / "logs.log").read_text()
    assert "RuntimeError: 401 for Bearer *** at https://***@host/x" in text
    assert main(["report", f"log_path={tmp_path}"]) == 0
    assert_no_secret(text + (tmp_path / "config.json").read_text() + (tmp_path / "report.html").read_text())


@pytest.mark.parametrize(
    "folder", ["hf_experiments_2026", "sk-learn-projects", "hf_downloads_of_code/tml-of-mine-again"]
)
def test_a_folder_whose_name_begins_like_a_key_is_a_folder(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    log_path = tmp_path / folder / "run"
    assert make_config({"log_path": str(log_path)}).log_path == str(log_path)
    setup_logging(log_path, config={"dataset": str(log_path)}).close()
    assert json.loads((log_path / "config.json").read_text()) == {"dataset": str(log_path)}


UNCAUGHT = {
    "the main thread": "raise RuntimeError(KEY)",
    "a cause": "\ntry:\n    raise ValueError(KEY)\nexcept ValueError as error:\n    raise RuntimeError('x') from error",
    "a thread": "import threading; t = threading.Thread(target=lambda: int(KEY)); t.start(); t.join()",
    "a record that nobody handles": "import logging; logging.getLogger('other').error('key %s', KEY)",
    "a task that nobody awaits": "import asyncio\nasync def bad(): raise RuntimeError(KEY)\n"
    "async def go(): asyncio.create_task(bad()); await asyncio.sleep(0.01)\nasyncio.run(go())",
}  # fmt: skip


@pytest.mark.parametrize("where", UNCAUGHT)
def test_what_python_prints_of_an_exception_holds_no_key(where):
    code = f"import os; from code_rl.util.redaction import install_hooks; install_hooks(); KEY = os.environ['TINKER_API_KEY']\n{UNCAUGHT[where]}"
    done = command("-c", code)
    assert "***" in done.stderr
    assert_no_secret(done.stderr)


def said_of(word: str) -> str:
    """The error about a verb that is unknown, which has the word."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([word]) == 2
    return said.getvalue()


@given(st.text(), st.text())
def test_a_key_is_found_in_any_text(before, after):
    text = f"{before} {KEY}|{after}"
    assert KEY not in said_of(text)
    with refused("model_name"):
        make_config({"model_name": text})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_TOKEN", PASSWORD)
        assert PASSWORD not in said_of(f"x{before}{PASSWORD}{after}")


@pytest.mark.parametrize(
    "text", ["tml-dummy", "embedded", "/models/qwen3-4b", "Qwen/Qwen3-4B", "sk-learn", "http://host:8080/run_code", "eyJ", "hf_x", "/tmp/hf_runs/slow/report.html", "a@b.org", "0:64,200:128"]
)  # fmt: skip
def test_ordinary_settings_are_no_keys(text, monkeypatch):
    for name, value in {"TINKER_API_KEY": "tml-dummy", "SSH_KEY": "/models/qwen3-4b", "X_TOKEN": "short"}.items():
        monkeypatch.setenv(name, value)
    assert make_config({"model_name": text, "backend": "embedded"}).model_name == text
    monkeypatch.delenv("SSH_KEY")
    assert text in said_of(text)


def test_the_command_line_redacts_the_error_that_it_prints(monkeypatch, capsys):
    monkeypatch.setenv("MY_SERVICE_PASSWORD", PASSWORD)
    assert main(["train", f"dataset=/nowhere/{PASSWORD}"]) == 2
    assert_no_secret(capsys.readouterr().err)


def fake_tool(folder: Path, output: str, code: int, stderr: str = "") -> Path:
    tool = folder / "pip-audit"
    tool.write_text(
        f"#!{sys.executable}\nimport sys\nprint({output!r})\nsys.stderr.write({stderr!r})\nsys.exit({code})\n"
    )
    tool.chmod(0o755)
    return tool


def audited(folder: Path, tool: Path, accepted: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (folder / "accepted.txt").write_text(accepted)
    script = runpy.run_path(str(ROOT / "scripts" / "audit.py"))
    code = script["main"](script["Audit"](tool=tool, accepted=folder / "accepted.txt"))
    return code, capsys.readouterr().out


FOUND = json.dumps(
    {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "GHSA-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}]},
                      {"name": "b", "version": "3", "vulns": []}]}
)  # fmt: skip


@pytest.mark.parametrize(
    ("output", "code", "stderr", "accepted", "wanted", "said"),
    [
        (FOUND, 1, "", "", 1, "a 1: GHSA-1 (fixed in 2)"),
        (FOUND, 1, "", "CVE-1 we do not call it\n", 0, "accepted, we do not call it"),
        (FOUND, 1, "", "CVE-1 fine\nCVE-9 old\n", 0, "lists CVE-9, which is not found any more"),
        (FOUND.replace('{"id"', '{"id": "X", "fix_versions": []}, {"id"'), 1, "", "CVE-1 fine\n", 1, "1 of them not accepted"),
        ("", 1, "requests.exceptions.ConnectionError: Max retries exceeded", "", 0, "not audited: offline"),
    ],
)  # fmt: skip
def test_the_audit_fails_on_what_is_not_listed_and_says_when_it_is_offline(
    output, code, stderr, accepted, wanted, said, tmp_path, capsys
):
    got, text = audited(tmp_path, fake_tool(tmp_path, output, code, stderr), accepted, capsys)
    assert got == wanted, text
    assert said in text
