"""`code-rl reproduce` on stand-ins: the built-in model, and small local copies of each format; and what it is made of."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import chz
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from code_rl.cli import main
from code_rl.commands.reproduce import RUN, STATE, make_plan, read_published, reproduce_command
from code_rl.commands.reproduce_view import BEFORE, differences
from code_rl.config.recipes import RECIPES, read_recipe
from code_rl.errors import CodeRLError, ConfigError
from code_rl.problems.builtin import test_split as builtin_split
from code_rl.problems.problem import StdinTest
from code_rl.problems.sources.verl import CODE_R1_SYSTEM, code_r1_question
from code_rl.runs.directory import with_checksum
from tests.evaluation.test_benchmarks import HUMANEVAL, MBPP_PLUS
from tests.kinds import each_is

NAMES = sorted(path.stem for path in (RECIPES / "reproduce").glob("*.toml"))


PROGRAMS = [problem for problem in builtin_split("constants") if problem.fn_name is None]


def livecodebench_rows(date):
    for problem in PROGRAMS[:3]:
        tests = [
            {"input": test.input, "output": test.expected, "testtype": "stdin"}
            for test in each_is(StdinTest, problem.tests)
        ]
        yield {
            "question_title": "", "question_content": problem.statement, "platform": "atcoder", "question_id": problem.id, "contest_id": "1",
            "contest_date": date, "starter_code": "", "difficulty": "easy", "metadata": "{}", "public_test_cases": json.dumps(tests[:1]),
            "private_test_cases": json.dumps(tests[1:]),
        }  # fmt: skip


def verl_rows():
    for index, problem in enumerate(PROGRAMS[3:9]):
        question = code_r1_question(problem.statement, None)
        truth = {
            "inputs": [test.input for test in each_is(StdinTest, problem.tests)],
            "outputs": [test.expected for test in each_is(StdinTest, problem.tests)],
        }
        yield {
            "data_source": "code", "ability": "coding",
            "prompt": [{"role": "system", "content": CODE_R1_SYSTEM}, {"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
            "extra_info": {"index": index, "reference": problem.solutions[0], "dataset": "likaixin/TACO-verified"},
        }  # fmt: skip


def deepcoder_rows():
    for problem in PROGRAMS[3:9]:
        tests = [
            {"input": test.input, "output": test.expected, "type": "stdin_stdout"}
            for test in each_is(StdinTest, problem.tests)
        ]
        yield {"problem": problem.statement, "solutions": list(problem.solutions), "tests": json.dumps(tests)}


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Settings that put the built-in model and local files in the place of what was published, by the result's name."""
    folder = tmp_path_factory.mktemp("stand_ins")
    v5 = lines(folder / "v5.jsonl", livecodebench_rows("2024-09-01T00:00:00"))
    v6 = lines(folder / "v6.jsonl", livecodebench_rows("2025-03-01T00:00:00"))
    humaneval, mbpp = lines(folder / "humaneval.jsonl", [HUMANEVAL]), lines(folder / "mbpp.jsonl", [MBPP_PLUS])
    pq.write_table(pa.Table.from_pylist(list(verl_rows())), folder / "verl.parquet")
    deepcoder = lines(folder / "deepcoder.jsonl", deepcoder_rows())
    small = {
        "model_name": "tiny",
        "renderer": "auto",
        "backend": "embedded",
        "executor": "embedded",
        "device": "cpu",
        "kl_coef": "0",
    }
    small |= {"groups_per_batch": "2", "group_size": "4", "max_steps": "2", "threads": "1", "learning_rate": "2e-3"}
    plus = f"humaneval+:{humaneval},mbpp+:{mbpp}"
    code_r1 = {"dataset": str(folder / "verl.parquet"), "data": f"livecodebench:{v5},{plus}", "max_tokens": "48"}
    code_r1 |= {"prompt": "livecodebench", "reward": "correctness"}
    cookbook = {"dataset": str(deepcoder), "data": f"livecodebench:{v6}", "max_tokens": "48", "n": "2"}
    return {
        "code-r1": small | code_r1,
        "code-r1-2k": small | code_r1,
        "qwen3-4b": small | cookbook,
        "qwen3.5-4b": small | cookbook,
        "deepcoder": small | {"dataset": str(deepcoder), "n": "2", "num_substeps": "1", "max_tokens_schedule": "0:24,1:48", "sweep": "16,48",
                              "data": f"livecodebench:{v5},humaneval+:{humaneval}"},
    }  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize(
    "name", ["deepcoder", *(pytest.param(each, marks=pytest.mark.slow) for each in NAMES if each != "deepcoder")]
)
def test_each_result_ends_in_a_table_of_published_values_and_ours(name, stand_ins, tmp_path, capsys):
    given = stand_ins[name] | {"recipe": name, "out": str(tmp_path / "out")}
    assert reproduce_command(given) == 0
    table = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (tmp_path / "out" / "results.md").read_text() in capsys.readouterr().out + "\n"
    published = {
        (value["benchmark"], value.get("figure", "pass@1"), value.get("max_tokens"))
        for value in read_published(name).values
    }
    assert published <= {(row["benchmark"], row["figure"], row["max_tokens"]) for row in table["rows"]}
    ours = [row for row in table["rows"] if "before" in row]
    assert ours
    for row in ours:
        for side in ("before", "after"):
            low, high = row[side]["interval"]
            assert 0 <= low <= row[side]["pass@1"] <= high <= 1
    assert any(line.startswith("model_name: theirs ") and line.endswith(", ours tiny") for line in table["differs"])


