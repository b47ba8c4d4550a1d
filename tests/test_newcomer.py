"""A newcomer's changes: each part of one's own, and the code of ours that a verb and a field of a verdict need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from code_rl.cli.main import VERBS, Verb, main
from code_rl.data import open_dataset
from code_rl.data.sources import Skipped, shapes
from code_rl.engine.probes import load_tokenizer
from code_rl.grading import Problem, Verdict, VerdictKind
from code_rl.policy import completion_log as inflight
from tests import newcomer
from tests.kinds import each_is
from tests.paths import ROOT, copy_source
from tests.training.pipeline_support import rollouts, small, untimed
from tests.verbs import train_command

ONE_STEP = {"max_steps": "1", "save_every": "0"}
OWN = {"advantage": "tests.newcomer:median", "reward": "tests.newcomer:short", "format_coef": 0}


def trained(tmp_path, name="run", **settings):
    assert train_command(small(tmp_path / name, **{**ONE_STEP, **settings})) == 0
    return untimed(tmp_path / name)[-1]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run with an advantage, a reward and a loss of one's own, and its record."""
    home = tmp_path_factory.mktemp("own")
    return home / "run", trained(home, **OWN, loss="tests.newcomer:SAME_AS_BUILT_IN")


@pytest.fixture(scope="module")
def plain_loss(tmp_path_factory):
    """A run with an advantage of two parameters and a loss without a ratio, and its record."""
    home = tmp_path_factory.mktemp("plain_loss")
    return home / "run", trained(
        home, advantage="tests.newcomer:concise", loss="tests.newcomer:REINFORCE", format_coef=0
    )


