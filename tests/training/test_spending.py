"""Off the embedded engine: the defaults, the forecast before anything is spent, and no run without an end unless asked."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from code_rl.engine import place_of
from code_rl.training import prepare
from code_rl.training.config import make_config
from code_rl.training.trainer import confirm
from code_rl.util.settings import read_arguments
from tests.paths import ROOT
from tests.refusals import refused

KEY = {"TINKER_API_KEY": "tml-dummy-key"}
NO_PACKET_LEAVES = {"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
COURSE = "max_steps=20 max_tokens=4096 batch_size=32 group_size=8 eval_every=10 save_every=10"
COOKBOOK = "group_size=8 groups_per_batch=128 learning_rate=4e-5 lora_rank=32 max_tokens=24576"


def call(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT}/src"}
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words], cwd=folder, env=env | environment,
        capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY["TINKER_API_KEY"])
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("words", ["", COURSE, COOKBOOK])
def test_with_a_key_the_seeds_lines_train_qwen3_5_4b_on_deepcoder_with_its_held_out_splits(words):
    given = read_arguments(words.split())
    config = prepare(given)[0]
    assert (config.recipe, config.backend) == ("course", "tinker")
    assert (config.model_name, config.dataset) == ("Qwen/Qwen3.5-4B", "deepcoder")
    assert config.test_dataset is None
    assert (config.groups_per_batch or config.group_size) == (128 if words == COOKBOOK else 8)
    for name, value in given.items():
        assert getattr(config, name) == type(getattr(config, name))(value)


def test_without_a_key_the_default_stays_the_built_in_model_and_a_model_of_ones_own_has_no_recipe(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    assert make_config({}).recipe == "tiny"
    assert make_config({"model_name": "/models/x"}).recipe is None


@pytest.mark.usefixtures("keyed")
def test_the_built_in_model_keeps_its_recipe_on_a_server():
    assert make_config({"model_name": "tiny", "backend": "http://localhost:1"}).recipe == "tiny"


def test_only_the_hosted_service_costs_money():
    assert place_of("tinker", KEY).paid
    assert not place_of("tinker", {**KEY, "TINKER_BASE_URL": "http://127.0.0.1:8000"}).paid
    assert not place_of("http://gpu-box:8000", {}).paid
    assert not place_of("https://tinker.thinkingmachines.dev.example.org", {}).paid


@pytest.mark.long
def test_what_spends_money_without_an_end_is_refused_where_nobody_can_confirm(tmp_path):
    result = call(tmp_path, **KEY)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "give max_steps=, max_tokens_total= or max_cost=" in result.stderr
    assert "this costs money: https://tinker.thinkingmachines.dev" in result.stdout
    assert "Qwen/Qwen3.5-4B (LoRA rank 32) on deepcoder, 8 prompts × 16 completions" in result.stdout
    assert "until it is stopped" in result.stdout
    assert not (tmp_path / "code-rl-logs").exists()


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("words", "end", "longest"),
    [
        ("max_steps=20 max_tokens=112", "20 steps are done", 112),
        ("max_steps=1 max_tokens=112 max_tokens_schedule=0:64,100:128", "1 step is done", 128),
        ("max_tokens_total=1000000 max_tokens=112 max_tokens_schedule=0:64,1:96", "max_tokens_total=1000000", 96),
    ],
)
def test_what_has_an_end_is_announced_with_its_longest_completion(capsys, words, end, longest):
    confirm(make_config(read_arguments(words.split())), resumes=False)
    assert f"completions × up to {longest} tokens a step, until {end}\n" in capsys.readouterr().out


@pytest.mark.long
def test_what_has_an_end_goes_on_to_the_service(tmp_path):
    result = call(tmp_path, *["main", "--max_steps", "20", "--max_tokens", "112"], **KEY, **NO_PACKET_LEAVES)
    assert "until 20 steps are done\n" in result.stdout
    assert result.returncode == 2
    assert "cannot be reached" in result.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("n", "not confirmed: nothing was started"),
        ("y", "cannot be reached"),
    ],
)
def test_on_a_terminal_it_is_asked_once(tmp_path, answer, line):
    env = {
        **os.environ,
        **KEY,
        "HOME": str(tmp_path),
        "PYTHONPATH": f"{ROOT}/src",
        "https_proxy": "http://127.0.0.1:9",
        "TERM": "dumb",
    }
    env.pop("TINKER_BASE_URL", None)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "train.py")], cwd=tmp_path, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 4096)
    os.write(ours, f"{answer}\n".encode())
    while True:
        try:
            said += os.read(ours, 4096)
        except OSError:
            break
    assert process.wait(60) == 2
    assert line in " ".join(said.decode().split())
    assert said.count(b"[y/N]") == 1


def test_keys_are_found_in_an_env_file_from_the_working_directory_upwards(tmp_path):
    (tmp_path / ".env").write_text("TINKER_API_KEY=tml-from-a-file-above\n")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    assert "this costs money" in call(tmp_path / "deep" / "er").stdout


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("before", [3, -1])
def test_a_run_that_had_an_end_is_asked_for_again_when_a_resume_takes_it_away(tmp_path, before):
    settings = {"backend": "tinker", "model_name": "x", "max_steps": before}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    config, _, resumes = prepare({"log_path": str(tmp_path), "max_steps": "-1"})
    with refused("max_steps=", "max_tokens_total=", "max_cost=") if before == 3 else contextlib.nullcontext():
        confirm(config, resumes)
