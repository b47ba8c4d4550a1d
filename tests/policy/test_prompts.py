"""How problems are worded: by name or by a function of one's own, under a system message, in training and in its evaluations alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from code_rl.engine.probes import load_tokenizer
from code_rl.grading import ProblemView
from code_rl.policy.environments import get_environment
from code_rl.policy.prompt_templates import PROMPTS, build_prompt, get_prompt_template
from code_rl.training.config import make_config
from code_rl.training.objective import environment_of
from tests.refusals import refused
from tests.training.pipeline_support import rollouts, small
from tests.verbs import train_command

VIEW = ProblemView("p", "Print 1.", None, None, ())
MODULE = """
def mine(view):
    return [{"role": "user", "content": view.statement.upper()}]
def none(view):
    return ["Print 1."]
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_default_is_livecodebench_s_in_one_message():
    assert get_prompt_template()(VIEW) == [{"role": "user", "content": build_prompt(VIEW)}]


@pytest.mark.parametrize("name", PROMPTS)
def test_a_system_prompt_stands_in_place_of_the_wording_s_own_and_an_empty_one_is_none(name):
    said = get_prompt_template(name, "Be brief.")(VIEW)
    assert [message["role"] for message in said] == ["system", "user"]
    assert said[0]["content"] == "Be brief."
    assert [message["role"] for message in get_prompt_template(name, "")(VIEW)] == ["user"]


@pytest.mark.parametrize("name", ["single", "repair"])
def test_every_environment_of_ours_begins_in_the_words_that_are_set(name):
    config = make_config({"environment": name, "prompt": "plain", "system_prompt": "S", "backend": "embedded"})
    assert environment_of(config).begin(VIEW) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Print 1."},
    ]


def test_a_wording_of_ones_own_is_a_function_by_its_path(module):
    assert get_prompt_template("my_words:mine")(VIEW) == [{"role": "user", "content": "PRINT 1."}]
    with refused("prompt="):
        get_prompt_template("my_words:none")(VIEW)


@pytest.mark.parametrize("setting", ["prompt", "system_prompt"])
def test_an_environment_of_ones_own_words_its_problems_itself(setting):
    with refused(f"{setting}=", "environment="):
        get_environment("tests.newcomer:Twice", **dict[str, Any]({setting: "plain"}))


@pytest.mark.long
def test_training_and_its_evaluations_draw_in_these_words_from_so_few_tokens(tmp_path):
    """top_p=0.01 leaves one answer, where the likeliest token always has that share: all of a group are the greedy one."""
    log_path = tmp_path / "run"
    words = {
        "prompt": "plain",
        "system_prompt": "You add.",
        "top_p": 0.01,
        "max_steps": 1,
        "eval_every": 0,
        "eval_limit": 2,
    }
    assert train_command(small(log_path, **words)) == 0
    words_of = load_tokenizer("tiny").decode
    for group in rollouts(log_path):
        assert "You add." in words_of(group["prompt_tokens"])
        assert "### Format" not in words_of(group["prompt_tokens"])
        assert len({tuple(each["tokens"]) for each in group["completions"]}) == 1
    before = json.loads((log_path / "metrics.jsonl").read_text().splitlines()[0])
    assert before["eval/pass@1"] == before["eval/mean_correct"]


def test_a_prompt_names_the_language_of_the_problem():
    view = ProblemView("squares", "Print n * n in python.", None, None, (), "cpp")
    text = build_prompt(view)
    assert "expert C++ programmer" in text
    assert "```cpp\nYOUR CODE HERE\n```" in text
    assert text.lower().count("python") == 1
    plain = PROMPTS["plain"](ProblemView("f", "Write f.", "int f(int x);", None, (), "c"))
    assert plain[0]["content"] == "Write f.\n\n```c\nint f(int x);\n```"
