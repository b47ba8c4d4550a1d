"""Forward passes, gradients and optimizer steps."""

import numpy as np
import pytest
from tinker import types

from .shapes import ADAM, forward, logprobs, policy, ready, refused, soft, supervised, text, tokens, train

A, B = tokens(1, 24), tokens(2, 17)


def loss_of(output):
    return output.metrics["loss:sum"]


def test_cross_entropy_is_a_weighted_sum_over_tokens_and_datums(backend):
    weights = np.linspace(0, 2, len(A) - 1).tolist()
    output = forward(backend.trainer(), [supervised(A, weights), supervised(B)])
    first, second = logprobs(output)
    assert loss_of(output) == pytest.approx(-float(np.dot(first, weights)) - float(second.sum()), rel=1e-5)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_policy_losses_follow_their_formulas(backend, loss):
    rng = np.random.default_rng(0)
    trainer = backend.trainer()
    now = logprobs(forward(trainer, [supervised(A)]))[0]
    sampled, advantages = now + rng.normal(0, 0.4, len(now)), rng.normal(0, 1, len(now))
    output = forward(trainer, [policy(A, sampled, advantages)], loss)
    ratio = np.exp(now - sampled)
    expected = {
        "importance_sampling": -(ratio * advantages),
        "ppo": -np.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages),
        "cispo": -(ratio.clip(0, 4) * advantages * now),
    }[loss]
    assert loss_of(output) == pytest.approx(float(expected.sum()), rel=1e-4, abs=1e-3)


def test_dro_is_its_formula_on_what_was_sampled_and_nothing_on_the_prompt(backend):
    rng = np.random.default_rng(0)
    trainer = backend.trainer()
    now = logprobs(forward(trainer, [supervised(A)]))[0]
    sampled, advantages = now + rng.normal(0, 0.4, len(now)), rng.normal(0, 1, len(now))
    advantages[12] = 0.0  # sampled all the same
    sampled[:5] = advantages[:5] = 0.0
    output = forward(trainer, [policy(A, sampled, advantages)], "dro", {"beta": 0.3})
    expected = (0.15 * (now - sampled) ** 2 - now * advantages)[5:]
    assert loss_of(output) == pytest.approx(float(expected.sum()), rel=1e-4, abs=1e-3)


def test_soft_targets_are_weighted_targets_side_by_side(backend):
    rng = np.random.default_rng(3)
    trainer = backend.trainer()
    targets, weights = rng.integers(20, 600, (23, 3)), rng.uniform(0, 1, (23, 3))
    weights[:4] = 0.0
    output = forward(trainer, [soft(A, targets, weights), soft(B, targets[:16], weights[:16])])
    assert [list(o["logprobs"].shape) for o in output.loss_fn_outputs] == [[23, 3], [16, 3]]
    found = output.loss_fn_outputs[0]["logprobs"].to_numpy()
    for k in range(3):
        column = [*A[:1], *targets[:, k].tolist()]
        alone = types.Datum(model_input=text(A[:-1]), loss_fn_inputs=supervised(column).loss_fn_inputs)
        assert np.allclose(found[:, k], logprobs(forward(trainer, [alone]))[0], atol=1e-4)
    both = [np.asarray(o["logprobs"].data).reshape(-1, 3) for o in output.loss_fn_outputs]
    expected = -float((both[0] * weights).sum() + (both[1] * weights[:16]).sum())
    assert loss_of(output) == pytest.approx(expected, rel=1e-5)


def test_soft_targets_train_as_their_weights_on_one_target_do(backend):
    halves, whole = backend.trainer(), backend.trainer()
    twice = np.stack([A[1:], A[1:]], axis=1)
    train(halves, [soft(A, twice, np.full((23, 2), 0.5))])
    train(whole, [supervised(A)])
    probe = [supervised(B)]
    assert np.allclose(logprobs(forward(halves, probe))[0], logprobs(forward(whole, probe))[0], atol=1e-4)


def test_a_custom_loss_of_soft_targets_trains_though_most_of_its_weights_are_zero(backend):
    """The SDK sends such weights as compressed rows."""
    torch = pytest.importorskip("torch")
    targets, weights = np.tile(np.array(A[1:])[:, None], (1, 4)), np.zeros((23, 4))
    weights[7:, 2] = 1.0
    data = [soft(A, targets, weights)]

    def loss(_, logprobs_list):
        return -(logprobs_list[0] * torch.tensor(weights, dtype=torch.float32)).sum(), {}

    custom, plain = backend.trainer(), backend.trainer()
    custom.forward_backward_custom(data, loss).result()
    custom.optim_step(ADAM).result()
    train(plain, [supervised(A, weights[:, 2].tolist())])
    probe = [supervised(B)]
    assert np.allclose(logprobs(forward(custom, probe))[0], logprobs(forward(plain, probe))[0], atol=1e-4)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ([soft(A, np.ones((23, 2)), np.ones((23, 3)))], "weights"),
        ([soft(A, np.ones((22, 2)), np.ones((22, 2)))], "target_tokens"),
        ([soft(A, np.ones((23, 0)), np.ones((23, 0)))], "target_tokens"),
        ([soft(A, np.ones((23, 2)), np.ones((23, 2))), soft(B, np.ones((16, 3)), np.ones((16, 3)))], "datum 1"),
        ([soft(A, np.ones((23, 2)), np.ones((23, 2))), supervised(B)], "datum 1"),
    ],
    ids=["weights", "length", "none", "other number", "hard"],
)
def test_soft_targets_that_do_not_fit_are_refused_by_name(backend, data, named):
    with refused(named):
        forward(backend.trainer(), data)


