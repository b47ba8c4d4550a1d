"""Every setting × every back end: a setting that is called supported reaches the engine, one that is called refused ends the run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from code_rl.engine import BackendKind
from code_rl.engine.local import EmbeddedService
from code_rl.policy import derive_seed
from scripts.write_settings import REACHING
from tests.engine.local.embedded_models import client_types
from tests.engine.remote.remote_support import settings
from tests.refusals import refused
from tests.verbs import train_command

GIVEN = {
    "learning_rate": "1.5e-3", "lora_rank": "5", "max_tokens": "47",
    "grad_clip_norm": "0.5", "temperature": "0.7", "top_p": "0.83", "top_k": "77", "seed": "11", "loss": "ppo", "clip_low": "0.15", "clip_high": "0.31", "kl_coef": "0.05",
}  # fmt: skip
LOCAL_GIVEN = {"threads": "1", "dtype": "bfloat16", "keep_checkpoints": "3"}
SAMPLER = "http://127.0.0.1:9"
REMOTE_GIVEN = {"checkpoint_ttl_days": "2"}


def backend_of(kind: BackendKind, url: str, environment) -> str:
    """The value of backend= for this kind; a key of ours where one is needed."""
    if kind is BackendKind.TINKER:
        environment.setenv("TINKER_BASE_URL", url)
        environment.setenv("TINKER_API_KEY", "tml-dummy")
    return url if kind is BackendKind.SERVER else str(kind)


@pytest.fixture(scope="module", params=list(BackendKind))
def arrived(request, server, tmp_path_factory):
    """One step with settings that differ from every default, and the values that reached the engine."""
    seen = SimpleNamespace(kind=request.param, adam=[], requests=[], loras=[], ttl=None, losses=[])
    with pytest.MonkeyPatch.context() as patch:
        spy(patch, seen)
        patch.setattr("code_rl.engine.local.service.multiplies_bfloat16", lambda _: True)
        backend = backend_of(request.param, server.url, patch)
        given = {**settings(backend, tmp_path_factory.mktemp("run"), max_steps="1"), **GIVEN}
        for name, value in {**LOCAL_GIVEN, **REMOTE_GIVEN}.items():
            if request.param in REACHING[name].honoured:
                given[name] = value
        assert train_command(given) == 0
    return seen


def spy(patch: pytest.MonkeyPatch, seen: SimpleNamespace) -> None:
    from tinker.lib.public_interfaces.training_client import TrainingClient

    trainer, sampler = client_types()
    learn, step, asked = trainer.forward_backward, trainer.optim_step, sampler.sample
    made, create = EmbeddedService.__init__, EmbeddedService.create_lora_training_client
    save = TrainingClient.save_state

    def began(self, *args, **kwargs):
        made(self, *args, **kwargs)
        seen.dtype = self.dtype

    def created(self, base_model, rank, seed=None, *parts):
        seen.loras.append((base_model, rank, seed))
        return create(self, base_model, rank, seed, *parts)

    def optim_step(self, params):
        seen.adam.append(params)
        return step(self, params)

    def requested(self, prompt, num_samples, sampling_params, include_prompt_logprobs=False, *rest, **named):
        seen.requests.append((sampling_params, include_prompt_logprobs))
        return asked(self, prompt, num_samples, sampling_params, include_prompt_logprobs, *rest, **named)

    def saved(self, name, ttl_seconds=None, **rest):
        seen.ttl = ttl_seconds
        return save(self, name, ttl_seconds=ttl_seconds, **rest)

    def learned(self, data, loss_fn, loss_fn_config=None):
        seen.losses.append((loss_fn, dict(loss_fn_config or {})))
        return learn(self, data, loss_fn, loss_fn_config)

    patch.setattr(EmbeddedService, "__init__", began)
    patch.setattr(EmbeddedService, "create_lora_training_client", created)
    patch.setattr(trainer, "optim_step", optim_step)
    patch.setattr(trainer, "forward_backward", learned)
    patch.setattr(sampler, "sample", requested)
    patch.setattr(TrainingClient, "save_state", saved)


def value_in_engine(seen: SimpleNamespace, setting: str) -> object:
    drawn = [params for params, _ in seen.requests if params.temperature == pytest.approx(0.7)]
    found = {
        "model_name": lambda: seen.loras[-1][0],
        "learning_rate": lambda: seen.adam[0].learning_rate,
        "grad_clip_norm": lambda: seen.adam[0].grad_clip_norm,
        "lora_rank": lambda: seen.loras[-1][1],
        "max_tokens": lambda: drawn[0].max_tokens,
        "temperature": lambda: drawn[0].temperature,
        "top_p": lambda: drawn[0].top_p,
        "top_k": lambda: drawn[0].top_k,
        "seed": lambda: (
            seen.loras[-1][2],
            {params.seed for params in drawn if params.seed is not None},
        ),
        "threads": torch.get_num_threads,
        "dtype": lambda: seen.dtype,
        "loss": lambda: {name for name, _ in seen.losses},
        "clip_low": lambda: 1 - seen.losses[-1][1]["clip_low_threshold"],
        "clip_high": lambda: seen.losses[-1][1]["clip_high_threshold"] - 1,
        "kl_coef": lambda: any(scored for _, scored in seen.requests),
        "checkpoint_ttl_days": lambda: seen.ttl / 86400,
    }
    return found[setting]()


EXPECTED = {
    **{
        name: float(text)
        for name, text in {**GIVEN, **LOCAL_GIVEN, **REMOTE_GIVEN}.items()
        if name not in ("loss", "dtype")
    },
    "loss": {"ppo"},
    "dtype": torch.bfloat16,
    "kl_coef": True,
    "model_name": "tiny",
    "seed": (11, {derive_seed(11, "sample", 0, index) for index in range(4)}),
}


# Without sampler= these are refused everywhere; beside it, see test_vllm.py and test_own_vllm.py.
BESIDE_SAMPLER = {"sampler_dir", "vllm_command"}


@pytest.mark.long
@pytest.mark.parametrize("setting", [name for name in REACHING if name not in BESIDE_SAMPLER])
def test_setting_arrives_or_ends_the_run(arrived, setting, server, tmp_path, monkeypatch):
    honoured = arrived.kind in REACHING[setting].honoured
    if honoured and setting == "sampler":
        with refused(f"sampler={SAMPLER}"):
            train_command(settings("embedded", tmp_path / "run", sampler=SAMPLER))
    elif honoured and setting == "keep_checkpoints":
        assert setting in LOCAL_GIVEN  # the run deletes them: tests/training/survival/test_resume.py
    elif honoured and setting != "device":
        expected = EXPECTED[setting]
        assert value_in_engine(arrived, setting) == (
            pytest.approx(expected) if isinstance(expected, float) else expected
        )
    elif honoured:
        with refused("device='mps'", "device=auto"):
            train_command(settings("embedded", tmp_path / "run", device="mps"))
    else:
        value = {"device": "cpu", "sampler": SAMPLER, **LOCAL_GIVEN, **REMOTE_GIVEN}[setting]
        backend = backend_of(arrived.kind, server.url, monkeypatch)
        given = settings(backend, tmp_path / "run") | {setting: value}
        with refused(f"{setting}=", "backend="):
            train_command(given)
        assert not (tmp_path / "run").exists()
