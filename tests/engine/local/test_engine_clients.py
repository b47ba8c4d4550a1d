"""Order, futures, failures, checkpoints and refusals of the embedded clients."""

import asyncio
import gc
import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinker import types
from tinker.lib.public_interfaces.api_future import APIFuture

from code_rl.engine.local import EmbeddedService
from code_rl.util.errors import BackendError, CheckpointError, DataError
from tests.engine.local.embedded_models import (
    policy_datum,
    reference,
    service,
    text,
    tokens,
    torch,
)
from tests.refusals import refused

ADAM = types.AdamParams(learning_rate=1e-2)


def data(n=3):
    prompt = tokens(0, 12)
    return [policy_datum(prompt, tokens(i, 5 + i), [-3.0] * (5 + i), 0.5 - 0.4 * i) for i in range(n)]


def client(tmp_path=None, **kwargs):
    made = service(reference("qwen3"), state_dir=tmp_path)
    return made, made.create_lora_training_client("m", rank=4, seed=0, **kwargs).result()


def steps(trainer, count):
    for i in range(count):
        trainer.forward_backward(data(2 + i % 2), "importance_sampling")
        trainer.optim_step(ADAM).result()


def test_futures_are_those_of_the_sdk():
    _, trainer = client()
    future = trainer.forward(data(), "ppo")
    assert isinstance(future, APIFuture)
    assert future.result(timeout=60) is future.future().result()

    async def awaited():
        direct = await trainer.forward(data(), "ppo")
        return direct.metrics == (await trainer.forward_backward(data(), "ppo")).metrics

    assert asyncio.run(awaited())
    assert asyncio.run(awaited())


def test_the_event_loop_is_not_blocked():
    _, trainer = client()

    async def run():
        gate = threading.Event()
        blocked = trainer.submit(gate.wait)
        pending = asyncio.ensure_future(trainer.forward(data(), "ppo").coroutine())
        await asyncio.sleep(0.01)
        assert not pending.done()
        gate.set()
        await blocked
        return await pending

    assert asyncio.run(run()).metrics


def engine_threads():
    return [t for t in threading.enumerate() if t.name.startswith("embedded-")]


def test_services_and_clients_that_are_dropped_end_their_threads():
    gc.collect()
    before = set(engine_threads())
    made, trainer = client()
    sampler = trainer.save_weights_and_get_sampling_client().result()
    sampler.compute_logprobs(text(tokens(0, 5))).result()
    trainer.forward(data(1), "ppo").result()
    started = set(engine_threads()) - before
    assert len(started) == 3
    del made, trainer, sampler
    gc.collect()
    for thread in started:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_a_custom_loss_that_fails_takes_no_step():
    _, trainer = client()
    trainer.forward_backward(data(), "ppo")

    def broken(given, logprobs):
        raise ArithmeticError("mine")

    failing = trainer.forward_backward_custom(data(), broken)
    step = trainer.optim_step(ADAM)
    with refused(kind=ArithmeticError):
        failing.result()
    with pytest.raises(BackendError):
        step.result()


def test_a_custom_loss_that_leaves_a_datum_out_is_refused_by_number():
    _, trainer = client()
    with refused("datum 1", kind=DataError):
        trainer.forward_backward_custom(data(2), lambda _, logprobs: (logprobs[0].sum(), {})).result()


def test_an_infinite_gradient_takes_no_step():
    _, trainer = client()
    before = trainer._lora.flat.clone()
    huge = policy_datum(tokens(0, 5), tokens(1, 5), [-60.0] * 5, 3e38)
    trainer.forward_backward([huge], "importance_sampling").result()
    with pytest.raises(BackendError):
        trainer.optim_step(ADAM).result()
    assert torch.equal(trainer._lora.flat, before)


@pytest.mark.parametrize("half", [False, True])
def test_a_restored_client_continues_bit_for_bit(tmp_path, half):
    """Optimizer included, and a gradient that was accumulated without a step."""
    _, straight = client(tmp_path)
    steps(straight, 2)
    if half:
        straight.forward_backward(data(), "ppo").result()
    path = straight.save_state("two").result().path
    again = service(reference("qwen3")).create_training_client_from_state_with_optimizer(path).result()
    for trainer in (straight, again):
        steps(trainer, 2)
        assert torch.equal(trainer._lora.flat, straight._lora.flat)
        assert trainer._learner.adam.steps == 4


def test_weights_for_sampling_are_no_state_to_train_on_with_its_optimizer(tmp_path):
    made, trainer = client(tmp_path)
    path = trainer.save_weights_for_sampler("s").result().path
    with pytest.raises(CheckpointError):
        made.create_training_client_from_state_with_optimizer(path).result()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    made, trainer = client(folder, train_unembed=False)
    steps(trainer, 1)
    return made, Path(trainer.save_state("s").result().path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1), bit=st.integers(0, 7), cut=st.booleans())
def test_damaged_state_is_refused(checkpoint, where, bit, cut):
    made, path = checkpoint
    whole = path.read_bytes()
    at = min(int(where * len(whole)), len(whole) - 1)
    damaged = path.with_name("damaged.state.safetensors")
    changed = whole[:at] if cut else whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
    damaged.write_bytes(changed)
    with pytest.raises(CheckpointError):
        made.create_training_client_from_state_with_optimizer(str(damaged)).result()