def test_a_fresh_adapter_changes_nothing(backend):
    ids = tokens(3, 20)
    scored = ready(backend.base_sampler().compute_logprobs(text(ids)))
    assert scored[0] is None
    trained = logprobs(forward(backend.trainer(), [supervised(ids)]))[0]
    assert np.allclose(scored[1:], trained, atol=2e-4)


def test_gradients_accumulate_until_the_step(backend):
    apart, gather_or_cancel = backend.trainer(), backend.trainer()
    apart.forward_backward([supervised(A)], "cross_entropy")
    train(apart, [supervised(B)])
    train(gather_or_cancel, [supervised(A), supervised(B)])
    probe = [supervised(tokens(4, 20))]
    assert np.allclose(logprobs(forward(apart, probe))[0], logprobs(forward(gather_or_cancel, probe))[0], atol=1e-4)


def test_forward_leaves_no_gradient(backend):
    trainer, plain = backend.trainer(), backend.trainer()
    forward(trainer, [supervised(A)])
    train(trainer, [supervised(B)])
    train(plain, [supervised(B)])
    probe = [supervised(A)]
    assert np.allclose(logprobs(forward(trainer, probe))[0], logprobs(forward(plain, probe))[0], atol=1e-5)


def test_one_seed_gives_one_training(backend):
    def run():
        trainer = backend.trainer(seed=7)
        return [loss_of(train(trainer, [supervised(A), supervised(B)])[0]) for _ in range(3)]

    assert run() == pytest.approx(run(), rel=1e-6)


def test_models_do_not_disturb_each_other(backend):
    left, right = backend.trainer(), backend.trainer()
    before = loss_of(forward(right, [supervised(A)]))
    train(left, [supervised(A)])
    assert loss_of(forward(right, [supervised(A)])) == pytest.approx(before, rel=1e-6)


@pytest.mark.long
def test_more_datums_than_a_request_holds_come_back_in_order(backend):
    data = [supervised(tokens(i, 3 + i % 5)) for i in range(1100)]
    output = forward(backend.trainer(), data)
    assert [len(lp) for lp in logprobs(output)] == [2 + i % 5 for i in range(1100)]
    assert loss_of(output) == pytest.approx(-sum(float(lp.sum()) for lp in logprobs(output)), rel=1e-4)


def test_bad_data_fails_its_request_and_the_step_behind_it_and_no_more(backend):
    trainer = backend.trainer()
    before = loss_of(forward(trainer, [supervised(A)]))
    failed, step = trainer.forward_backward([supervised([5, 10**6, 7])], "cross_entropy"), trainer.optim_step(ADAM)
    with refused("vocabulary"):
        failed.result()
    with refused("step"):
        step.result()
    assert loss_of(forward(trainer, [supervised(A)])) == pytest.approx(before, rel=1e-6)
    train(trainer, [supervised(A)])
    assert loss_of(forward(trainer, [supervised(A)])) < before


@pytest.mark.parametrize("arguments", [("no_such_loss",), ("ppo", {"no_such_setting": 1.0})], ids=["loss", "setting"])
def test_no_step_is_taken_with_what_came_before_a_refused_pass(backend, arguments):
    trainer = backend.trainer()
    before = loss_of(forward(trainer, [supervised(A)]))
    trainer.forward_backward([supervised(A)], "cross_entropy").result()
    with refused("no_such"):
        trainer.forward_backward([supervised(A)], *arguments).result()
    with refused("step"):
        trainer.optim_step(ADAM).result()
    assert loss_of(forward(trainer, [supervised(A)])) == pytest.approx(before, rel=1e-6)


def test_a_custom_policy_loss_equals_the_built_in_one(backend):
    torch = pytest.importorskip("torch")
    now = logprobs(forward(backend.trainer(), [supervised(A)]))[0]
    rng = np.random.default_rng(1)
    data = [policy(A, now + rng.normal(0, 0.4, len(now)), rng.normal(0, 1, len(now)))]

    def loss(given, logprobs_list):
        inputs = {name: torch.tensor(np.asarray(t.data)) for name, t in given[0].loss_fn_inputs.items()}
        return -(torch.exp(logprobs_list[0] - inputs["logprobs"]) * inputs["advantages"]).sum(), {}

    custom, built_in = backend.trainer(), backend.trainer()
    output = custom.forward_backward_custom(data, loss).result()
    custom.optim_step(ADAM).result()
    expected, _ = train(built_in, data, "importance_sampling")
    assert loss_of(output) == pytest.approx(loss_of(expected), rel=1e-4, abs=1e-3)
    probe = [supervised(B)]
    assert np.allclose(logprobs(forward(custom, probe))[0], logprobs(forward(built_in, probe))[0], atol=1e-4)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_service_lists_the_model(backend):
    listed = ready(backend.service.get_server_capabilities()).supported_models
    assert backend.model in [model.model_name for model in listed]


def test_a_client_knows_its_model(backend):
    info = backend.trainer(rank=3).get_info()
    assert (info.is_lora, info.lora_rank, info.model_data.model_name) == (True, 3, backend.model)
