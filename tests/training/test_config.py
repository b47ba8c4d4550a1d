"""Settings: three spellings, recipes, both conventions of group_size, and clear refusals."""

from __future__ import annotations

import re

import chz
import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.cli.main import main
from code_rl.training.config import BatchShape, Config, batch_shape, make_config, refuse_idle
from code_rl.training.config.setting import facts_of
from code_rl.util.errors import ConfigError
from code_rl.util.settings import describe, make_settings, read_arguments


@pytest.mark.parametrize("words", [["max_steps=20"], ["--max_steps=20"], ["--max_steps", "20"], ["--max-steps", "20"]])
def test_every_spelling_means_the_same(words):
    assert read_arguments(words) == {"max_steps": "20"}


def test_values_may_hold_equals_signs_and_dashes():
    assert read_arguments(["--log_path", "--odd=name", "dataset=a=b"]) == {"log_path": "--odd=name", "dataset": "a=b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["20"], "cannot read the argument '20'"),
        (["--max_steps"], "needs a value"),
        (["seed=1", "--seed=2"], "given twice"),
        (["-x=1"], "cannot read"),
    ],
)
def test_unreadable_words_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        read_arguments(words)


@pytest.mark.parametrize(
    ("verb", "given", "meant"),
    [
        ("report", "run", "log_path"),
        ("train", "run", "log_path"),
        ("export", "log_path", "checkpoint"),
        ("eval", "run", "checkpoint"),
    ],
)
def test_another_verb_s_word_for_a_run_is_refused_with_the_right_one(verb, given, meant, capsys):
    assert main([verb, f"{given}=DIR"]) == 2
    assert f"unknown setting '{given}', did you mean '{meant}'?" in capsys.readouterr().err


def test_unknown_setting_gets_a_suggestion():
    with pytest.raises(ConfigError, match="unknown setting 'learning_rte', did you mean 'learning_rate'"):
        make_config({"learning_rte": "1"})
    with pytest.raises(ConfigError, match="unknown setting 'lr', did you mean 'learning_rate'"):
        make_config({"lr": "1e-4"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", "many"),
        ("max_steps", "1.5"),
        ("learning_rate", "fast"),
        ("isolation", "weak"),
        ("behavior_if_log_dir_exists", "overwrite"),
    ],
)
def test_value_of_the_wrong_type_is_named(name, value):
    with pytest.raises(ConfigError, match=f"{name}='{value}'"):
        make_config({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", "-1e-4"),
        ("learning_rate", "0"),
        ("learning_rate", "nan"),
        ("learning_rate", "inf"),
        ("length_coef", "1e39"),
        ("format_coef", "1e39"),
        ("temperature", "-0.1"),
        ("batch_size", "0"),
        ("max_tokens", "0"),
        ("max_steps", "0"),
        ("max_steps", "-2"),
        ("eval_limit", "0"),
        ("save_every", "-1"),
        ("reward_timeout", "0"),
        ("seed", "-1"),
        ("lora_rank", "0"),
        ("sandbox_concurrency", "0"),
        ("grad_clip_norm", "-1"),
        ("grad_clip_norm", "nan"),
        ("grad_clip_norm", "inf"),
    ],
)
def test_value_out_of_range_is_named(name, value):
    with pytest.raises(ConfigError, match=f"^{name}="):
        make_config({name: value})


def test_without_groups_per_batch_group_size_is_the_number_of_prompts():
    assert batch_shape(Config()) == BatchShape(prompts=8, samples_per_prompt=16)


def test_with_groups_per_batch_group_size_is_completions_per_prompt():
    config = make_config({"group_size": "8", "groups_per_batch": "128"})
    assert batch_shape(config) == BatchShape(prompts=128, samples_per_prompt=8)


def test_courses_command_line():
    words = [
        "--max_steps=20",
        "--max_tokens=4096",
        "--batch_size=32",
        "--group_size=8",
        "--eval_every=10",
        "--save_every=10",
    ]
    config = make_config(read_arguments(words))
    assert batch_shape(config) == BatchShape(prompts=8, samples_per_prompt=4)
    assert (config.max_steps, config.max_tokens, config.backend, config.model_name) == (20, 4096, "embedded", "tiny")


@given(st.integers(1, 300), st.integers(1, 300))
def test_batch_divides_exactly_or_is_refused(batch_size, group_size):
    config = make_settings(Config, {"batch_size": batch_size, "group_size": group_size})
    if batch_size % group_size:
        with pytest.raises(ConfigError, match="not divisible"):
            batch_shape(config)
    else:
        shape = batch_shape(config)
        assert shape.prompts * shape.samples_per_prompt == batch_size


@pytest.mark.parametrize(
    "given_settings", [{"groups_per_batch": "4"}, {"groups_per_batch": "4", "group_size": "4", "batch_size": "16"}]
)
def test_ambiguous_batch_is_refused(given_settings):
    with pytest.raises(ConfigError, match="groups_per_batch"):
        make_config(given_settings)


