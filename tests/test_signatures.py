"""Signatures of what users call or bring: a change here breaks their code, and is meant to be noticed."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module

import pytest

CALLED = {
    "code_rl:compute_advantages": "(rewards, estimator=None, trajectories=())",
    "code_rl:evaluate": "(problems=None, *, checkpoint=None, **settings)",
    "code_rl:evaluate_async": "(problems=None, *, policy=None, checkpoint=None, **settings)",
    "code_rl:extract_code": "(text)",
    "code_rl:judge": "(problem, code, *, cpu_limit_s=None, all_tests=False)",
    "code_rl:judge_async": "(problem, code, executor=None, *, cpu_limit_s=None, all_tests=False)",
    "code_rl:load_problems": "(dataset, limit=None)",
    "code_rl:make_datum": "(tokens, logprobs, ob_len, advantage)",
    "code_rl:should_skip": "(advantages)",
    "code_rl:train": "(**settings)",
    "tinker_utils.checkpoint:get_last_checkpoint": "(log_dir, required_key='state_path')",
    "tinker_utils.cli:check_log_dir": "(log_dir, behavior_if_exists='ask')",
    "tinker_utils.data:build_question": "(example)",
    "tinker_utils.env:sandbox_check_correctness": "(sample, generation, timeout=6, *, executor=None)",
    "tinker_utils.lcb:fetch_live_code_bench_system_prompt": "(prompt, starter_code=None)",
    "tinker_utils.renderers:get_renderer": "(name, tokenizer)",
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
    return str(bare.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize(("path", "signature"), [*CALLED.items(), *BROUGHT.items()])
def test_the_signature_is_the_published_one(path, signature):
    assert plain(found(path)) == signature


@pytest.mark.parametrize(("path", "fields"), FIELDS.items())
def test_a_record_has_the_published_fields_in_order(path, fields):
    assert [field.name for field in dataclasses.fields(found(path))] == fields