def test_an_advantage_is_a_function_of_rewards(own):
    log_path, _ = own
    assert json.loads((log_path / "config.json").read_text())["advantage"] == "tests.newcomer:median"
    seen = 0
    for group in rollouts(log_path):
        rewards = sorted(row["reward"] for row in group["completions"])
        if rewards[0] != rewards[-1]:
            middle = rewards[len(rewards) // 2]
            assert all(row["advantage"] == row["reward"] - middle for row in group["completions"])
            seen += 1
    assert seen


def test_an_advantage_of_two_parameters_sees_the_trajectories(plain_loss):
    seen = 0
    for group in rollouts(plain_loss[0]):
        rows = group["completions"]
        if len({row["reward"] for row in rows}) > 1:
            best = min(len(row["tokens"]) for row in rows)
            scores = [row["reward"] * best / len(row["tokens"]) for row in rows]
            expected = [score - sum(scores) / len(scores) for score in scores]
            assert [row["advantage"] for row in rows] == pytest.approx(expected)
            seen += 1
    assert seen


def test_a_reward_is_a_function_of_a_trajectory(own):
    rows = [row for group in rollouts(own[0]) for row in group["completions"]]
    assert any(row["verdict"] == "passed" for row in rows)
    for row in rows:
        assert row["reward"] == (1.0 + 1.0 / len(row["tokens"]) if row["verdict"] == "passed" else 0.0)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A run of two steps with a reward of named parts and `format_coef`."""
    log_path = tmp_path_factory.mktemp("graded") / "run"
    assert train_command(small(log_path, max_steps=2, reward="tests.newcomer:graded")) == 0
    return log_path


def test_a_reward_is_the_sum_of_its_named_parts_and_the_format_term(graded):
    rows = [row for group in rollouts(graded) for row in group["completions"]]
    assert any(row["parts"]["brevity"] for row in rows)
    for row in rows:
        formatted = 0.0 if row["verdict"] != "no_code" else -0.1
        assert row["reward"] == pytest.approx(sum(row["parts"].values()) + formatted)


def test_the_metrics_of_a_step_have_the_mean_of_each_part_of_the_reward(graded):
    for record in untimed(graded):
        groups = [group for group in rollouts(graded) if group["step"] == record["step"]]
        rows = [row for group in groups for row in group["completions"]]
        for part in ("correct", "brevity"):
            mean = sum(row["parts"][part] for row in rows) / len(rows)
            assert record[f"reward_part/{part}"] == pytest.approx(mean)
        assert record["reward_part/correct"] == record["mean_correct"]


def test_a_run_with_named_parts_resumes_with_the_same_metrics(graded, tmp_path):
    for steps in (1, 2):
        assert train_command(small(tmp_path / "run", max_steps=steps, reward="tests.newcomer:graded")) == 0
    assert untimed(tmp_path / "run") == untimed(graded)


def test_a_loss_of_ones_own_that_is_the_built_in_one_trains_alike(own, tmp_path):
    built_in = trained(tmp_path, **OWN)
    assert own[1]["n_datums"] > 0
    assert own[1]["loss"] == pytest.approx(built_in["loss"], rel=1e-5)
    assert own[1]["optim/grad_norm"] == pytest.approx(built_in["optim/grad_norm"], rel=1e-3)


def test_a_loss_of_ones_own_that_masks_has_its_share_logged(tmp_path):
    record = trained(tmp_path, loss="tests.newcomer:ICEPOP", num_substeps=4, learning_rate=0.02)
    assert 0 < record["clip_fraction"] < 1


def test_a_loss_of_ones_own_is_logged_by_its_formula(plain_loss):
    log_path, record = plain_loss
    advantage, tokens = 0.0, 0
    for group in rollouts(log_path):
        if not group["skipped"]:
            for row in group["completions"]:
                advantage -= sum(row["advantage"] * logprob for logprob in row["logprobs"])
                tokens += len(row["tokens"]) if row["advantage"] else 0
    assert record["loss"] == pytest.approx(advantage / tokens, rel=1e-3)


@pytest.mark.long
def test_an_environment_is_a_class_with_two_calls(tmp_path):
    record = trained(tmp_path, environment="tests.newcomer:Twice", max_tokens=128)
    assert 1.0 < record["turns"] <= 2.0
    rows = [row for group in rollouts(tmp_path / "run") for row in group["completions"]]
    assert all(len(row.get("turns", ())) <= 1 for row in rows)


def native(path, *names):
    """A file of native problems."""
    tests = [{"kind": "stdin", "input": "1 2\n", "expected": "3\n", "public": True}]
    row = {
        "statement": "Print the sum of two integers.",
        "tests": tests,
        "solutions": ["print(sum(map(int, input().split())))"],
    }
    path.write_text("".join(json.dumps({"id": name, **row}) + "\n" for name in names))
    return path


def test_a_file_of_problems_is_trained_on_with_a_prompt_template_that_is_a_function_of_its_public_view(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "cache"))
    path = native(tmp_path / "mine.jsonl", "one", "two", "three", "four")
    trained(tmp_path, dataset=path, prompt="tests.newcomer:brief", max_tokens=32)
    groups = rollouts(tmp_path / "run")
    assert sorted(group["problem_id"] for group in groups) == ["four", "one", "three", "two"]
    assert {row["verdict"] for group in groups for row in group["completions"]} - {"sandbox_error"}
    words_of = load_tokenizer("tiny").decode
    for group in groups:
        prompt = words_of(group["prompt_tokens"])
        assert "sum of two integers" in prompt
        assert "one Python program in a code block" in prompt


def test_an_object_of_ones_own_is_a_benchmark_and_a_data_set(tmp_path):
    assert main(["eval", "benchmark=tests.newcomer:sums", "model_name=reference", f"out={tmp_path / 'out'}"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["problems"], results["pass@1"], results["benchmark"]) == (3, 1.0, "tests.newcomer:sums")
    dataset = open_dataset("tests.newcomer:sums")
    assert [problem.id for problem in each_is(Problem, dataset)] == ["sum-0", "sum-1", "sum-2"]
    assert dataset.fingerprint() == open_dataset("tests.newcomer:sums").fingerprint()
    (tmp_path / "q.jsonl").write_text('{"problem_id": "sum-1", "program_id": 0, "code": "print(3)"}\n')
    words = ["dataset=tests.newcomer:sums", f"programs={tmp_path / 'q.jsonl'}", f"out={tmp_path / 'v.jsonl'}"]
    assert main(["judge", *words]) == 0
    assert '"passed"' in (tmp_path / "v.jsonl").read_text()


def test_a_benchmark_that_is_none_is_refused_by_name(tmp_path, capsys):
    for name in ("tests.newcomer:nothing", "tests.newcomer:median", "newcomr"):
        assert main(["eval", f"benchmark={name}", "model_name=reference", f"out={tmp_path / 'out'}"]) == 2
        assert name in capsys.readouterr().err


def test_a_reader_of_rows_of_ones_own_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"task": "Add.", "pairs": [["1 2", "3"]]}) + "\n")
    (problem,) = each_is(Problem, open_dataset("tests.newcomer:pairs"))
    assert (problem.id, problem.tests[0].expected) == ("pairs/0", "3")
    before = open_dataset("tests.newcomer:pairs").fingerprint()
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"task": "Add.", "pairs": [["1 2", "4"]]}) + "\n")
    assert open_dataset("tests.newcomer:pairs").fingerprint() != before


def test_a_data_set_of_a_shape_of_ones_own_is_one_reader(tmp_path, monkeypatch):
    """The effect of a line in `data/sources/shapes.py`, without the line."""
    monkeypatch.setattr(shapes, "SHAPES", (*shapes.SHAPES, newcomer.SHAPE))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"task": "Add.", "pairs": [["1 2", "3"]]}) + "\n" + json.dumps({"task": "Add."}) + "\n")
    problem, other = open_dataset(str(path))
    assert isinstance(problem, Problem)
    assert isinstance(other, Skipped)
    assert (problem.id, problem.statement, problem.tests[0].expected) == ("rows/0", "Add.", "3")
    assert other.reason == "unknown_shape"


def test_a_verb_is_a_settings_class_and_a_command(monkeypatch, capsys):
    monkeypatch.setitem(VERBS, "greet", Verb("tests.newcomer:GreetConfig", "tests.newcomer:greet_command", "say hello"))
    for words, said in (
        (["greet"], "hello, world"),
        (["greet", "name=you"], "hello, you"),
        (["--help"], "greet     say"),
    ):
        assert main(words) == 0
        assert said in capsys.readouterr().out
    assert main(["greet", "--help"]) == 0
    assert "name=world\n      Whom." in capsys.readouterr().out
    assert main(["greet", "nmae=you"]) == 2
    assert "unknown setting 'nmae', did you mean 'name'?" in capsys.readouterr().err


@pytest.mark.long
def test_a_stage_of_prepare_is_a_function_and_a_line(tmp_path):
    preparation = copy_source(tmp_path) / "data" / "preparation"
    for name, line, more in (
        ("settings.py", '    "difficulty",\n', '    "shorten",\n'),
        ("pipeline.py", '    "write": run_write,\n', '    "shorten": run_shorten,\n'),
        ("pipeline.py", "from code_rl.grading.sandbox", "from tests.newcomer import run_shorten\n"),
    ):
        before, found, after = (preparation / name).read_text().partition(line)
        assert found
        (preparation / name).write_text(before + (found + more if more[0] == " " else more + found) + after)
    tests = [{"kind": "stdin", "input": f"{n} 2\n", "expected": f"{n + 2}\n"} for n in range(3)]
    rows = [{"id": name, "statement": f"Print the sum of two {name} integers.", "tests": tests} for name in ("a", "bb")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def prepared(*more):
        words = [f"dataset={tmp_path / 'rows.jsonl'}", f"out={tmp_path / 'out'}", "unverified=keep", *more]
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'src'}:{ROOT}"}
        command = [sys.executable, "-m", "code_rl.cli", "prepare", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert prepared().returncode == 0
    (row,) = map(json.loads, (tmp_path / "out" / "dropped.jsonl").read_text().splitlines())
    assert (row["id"], row["stage"], row["reason"]) == ("bb", "shorten", "long_name")
    assert "did you mean 'shorten'" in prepared("stop_after=shortne").stderr


@dataclass(frozen=True, slots=True)
class Roomy(Verdict):
    peak_mb: float = 0.0
    seen: tuple[tuple[str, float], ...] = ()


def test_a_field_of_a_verdict_survives_a_kill_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(inflight, "Verdict", Roomy)
    log = inflight.InFlight(tmp_path).group_log(0, "0.0")
    verdict = Roomy(VerdictKind.PASSED, 1, 1, "lcb", peak_mb=12.5, seen=(("first", 0.5),))
    log.keep_verdict((False, "print(3)"), verdict)
    again = inflight.InFlight(tmp_path).group_log(0, "0.0")
    assert again.verdict((False, "print(3)")) == verdict