def test_embedded_default_is_the_tiny_recipe():
    config = make_config({})
    assert (config.recipe, config.model_name, config.learning_rate) == ("tiny", "tiny", 2e-3)


def test_what_is_given_wins_over_the_recipe():
    assert make_config({"recipe": "tiny", "learning_rate": "1e-3"}).learning_rate == 1e-3


def test_another_model_starts_from_the_plain_defaults():
    config = make_config({"model_name": "/models/qwen"})
    assert (config.recipe, config.learning_rate) == (None, 4e-5)


def test_unknown_recipe_lists_those_that_exist():
    with pytest.raises(ConfigError, match=r"unknown recipe 'tny', did you mean 'tiny'\?; there are: .*tiny"):
        make_config({"recipe": "tny"})


def test_back_end_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ConfigError, match="backend='hal9000'"):
        make_config({"backend": "hal9000"})


def test_sandbox_url_in_the_environment_chooses_the_executor(monkeypatch):
    monkeypatch.setenv("SANDBOX_URL", "http://localhost:9/run_code")
    assert make_config({}).executor == "http://localhost:9/run_code"
    assert make_config({"executor": "embedded"}).executor == "embedded"


def test_help_shows_every_setting_with_its_default():
    text = describe(Config, "train")
    for name in ("learning_rate=4e-05", "group_size=8", "save_every=10", "backend=auto"):
        assert name in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clip_high": "0.28"}, "clip_high=0.28 has no effect with loss=importance_sampling"),
        ({"clip_low": "0.1"}, "clip_low=0.1 has no effect"),
        ({"loss": "ppo", "clip_low": "1.5"}, "clip_low=1.5 must be"),
        ({"loss": "dro"}, "unknown loss 'dro'"),
        ({"overlong": "penalty"}, "overlong='penalty' must be judged, mask, mask_loss, wrong or penalty:TOKENS"),
        ({"overlong": "penalty:0"}, "overlong='penalty:0' must be"),
        ({"overlong": "mask:5"}, "overlong='mask:5' must be"),
        ({"overlong": "penalty:128"}, "overlong=penalty:128 is not below 128, max_tokens=128"),
        (
            {"overlong": "penalty:64", "max_tokens_schedule": "0:64,5:128"},
            "overlong=penalty:64 is not below 64, a limit of max_tokens_schedule",
        ),
        ({"num_substeps": "3"}, "num_substeps=3 times num_minibatches=1 does not divide the 8 prompts"),
        ({"max_steps_off_policy": "-1"}, "max_steps_off_policy=-1 must be 0 or above"),
        ({"difficulty": "0.9..0.1"}, "difficulty='0.9..0.1' must be LOW..HIGH"),
        ({"kl_coef": "nan"}, "kl_coef=nan must be"),
        ({"keep_checkpoints": "3", "save_every": "0"}, "keep_checkpoints=3 has no effect with save_every=0"),
        ({"test_dataset": "builtin", "eval_every": "-1"}, "test_dataset=builtin has no effect with eval_every=-1"),
    ],
)
def test_settings_that_would_do_nothing_or_cannot_be_are_refused_by_name(given, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        batch_shape(make_config(given))


def test_an_evaluation_that_is_turned_off_on_a_resume_keeps_the_problems_of_the_run():
    earlier = {"backend": "embedded", "executor": "embedded", "test_dataset": "builtin"}
    assert make_config({"eval_every": "-1"}, earlier).test_dataset == "builtin"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch_size": "8", "group_size": "8"}, "batch_size=8 leaves one completion per prompt"),
        ({"groups_per_batch": "16", "group_size": "1"}, "group_size=1 leaves one completion per prompt"),
        ({"temperature": "0"}, "temperature=0 makes all completions of a prompt the same"),
        ({"temperature": "1e-4"}, "temperature=0.0001 makes all completions of a prompt the same"),
        ({"top_k": "1"}, "top_k=1 makes all completions of a prompt the same"),
        ({"top_p": "1e-9"}, "top_p=1e-09 makes all completions of a prompt the same"),
    ],
)
def test_a_run_that_could_never_learn_anything_is_refused_by_name(given, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        refuse_idle(make_config(given))


def test_a_setting_that_does_not_say_who_honours_it_and_when_it_may_change_cannot_be():
    @chz.chz
    class Forgetful(Config):
        patience: float = chz.field(default=1.0, doc="Seconds.")

    with pytest.raises(TypeError, match=r"Forgetful\.patience does not say"):
        facts_of(Forgetful)


def test_clip_distances_become_the_thresholds_of_the_service():
    assert make_config({"loss": "ppo"}).loss_config == {}
    assert make_config({"loss": "ppo", "clip_low": "0.2", "clip_high": "0.28"}).loss_config == {
        "clip_low_threshold": pytest.approx(0.8),
        "clip_high_threshold": pytest.approx(1.28),
    }
