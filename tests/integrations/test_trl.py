"""TRL's GRPOTrainer with our reward, on the built-in model. Needs the extra `trl`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")

from code_rl import load_problems  # noqa: E402
from code_rl.engine.names import source_of  # noqa: E402
from code_rl.integrations.trl import code_reward, to_row  # noqa: E402


def train(folder, steps):
    """The log of `GRPOTrainer`, by step."""
    config = trl.GRPOConfig(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=32, num_generations=8, logging_steps=1,
        max_completion_length=48, learning_rate=1e-3, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=source_of("tiny"),
        reward_funcs=code_reward,
        args=config,
        train_dataset=datasets.Dataset.from_list([to_row(problem) for problem in load_problems("builtin", limit=16)]),
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "rewards/code_reward/mean" in entry]


@pytest.mark.slow
def test_the_trainer_takes_five_steps_on_our_rewards(tmp_path):
    logged = train(tmp_path, 5)
    for entry in logged:
        print({name: entry[name] for name in ("rewards/code_reward/mean", "unscored", "grad_norm", "loss")})
    assert len(logged) == 5
    assert all(0.0 <= entry["rewards/code_reward/mean"] <= 1.0 and entry["unscored"] == 0.0 for entry in logged)
    assert any(0.0 < entry["rewards/code_reward/mean"] < 1.0 and entry["grad_norm"] > 0.0 for entry in logged)


@pytest.mark.slow
@pytest.mark.usefixtures("broken")
def test_a_sandbox_that_is_down_gives_the_trainer_no_signal_rather_than_zeros(tmp_path):
    (entry,) = train(tmp_path, 1)
    assert entry["unscored"] == 1.0
    assert entry["rewards/code_reward/mean"] is None  # how TRL logs a mean of nothing
    assert entry["grad_norm"] == 0.0