def interrupted(command, when, environment):
    """Start the command, and kill it once `when` is so; its exit code."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while process.poll() is None and not when():
        time.sleep(0.005)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


@pytest.mark.slow
def test_killed_twice_it_ends_in_the_same_table(stand_ins, tmp_path):
    given = stand_ins["qwen3-4b"] | {"recipe": "qwen3-4b"}
    assert reproduce_command(given | {"out": str(tmp_path / "whole")}) == 0
    out = tmp_path / "cut"
    command = [sys.executable, "-m", "code_rl.cli", "reproduce", *(f"{k}={v}" for k, v in given.items()), f"out={out}"]
    samples = out / BEFORE / "livecodebench" / "samples.jsonl"
    metrics = out / RUN / "metrics.jsonl"
    assert (
        interrupted(command, lambda: samples.exists() and samples.stat().st_size > 0, dict(os.environ))
        == -signal.SIGKILL
    )
    assert (
        interrupted(command, lambda: metrics.exists() and metrics.stat().st_size > 0, dict(os.environ))
        == -signal.SIGKILL
    )
    assert subprocess.run(command, env=dict(os.environ), stdout=subprocess.DEVNULL, timeout=240).returncode == 0
    assert (out / "results.md").read_text() == (tmp_path / "whole" / "results.md").read_text()
    assert json.loads((out / "results.json").read_text()) == json.loads(
        (tmp_path / "whole" / "results.json").read_text()
    )


@pytest.mark.parametrize("name", NAMES)
def test_dry_run_prices_both_evaluations_and_the_training(name, tmp_path, capsys):
    prices = tmp_path / "prices.toml"
    prices.write_text("[price]\nprefill = 0.1\nsample = 0.4\ntrain = 0.3\n")
    words = ["reproduce", name, f"prices={prices}", "backend=embedded", f"out={tmp_path / 'out'}", "dry_run=true"]
    assert main(words) == 0
    said = capsys.readouterr().out
    for part in ("evaluation before: ", "evaluation after: ", "training: ", "all of it: ", "cost ", "assumed:"):
        assert part in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_result_names_its_source_and_a_recipe_that_exists(name):
    published = read_published(name)
    assert published.source
    assert read_recipe(published.recipe)["model_name"] == published.theirs["model_name"]
    for value in published.values:
        assert 0 < value["before"] < 100 or value["figure"] == "rating"


def test_as_published_only_the_learning_rate_differs_from_code_r1(tmp_path):
    plan, _ = make_plan({"recipe": "code-r1", "backend": "embedded", "out": str(tmp_path / "out")})
    told = [line for line in differences(plan) if not line.startswith("not published")]
    assert told == ["theirs was full fine-tuning, ours LoRA of rank 32", "learning_rate: theirs 5e-07, ours 5e-06"]


REFUSED = {
    "log_path=x": "log_path= has no effect on a reproduction",
    "checkpoint=x": "checkpoint= has no effect on a reproduction",
    "save_every=0": "save_every= above 0",
    "benchmarks=humaneval": "unknown setting 'benchmarks', did you mean 'benchmark'",
    "benchmark=humanevil": "unknown benchmark 'humanevil'",
    "top_p=0": "top_p=0.0 must be above 0",
    "data=mbpp+:x.jsonl": "no benchmark of this reproduction is mbpp+",
}


@pytest.mark.parametrize("word", REFUSED)
def test_bad_settings_are_refused_before_anything_is_made(word, tmp_path, capsys):
    assert main(["reproduce", "qwen3-4b", "backend=embedded", word, f"out={tmp_path / 'out'}"]) == 2
    assert REFUSED[word] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_reproduction_is_refused(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "reproduce.json").write_text(json.dumps({"settings": {"result": "deepcoder"}, "done": []}))
    with pytest.raises(
        ConfigError,
        match="holds another reproduction: backend was not given, is embedded; result was deepcoder, is qwen3-4b",
    ):
        reproduce_command({"recipe": "qwen3-4b", "backend": "embedded", "out": str(out)})
    (out / "reproduce.json").unlink()
    (out / "mine.txt").write_text("")
    for given, said in (
        (out, "is not empty and holds no reproduction"),
        (out / "mine.txt", "is a file; give a folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            reproduce_command({"recipe": "qwen3-4b", "backend": "embedded", "out": str(given)})


def test_an_earlier_runs_settings_are_never_priced_as_if_they_were_this_ones(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    out = tmp_path / "code-rl-logs" / "reproduce-qwen3-4b"
    tried = {"recipe": "qwen3-4b", "model_name": "tiny", "dataset": "train.jsonl", "max_steps": "2"}
    begun = make_plan(tried | {"backend": "embedded"})[0]
    (out / RUN).mkdir(parents=True)
    (out / RUN / "config.json").write_text(json.dumps(with_checksum(chz.asdict(begun.config))))
    (out / STATE).write_text(json.dumps({"settings": dict(begun.binding), "done": ["before/livecodebench"]}))
    assert main(["reproduce", "qwen3-4b", "backend=embedded", "dry_run=true"]) == 2
    said = capsys.readouterr()
    assert "tiny" not in said.out
    for was in ("model_name was tiny", "dataset was train.jsonl", "max_steps was 2"):
        assert f"{was}, is not given" in said.err
    assert "choose another out=" in said.err


def test_an_unknown_name_is_refused_with_those_that_exist(capsys):
    assert main(["reproduce", "qwen-4b"]) == 2
    assert "did you mean 'qwen3-4b'" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert all(name in capsys.readouterr().err for name in NAMES[:1])


def test_what_stops_a_begun_reproduction_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    (tmp_path / STATE).write_text(json.dumps({"settings": {"result": "qwen3-4b", "backend": "tinker"}, "done": []}))
    with pytest.raises(ConfigError, match=rf"needs a key .*\(a reproduction was begun in out={tmp_path}; another out="):
        make_plan({"recipe": "qwen3-4b", "backend": "tinker", "out": str(tmp_path)})


REMOTE = {"TINKER_API_KEY": "tml-dummy-key", "https_proxy": "http://127.0.0.1:9"}  # so that no packet leaves


@pytest.fixture
def paid(monkeypatch):
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    for name, value in REMOTE.items():
        monkeypatch.setenv(name, value)


def test_what_costs_money_says_so_and_is_refused_where_nobody_can_confirm(tmp_path, paid, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    prices = tmp_path / "prices.toml"
    prices.write_text("[price]\nprefill = 0.1\nsample = 0.4\ntrain = 0.3\n")
    words = ["reproduce", "qwen3-4b", "backend=tinker", f"out={tmp_path / 'out'}", f"prices={prices}"]
    assert main([*words, "max_steps=100"]) == 2
    said = capsys.readouterr()
    line = next(line for line in said.out.splitlines() if line.startswith("this costs money: "))
    assert "https://tinker.thinkingmachines.dev" in line
    assert re.search(
        r"until 100 steps are done; evaluations before and after: [\d,]+ tokens, cost [\d.,]+ that no cap", line
    )
    assert "give max_tokens_total= or max_cost=" in said.err
    assert not (tmp_path / "out").exists()
    assert main([*words, "max_cost=5"]) == 2
    assert "cannot be reached" in capsys.readouterr().err, "with a cap it goes on to the service"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"dataset": "nope.jsonl"}, "nope.jsonl"),
        ({"min_tests": "99"}, "min_tests=99 leaves none"),
        ({"test_dataset": "nope.jsonl"}, "nope.jsonl"),
        ({"executor": "http://127.0.0.1:9"}, "127.0.0.1:9"),
    ],
    ids=lambda each: "-".join(each) if isinstance(each, dict) else "",
)
def test_what_the_training_reads_is_opened_before_an_evaluation_is_paid_for(broken, said, stand_ins, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(CodeRLError, match=re.escape(said)):
        reproduce_command(stand_ins["qwen3-4b"] | {"recipe": "qwen3-4b", "out": str(out)} | broken)
    assert not list(out.rglob("samples.jsonl"))
    assert not out.exists()


def test_a_later_benchmarks_file_is_opened_before_the_first_is_asked(stand_ins, tmp_path):
    given = stand_ins["deepcoder"] | {"recipe": "deepcoder", "out": str(tmp_path / "out")}
    given["data"] = given["data"].partition("humaneval+:")[0] + "humaneval+:nope.jsonl"
    with pytest.raises(CodeRLError, match=r"nope\.jsonl"):
        reproduce_command(given)
    assert not (tmp_path / "out").exists()
