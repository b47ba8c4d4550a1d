"""`examples/rl_loop.py`: it takes the steps of a run with the same settings, in this process and against a server."""

from __future__ import annotations

import ast
import asyncio
import importlib
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import code_rl
from code_rl.util.door import names
from examples.rl_loop import Completion, Group, Settings, main, make_datums
from tests.paths import ROOT

LOOP = ROOT / "examples" / "rl_loop.py"
SMALL: dict[str, Any] = {"max_tokens": 64, "max_steps": 3, "eval_limit": 4, "eval_samples": 2}
SAME = ("mean_correct", "mean_reward", "n_datums", "eval/pass@1")


def group(*rewards: float | None) -> Group:
    return Group((1, 2, 3), [Completion((4, 5), (-0.5, -0.25), reward == 1.0, reward) for reward in rewards])


def test_a_datum_has_the_advantage_on_the_tokens_of_its_completion():
    right, wrong = make_datums(group(1.0, 0.0))
    assert right.model_input.to_ints() == [1, 2, 3, 4]
    assert right.loss_fn_inputs["advantages"].to_numpy().tolist() == [0.0, 0.0, 0.5, 0.5]
    assert wrong.loss_fn_inputs["advantages"].to_numpy().tolist() == [0.0, 0.0, -0.5, -0.5]


@pytest.mark.parametrize("rewards", [(1.0, 1.0), (0.0, 0.0, None), (None, None), ()])
def test_a_group_without_a_difference_has_no_datums(rewards):
    assert make_datums(group(*rewards)) == []


def test_a_completion_without_a_verdict_is_left_out():
    assert len(make_datums(group(1.0, None, 0.0))) == 2


def test_it_uses_public_names_only_and_is_short():
    assert len(LOOP.read_text().splitlines()) < 250
    for node in ast.walk(ast.parse(LOOP.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("code_rl"):
            package = importlib.import_module(node.module)
            assert Path(str(package.__file__)).name == "__init__.py", node.module
            public = {*getattr(package, "__all__", ()), *names(node.module)}
            assert {alias.name for alias in node.names} <= public, node.module


@pytest.mark.long
def test_its_steps_are_those_of_a_run_with_the_same_settings(tmp_path):
    records = asyncio.run(main(Settings(**SMALL)))
    run = code_rl.train(log_path=tmp_path, backend="embedded", executor="embedded", eval_every=0, **SMALL)
    expected = [{name: record[name] for name in SAME if name in record} for record in run.metrics[1:]]
    *steps, held_out = records
    assert [step["mean_reward"] for step in steps] == pytest.approx([each["mean_reward"] for each in expected])
    assert [step["mean_correct"] for step in steps] == pytest.approx([each["mean_correct"] for each in expected])
    assert [step["n_datums"] for step in steps] == [each["n_datums"] for each in expected]
    assert held_out["eval/pass@1"] == pytest.approx(expected[-1]["eval/pass@1"])


@pytest.mark.long
def test_it_trains_on_a_server_of_tinkers_protocol(tmp_path, monkeypatch):
    pytest.importorskip("prometheus_client")
    from tests.engine.serve.serve_support import KEY, ServerThread

    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with ServerThread(tmp_path) as server:
        settings = Settings(base_url=server.url, max_steps=2, max_tokens=32, group_size=4, eval_limit=0)
        records = asyncio.run(main(settings))
    assert [record["step"] for record in records] == [0, 1]
    assert all(math.isfinite(record["mean_reward"]) for record in records)
