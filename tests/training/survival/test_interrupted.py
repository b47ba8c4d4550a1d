"""Ctrl-C at any moment: over within seconds, finished work is kept, and the last line says how to go on. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import code_rl.training.assembly
from code_rl.engine.checkpoints import read_config
from code_rl.training import prepare
from code_rl.util.files import LOCK
from tests.paths import ROOT
from tests.refusals import refused
from tests.training.pipeline_support import small, untimed
from tests.verbs import train_command

MINUTE = 60.0


def interrupted(words: Sequence[str], seen: str, until: Path | None = None) -> tuple[int, str]:
    """Exit code and output of a command that gets SIGINT, with its children, when it has said `seen` and the file has something."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    watchdog = threading.Timer(2 * MINUTE, process.kill)
    watchdog.start()
    said, struck = list[str](), False
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if not struck and re.search(seen, line):
            struck = True
            while until is not None and not (until.is_file() and until.stat().st_size) and process.poll() is None:
                time.sleep(0.02)
            time.sleep(0.2)
            os.killpg(process.pid, signal.SIGINT)
    watchdog.cancel()
    return process.wait(MINUTE), "".join(said)


def words_of(given: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in given.items()]


@pytest.mark.slow
def test_ctrl_c_in_the_evaluation_before_training_leaves_it_at_once_and_a_resume_goes_on_there(tmp_path):
    given = small(tmp_path / "run", eval_every="0", eval_samples="64", eval_limit="-1", max_steps="1", save_every="1")
    kept = tmp_path / "run" / "inflight" / "evaluations" / "000000.jsonl"
    code, said = interrupted(["train.py", *words_of(given)], "watch ", until=kept)
    assert code == 130, said
    assert "stopping the evaluation" in said
    assert len(re.findall(rf"to resume: \S+ \S+ log_path={tmp_path / 'run'}", said)) == 1
    assert "Traceback" not in said
    assert not untimed(tmp_path / "run")
    assert kept.read_bytes()


@pytest.mark.long
def test_ctrl_c_in_code_rl_eval_keeps_what_was_done_and_says_with_which_out_to_go_on(tmp_path):
    words = ["-m", "code_rl.cli", "eval", "benchmark=builtin", "model_name=tiny", "n=64", f"out={tmp_path / 'out'}"]
    code, said = interrupted(words, "samples each")
    assert code == 130, said
    assert f"to go on: the same command with out={tmp_path / 'out'}" in said
    assert "Traceback" not in said


def test_ctrl_c_in_code_rl_judge_keeps_the_verdicts_and_says_that_the_same_command_goes_on(tmp_path):
    problem = {"id": "a", "statement": "s", "tests": [{"kind": "stdin", "input": "", "expected": "1"}]}
    codes = ["print(1)", *["while True: pass"] * 40]
    programs = [{"problem_id": "a", "program_id": str(i), "code": code} for i, code in enumerate(codes)]
    for name, rows in (("problems", [problem]), ("programs", programs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    out = tmp_path / "verdicts.jsonl"
    paths = [f"dataset={tmp_path / 'problems.jsonl'}", f"programs={tmp_path / 'programs.jsonl'}", f"out={out}"]
    words = ["-m", "code_rl.cli", "judge", "executor=embedded", *paths]
    code, said = interrupted(words, "41 programs", until=out)
    assert code == 130, said
    assert f"the verdicts so far are in {out}; the same command goes on" in said
    assert "Traceback" not in said
    assert json.loads(out.read_text().splitlines()[0])["verdict"] == "passed"


@pytest.mark.long
def test_a_sandbox_whose_host_has_gone_ends_without_a_word():
    script = "import asyncio, os; from code_rl.grading.sandbox.local.pool import EmbeddedSandbox as E; from code_rl.grading.sandbox.executor import *\n"
    script += "async def f():\n    e = E(1)\n    asyncio.get_running_loop().call_later({after}, os._exit, 7)\n    async for _ in e.run(Job('pass', (StdinInput(b''),))): pass\n    os._exit(7)\nasyncio.run(f())"
    for after in (0.01, 0.05, 0.1, 0.2, 0.3):
        done = subprocess.run(
            [sys.executable, "-c", script.format(after=after)], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (7, "")


def test_a_run_cut_while_it_started_goes_on_as_it_was_begun_by_the_same_words_or_by_its_place_alone(
    tmp_path, monkeypatch, capsys
):
    class Killed(BaseException):
        pass

    async def killed(*_):
        raise Killed

    given = small(tmp_path / "run", max_steps=1, seed=7, learning_rate=1e-3)
    with monkeypatch.context() as patch:
        patch.setattr(code_rl.training.assembly, "connect", killed)
        with pytest.raises(Killed):
            train_command(given)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock", "begun.json"}
    for words in (given, {"log_path": given["log_path"]}):
        config, _, resumes = prepare(words)
        assert (config.seed, config.learning_rate, config.batch_size, resumes) == (7, 1e-3, 16, False)
    assert prepare({"log_path": given["log_path"], "max_steps": "9"})[0].max_steps == 9
    assert train_command({"log_path": given["log_path"]}) == 0
    assert "behavior_if_log_dir_exists=delete" in capsys.readouterr().out
    assert read_config(tmp_path / "run")["seed"] == 7
    assert not (tmp_path / "run" / "begun.json").exists()


def test_a_run_without_its_settings_is_no_new_run(tmp_path):
    (tmp_path / LOCK).write_text("")
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    with refused("config.json"):
        train_command(small(tmp_path, max_steps=1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("train.py", "dataset=owner/name", "eval_every=-1"), ("-m", "code_rl.cli", "eval", "benchmark=builtin", "model_name=owner/name")],
    ids=["data", "model"],
)  # fmt: skip
def test_ctrl_c_while_a_hub_is_asked_that_never_answers_ends_the_process(tmp_path, words):
    with socket.create_server(("127.0.0.1", 0)) as hub:
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        where = "log_path" if words[0] == "train.py" else "out"
        process = subprocess.Popen(
            [sys.executable, *words, f"{where}={tmp_path / 'run'}"],
            cwd=ROOT, env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        hub.settimeout(MINUTE)
        asked, _ = hub.accept()
        assert asked.recv(4) in (b"GET ", b"HEAD")
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=20.0)  # an answer is waited for much longer than that
        finally:
            process.kill()
            asked.close()
    assert (process.returncode, said) == (130, "interrupted\n")


@pytest.mark.slow
def test_a_run_whose_reader_leaves_goes_on_to_its_end(tmp_path):
    given = small(tmp_path / "run", eval_every="-1", max_steps="2", save_every="1")
    process = subprocess.Popen(
        [sys.executable, "train.py", *words_of(given)], cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": ""}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(2 * MINUTE) == 0, said
    assert "the command goes on without" in said
    assert [record["step"] for record in untimed(tmp_path / "run")] == [0, 1]
    assert (tmp_path / "run" / "report.html").is_file()
