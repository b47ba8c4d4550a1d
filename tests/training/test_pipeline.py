"""The overlapped schedule: the weights of each sample, K = 0 as the sequential loop, and exact resume."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from code_rl.util.concurrency import BackgroundTasks
from code_rl.util.errors import BackendError, CheckpointError
from tests.training.pipeline_support import rollouts, sequential_reference, small, untimed
from tests.verbs import train_command


@pytest.fixture(scope="module")
def one_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("runs") / "one-behind"
    assert train_command(small(log_path, max_steps_off_policy=1, max_steps=4, eval_every=2)) == 0
    return log_path


@pytest.mark.long
def test_without_overlap_every_sample_and_every_trained_token_is_that_of_the_sequential_loop(tmp_path):
    reference = sequential_reference(small(tmp_path / "reference", max_steps=2))
    assert train_command(small(tmp_path / "run", max_steps=2)) == 0
    groups = rollouts(tmp_path / "run")
    for record, expected in zip(untimed(tmp_path / "run"), reference, strict=True):
        own = [group["completions"] for group in groups if group["step"] == record["step"]]
        assert [[member["tokens"] for member in members] for members in own] == expected["tokens"]
        assert [[member["logprobs"] for member in members] for members in own] == expected["logprobs"]
        assert (record["mean_reward"], record["n_datums"]) == (expected["mean_reward"], expected["n_datums"])
        assert record["staleness/mean"] == 0


@pytest.mark.long
def test_every_batch_is_sampled_from_the_weights_of_k_steps_before(one_behind):
    ages = {(group["step"], group["policy_step"]) for group in rollouts(one_behind)}
    assert ages == {(0, 0), (1, 0), (2, 1), (3, 2)}
    for record in untimed(one_behind):
        if record["step"] >= 1 and record["n_datums"]:
            assert record["staleness/1"] == record["n_datums"]


@pytest.mark.long
def test_overlapped_metrics_are_in_order_with_their_evaluations(one_behind):
    records = untimed(one_behind)
    assert [record["step"] for record in records] == [-1, 0, 1, 2, 3]
    assert ["eval/mean_correct" in record for record in records] == [True, False, True, False, True]


@pytest.mark.long
def test_places_without_variance_are_filled_again_with_other_problems_within_the_budget(tmp_path):
    assert train_command(small(tmp_path, dynamic_sampling=2, max_steps=2)) == 0
    groups = rollouts(tmp_path)
    by_place: dict[tuple[int, int], list[dict]] = {}
    for group in groups:
        by_place.setdefault((group["step"], group["group"]), []).append(group)
    assert len(groups) > len(by_place)
    for attempts in by_place.values():
        assert [attempt["attempt"] for attempt in attempts] == list(range(len(attempts)))
        assert len(attempts) <= 3
        assert all(attempt["skipped"] for attempt in attempts[:-1])
        assert len({attempt["problem_id"] for attempt in attempts}) == len(attempts)
        assert not attempts[-1]["skipped"] or len(attempts) == 3
    plain = tmp_path / "plain"
    assert train_command(small(plain, max_steps=1)) == 0
    assert [g for g in groups if g["step"] == 0 and g["attempt"] == 0] == rollouts(plain)
    records = untimed(tmp_path)
    assert sum(record["groups_refilled"] for record in records) == len(groups) - len(by_place)


@pytest.mark.slow
def test_minibatches_and_substeps_train_on_the_same_completions(tmp_path):
    first = {}
    for name, parts in {"whole": (1, 1), "minibatches": (1, 4), "substeps": (2, 2)}.items():
        settings = {"num_substeps": parts[0], "num_minibatches": parts[1], "max_steps": 2}
        assert train_command(small(tmp_path / name, **settings)) == 0
        first[name] = untimed(tmp_path / name)
    whole, minibatches, substeps = (first[name] for name in ("whole", "minibatches", "substeps"))
    assert minibatches[0]["loss"] == pytest.approx(whole[0]["loss"], abs=1e-6)
    assert minibatches[1]["mean_reward"] == whole[1]["mean_reward"]
    assert substeps[0]["mean_reward"] == whole[0]["mean_reward"]
    assert substeps[0]["ratio_max"] > 10 * whole[0]["ratio_max"]


async def broken() -> None:
    await asyncio.sleep(0)
    raise CheckpointError("the disk is full")


async def cancelled() -> None:
    """A TaskGroup passes over a task that ends cancelled, and with it over every job that waits for it."""
    request = asyncio.get_running_loop().create_future()
    request.cancel()
    await request


@pytest.mark.parametrize(("save", "error"), [(broken, CheckpointError), (cancelled, BackendError)])
def test_work_on_the_side_that_fails_or_is_cancelled_ends_the_loop_at_once_with_its_own_error(save, error):
    done = []

    async def log() -> None:
        done.append("logged")

    async def steps() -> None:
        async with BackgroundTasks(waits=False) as side:
            for job in (log, save, log):
                await side.do(job)
            await side.rest()  # waits for all that is queued, and does not raise for it
            await asyncio.sleep(3600)

    async def loop() -> None:
        with pytest.raises(error):
            await steps()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    asyncio.run(loop())
    assert done == ["logged"]


@pytest.mark.parametrize("waits", [True, False])
def test_an_error_of_the_loop_keeps_its_cause_and_work_on_the_side_is_finished_otherwise(waits):
    done: list[int] = []

    async def slow() -> None:
        await asyncio.sleep(0.01)
        done.append(len(done))

    async def loop(error: Exception | None) -> None:
        async with BackgroundTasks(waits=waits) as side:
            await side.rest()
            await side.do(slow)
            await side.do(slow)
            await side.rest()
            assert done == [0, 1]
            if error is not None:
                raise error from OSError("the line")

    asyncio.run(loop(None))
    done.clear()
    with pytest.raises(CheckpointError) as raised:
        asyncio.run(loop(CheckpointError("broken")))
    assert isinstance(raised.value.__cause__, OSError)
