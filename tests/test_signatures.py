"""Signatures of the functions that users call or bring: a change here breaks their code, and is meant to be noticed."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import code_rl

CALLED = {
    "code_rl:compute_advantages": "(rewards, estimator=None, trajectories=())",
    "code_rl:evaluate": "(problems=None, *, checkpoint=None, **settings)",
    "code_rl:evaluate_async": "(problems=None, *, policy=None, checkpoint=None, **settings)",
    "code_rl:extract_code": "(text, language='python', *, only=())",
    "code_rl:judge": "(problem, code, *, cpu_limit_s=None, all_tests=False)",
    "code_rl:judge_async": "(problem, code, executor=None, *, cpu_limit_s=None, all_tests=False, seconds=None)",
    "code_rl:load_problems": "(dataset, limit=None)",
    "code_rl:make_datum": "(tokens, logprobs, ob_len, advantage)",
    "code_rl:open_box": "(isolation='auto', *, disk_mb=256, environment=None, readable=(), writable=(), url=None)",
    "code_rl:should_skip": "(advantages)",
    "code_rl:train": "(**settings)",
    "tinker_utils.checkpoint:get_last_checkpoint": "(log_dir, required_key='state_path')",
    "tinker_utils.cli:check_log_dir": "(log_dir, behavior_if_exists='ask')",
    "tinker_utils.data:build_question": "(example)",
    "tinker_utils.env:sandbox_check_correctness": "(sample, generation, timeout=6, *, executor=None)",
    "tinker_utils.lcb:fetch_live_code_bench_system_prompt": "(prompt, starter_code=None)",
    "tinker_utils.renderers:get_renderer": "(name, tokenizer)",
    "code_rl:report": "(run, *, compare=(), out=None, browse=True)",
    "code_rl:train_step": "(training_client, datums, adam_params, loss=…, loss_config=None, temperature=1.0)",
    "tinker_utils.checkpoint:save_checkpoint": "(training_client, name, log_path, loop_state, kind='both')",
    "tinker_utils.env:CodeEnv": "(problem, tests, renderer, convo_prefix=None, format_coef=0.1, reward_timeout=6, executor=None)",
    "tinker_utils.lcb:normalize_tests": "(raw_tests, metadata=None)",
    "tinker_utils.renderers:Renderer.build_generation_prompt": "(self, messages, role='assistant')",
    "tinker_utils.log:setup_logging": "(log_dir, wandb_project=None, config=None)",
}
BROUGHT = {
    "code_rl.policy.environments:Environment.begin": "(self, problem)",
    "code_rl.policy.environments:Environment.reply": "(self, problem, conversation, grader)",
}
FIELDS = {
    "code_rl:Loss": ["name", "formula", "defaults", "inputs", "signal", "whole", "about", "limits", "by_name"],
    "code_rl:Reply": ["code", "verdict", "messages"],
    "code_rl:Trajectory": ["turns", "seed"],
    "code_rl.training.curriculum:History": ["groups", "solve_rate", "last_step"],
}


def found(path):
    module, _, names = path.partition(":")
    value = import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    return value


def plain(function):
    """The signature without annotations."""
    bare = inspect.signature(function)
    parameters = [each.replace(annotation=inspect.Parameter.empty) for each in bare.parameters.values()]
    shown = str(bare.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    return re.sub(r"=[A-Z]\w*\(.*?\}\)|=Loss\(.*?by_name=\w+\)", "=…", shown)


COURSE = ("checkpoint", "cli", "data", "env", "lcb", "log", "qwen", "renderers")


def public() -> Iterator[Any]:
    """The functions and classes of the library's front and the course's modules, and the methods of these classes."""
    fronts = [code_rl, *(import_module(f"tinker_utils.{name}") for name in COURSE)]
    for front in fronts:
        for name in getattr(front, "__all__", [name for name in vars(front) if not name.startswith("_")]):
            value = getattr(front, name)
            if inspect.isfunction(value):
                yield value
            elif inspect.isclass(value) and value.__module__.partition(".")[0] in ("code_rl", "tinker_utils"):
                yield value
                yield from (each for key, each in vars(value).items() if inspect.isfunction(each) and key[0] != "_")


def test_the_type_hints_of_everything_public_resolve():
    found = list(public())
    assert len(found) > 50
    for each in found:
        typing.get_type_hints(each)


@pytest.mark.parametrize(("path", "signature"), [*CALLED.items(), *BROUGHT.items()])
def test_the_signature_is_the_published_one(path, signature):
    assert plain(found(path)) == signature


@pytest.mark.parametrize(("path", "fields"), FIELDS.items())
def test_a_record_has_the_published_fields_in_order(path, fields):
    assert [field.name for field in dataclasses.fields(found(path))] == fields