def changed(**fields):
    good = data(1)[0]
    return types.Datum(model_input=good.model_input, loss_fn_inputs=dict(good.loss_fn_inputs) | fields)


@pytest.mark.parametrize(
    ("datum", "word"),
    [
        (changed(mask=types.TensorData(data=[1.0] * 16, dtype="float32", shape=[16])), "mask"),
        (changed(advantages=np.zeros(5, dtype=np.float32)), "advantages"),
        (changed(advantages=np.full(16, np.inf, dtype=np.float32)), "advantages"),
        (changed(target_tokens=np.full(16, 97)), "target_tokens"),
        (changed(target_tokens=np.full(16, -100)), "target_tokens"),
        (changed(target_tokens=np.full(16, 1.5, dtype=np.float32)), "target_tokens"),
        (changed(target_tokens=np.zeros((16, 2), dtype=np.int64)), "target_tokens"),
        (types.Datum(model_input=text(tokens(0, 9)), loss_fn_inputs={"target_tokens": tokens(0, 9)}), "logprobs"),
        (types.Datum(model_input=text([]), loss_fn_inputs={}), "no tokens"),
        (types.Datum(model_input=text([200]), loss_fn_inputs={}), "vocabulary"),
        (types.Datum(model_input=text(tokens(0, 129)), loss_fn_inputs={}), "context"),
    ],
)
def test_malformed_data_is_refused_naming_datum_and_field(datum, word):
    _, trainer = client()
    with refused("datum 1", word, kind=DataError):
        trainer.forward([data(1)[0], datum], "ppo").result()
    with pytest.raises(DataError):
        trainer.forward([], "ppo").result()


def test_a_local_folder_equals_the_model_in_memory(tmp_path):
    model = reference("llama3")
    model.save_pretrained(tmp_path)
    made = EmbeddedService(device="cpu")
    trainer = made.create_lora_training_client(str(tmp_path), rank=2, seed=0).result()
    same = service(model).create_lora_training_client("m", rank=2, seed=0).result()
    outputs = [c.forward(data(), "ppo").result().metrics["loss:sum"] for c in (trainer, same)]
    assert outputs[0] == outputs[1]
    assert trainer.max_context_length() == 128
    names = {m.model_name: m.max_context_length for m in made.get_server_capabilities().supported_models}
    assert names[str(tmp_path)] == 128


def test_state_of_another_version_model_or_kind_is_refused(checkpoint, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    made, path = checkpoint
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    rank = json.dumps(json.loads(header["settings"]) | {"rank": 3}, sort_keys=True)
    headers = {"v": header | {"version": "99"}, "f": {"format": "pt"}, "r": header | {"settings": rank}}
    for name, changed in headers.items():
        save_file(tensors, tmp_path / name, metadata=changed)
    for name in (*headers, "none"):
        with refused(str(tmp_path / name), kind=CheckpointError):
            made.create_training_client_from_state(str(tmp_path / name)).result()
    with pytest.raises(CheckpointError):
        service(reference("qwen3", seed=1)).create_training_client_from_state(str(path)).result()


def test_saving_is_refused_where_it_cannot_be_honoured(tmp_path):
    with refused("state_dir"):
        client()[1].save_state("s")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError):
        client(tmp_path / "file" / "below")[1].save_state("s").result()


@pytest.mark.parametrize(
    ("loss", "config"),
    [
        *(("ppo", {"temperature": value}) for value in (0.0, float("nan"), True)),
        *(("ppo", {"clip_low_threshold": value}) for value in ("0.8", 1.5)),
        ("importance_sampling", {"clip_low_threshold": 0.8}),
        ("stable_reinforce", {"loss_fn": 0}),
    ],
)
def test_losses_and_settings_that_do_not_exist_are_refused_by_name(loss, config):
    with refused(*config):
        client()[1].forward(data(), loss, config).result()


def test_what_cannot_be_made_or_stepped_is_refused_by_name(tmp_path):
    made, trainer = client()
    for bad in ({"learning_rate": -1.0}, {"beta2": 1.0}, {"eps": float("nan")}):
        with refused(*bad):
            trainer.optim_step(types.AdamParams(**bad))
    with refused("optim_params"):
        trainer.optim_step()
    with refused("Dimuon"):
        trainer.optim_step(types.DimuonParams(learning_rate=0.1))
    for device, dtype, named in (("abacus", "float32", "abacus"), ("cpu", "float16", "float16")):
        with refused(named):
            EmbeddedService(device=device, dtype=dtype)
    for name in ("tinny", "/no/such/folder", str(tmp_path)):
        with refused(name):
            made.create_lora_training_client(name).result()
    with refused("model_path"):
        made.create_sampling_client()
    with refused("rank"):
        made.create_lora_training_client("tiny", rank=0).result()
    with refused("train"):
        made.create_lora_training_client("tiny", train_mlp=False, train_attn=False, train_unembed=False).result()
