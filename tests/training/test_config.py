"""Settings: three spellings, recipes, both conventions of group_size, and clear refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.cli.main import main
from code_rl.training.config import BatchShape, Config, batch_shape, make_config, refuse_idle
from code_rl.util.settings import describe, make_settings, read_arguments
from tests.refusals import refused


@pytest.mark.parametrize("words", ["max_steps=a=b", "--max_steps=a=b", "--max_steps a=b", "--max-steps a=b"])
def test_every_spelling_means_the_same_and_values_may_hold_equals_signs_and_dashes(words):
    assert read_arguments([*words.split(), "--log_path", "--odd=name"]) == {
        "max_steps": "a=b",
        "log_path": "--odd=name",
    }


@pytest.mark.parametrize("words", [["20"], ["--max_steps"], ["seed=1", "--seed=2"], ["-x=1"]])
def test_words_that_are_no_setting_are_refused(words):
    with refused():
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


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({}, (8, 16)),
        ({"batch_size": "32", "group_size": "8"}, (8, 4)),
        ({"groups_per_batch": "128", "group_size": "8"}, (128, 8)),
    ],
)
def test_group_size_is_completions_per_prompt_beside_groups_per_batch_and_else_the_prompts(given, shape):
    assert batch_shape(make_settings(Config, given)) == BatchShape(*shape)


@given(st.integers(1, 300), st.integers(1, 300))
def test_batch_divides_exactly_or_is_refused(batch_size, group_size):
    config = make_settings(Config, {"batch_size": batch_size, "group_size": group_size})
    if batch_size % group_size:
        with refused("batch_size="):
            batch_shape(config)
    else:
        shape = batch_shape(config)
        assert shape.prompts * shape.samples_per_prompt == batch_size


def test_sandbox_url_in_the_environment_chooses_the_executor(monkeypatch):
    monkeypatch.setenv("SANDBOX_URL", "http://localhost:9/run_code")
    assert make_config({}).executor == "http://localhost:9/run_code"
    assert make_config({"executor": "embedded"}).executor == "embedded"


def test_help_shows_every_setting_with_its_default():
    text = describe(Config, "train")
    for name in ("learning_rate=4e-05", "group_size=8", "save_every=10", "backend=auto"):
        assert name in text


def test_an_evaluation_that_is_turned_off_on_a_resume_keeps_the_problems_of_the_run():
    earlier = {"backend": "embedded", "executor": "embedded", "test_dataset": "builtin"}
    assert make_config({"eval_every": "-1"}, earlier).test_dataset == "builtin"


def test_clip_distances_become_the_thresholds_of_the_service():
    assert make_config({"loss": "ppo"}).loss_config == {}
    assert make_config({"loss": "ppo", "clip_low": "0.2", "clip_high": "0.28"}).loss_config == {
        "clip_low_threshold": pytest.approx(0.8),
        "clip_high_threshold": pytest.approx(1.28),
    }


@pytest.mark.parametrize(("given", "meant"), [("learning_rte", "learning_rate"), ("lr", "learning_rate")])
def test_an_unknown_setting_gets_a_suggestion(given, meant):
    with refused(f"'{given}'", f"'{meant}'"):
        make_config({given: "1"})


def test_a_recipe_gives_defaults_to_the_model_that_is_its_own():
    default, given, other = make_config({}), {"recipe": "tiny", "learning_rate": "1e-3"}, {"model_name": "/models/qwen"}
    assert (default.recipe, default.model_name, default.learning_rate) == ("tiny", "tiny", 2e-3)
    assert make_config(given).learning_rate == 1e-3
    assert (make_config(other).recipe, make_config(other).learning_rate) == (None, 4e-5)


def test_a_file_of_settings_is_a_recipe_wherever_the_run_goes_on(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text('model_name = "tiny"\nmax_steps = 7\nloss = "gspo"\n')
    monkeypatch.chdir(tmp_path)
    config = make_config({"recipe": "mine.toml", "max_steps": "9"})
    assert (config.loss, config.max_steps, config.recipe) == ("gspo", 9, str(tmp_path / "mine.toml"))
    for name, text in (("bad.toml", "max_step = 7"), ("broken.toml", "= 7"), ("absent.toml", None)):
        if text is not None:
            (tmp_path / name).write_text(text)
        with refused("max_step" if name == "bad.toml" else name):
            make_config({"recipe": name})


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_steps", "many 1.5 0 -2"),
        ("learning_rate", "fast -1e-4 0 nan inf"),
        ("isolation", "weak"),
        ("behavior_if_log_dir_exists", "overwrite"),
        ("length_coef", "1e39"),
        ("temperature", "-0.1"),
        ("batch_size", "0"),
        ("eval_limit", "0"),
        ("save_every", "-1"),
        ("reward_timeout", "0"),
        ("grad_clip_norm", "-1 nan inf"),
        ("max_steps_off_policy", "-1"),
        ("kl_coef", "nan"),
        ("backend", "hal9000"),
        ("difficulty", "0.9..0.1"),
        ("overlong", "penalty penalty:0 mask:5"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_setting(name, values):
    for value in values.split():
        with refused(f"{name}="):
            make_config({name: value})


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("groups_per_batch=4", "groups_per_batch"),
        ("groups_per_batch=4 group_size=4 batch_size=16", "groups_per_batch"),
        ("recipe=tny", "'tiny'"),
        ("loss=dro", "'dro'"),
        ("loss=stable_reinforce", "loss=tis"),
        ("clip_high=0.28", "clip_high=0.28 loss=importance_sampling"),
        ("loss=ppo clip_low=1.5", "clip_low=1.5"),
        ("overlong=penalty:128", "overlong=penalty:128 max_tokens=128"),
        ("overlong=penalty:64 max_tokens_schedule=0:64,5:128", "overlong=penalty:64 max_tokens_schedule"),
        ("num_substeps=3", "num_substeps=3 num_minibatches=1"),
        ("keep_checkpoints=3 save_every=0", "keep_checkpoints=3 save_every=0"),
        ("test_dataset=builtin eval_every=-1", "test_dataset=builtin eval_every=-1"),
        ("batch_size=8 group_size=8", "batch_size=8"),
        ("groups_per_batch=16 group_size=1", "group_size=1"),
        ("temperature=0", "temperature=0"),
        ("temperature=1e-4", "temperature=0.0001"),
        ("top_k=1", "top_k=1"),
        ("top_p=1e-9", "top_p=1e-09"),
    ],
)
def test_settings_that_contradict_each_other_or_would_do_nothing_are_refused_by_name(given, names):
    with refused(*names.split()):
        config = make_config(read_arguments(given.split()))
        batch_shape(config)
        refuse_idle(config)


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("model_name", "model/", "{here}/model"),
        ("model_name", "./model", "{here}/model"),
        ("model_name", "owner/model", "{here}/owner/model"),
        ("model_name", "owner/other", "owner/other"),
        ("model_name", "tiny", "tiny"),
        ("dataset", "a.jsonl", "{here}/a.jsonl"),
        ("dataset", "a.jsonl, mbpp", "{here}/a.jsonl,mbpp"),
        ("dataset", "model:test", "{here}/model:test"),
        ("dataset", "builtin", "builtin"),
        ("dataset", "mbpp:train", "mbpp:train"),
        ("dataset", "owner/other@1f:test", "owner/other@1f:test"),
        ("dataset", "package.module:problems", "package.module:problems"),
        ("test_dataset", "a.jsonl", "{here}/a.jsonl"),
        ("prices", "prices.toml", "{here}/prices.toml"),
        ("init_from", "run/000002", "{here}/run/000002"),
    ],
)  # fmt: skip
def test_a_path_that_exists_is_absolute_and_names_known_here_come_before_it(tmp_path, monkeypatch, name, value, kept):
    for folder in ("model", "owner/model", "tiny", "builtin", "mbpp"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    given = {"backend": "embedded", name: value}
    was = getattr(make_config(given), name)
    assert was == kept.format(here=tmp_path)
    monkeypatch.chdir("owner")
    assert getattr(make_config(given | {name: was}), name) == was


def test_the_model_of_a_server_keeps_its_name_whatever_is_in_this_folder(tmp_path, monkeypatch):
    (tmp_path / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert make_config({"backend": "http://localhost:1", "model_name": "owner/model"}).model_name == "owner/model"
