"""A server of the Tinker protocol as checks see it: the requests that they are made of, in a session that is ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from code_rl.places import Place

Array = npt.NDArray[np.float64]
RATE = 0.01
_RANK, _CLOSE_S = 4, 5.0


def tokens(seed: int, length: int) -> list[int]:
    """Ids that are inside every vocabulary."""
    return [int(token) for token in np.random.default_rng(seed).integers(20, 600, length)]


A, B, PROBE, PROMPT = tokens(1, 24), tokens(2, 17), tokens(4, 20), tokens(0, 12)


class Audited:
    """A server, by its address or a proxy's, and the requests that checks are made of. Each waits `timeout_s` at most."""

    def __init__(self, place: Place, model: str, timeout_s: float, url: str | None = None) -> None:
        import tinker

        self.place, self.model, self.timeout_s = place, model, timeout_s
        self._models: list[str] = []
        self._saved: list[str] = []
        self._where: dict[str, Any] = {"base_url": url or place.url, "api_key": place.key}
        self._service: Any = tinker.ServiceClient(**self._where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Give the models back, delete what was saved, end the session. What an SDK, or a server, has no word for stays there."""
        import tinker

        with contextlib.suppress(Exception):
            self._unload()

        for path in self._saved:
            with contextlib.suppress(Exception):
                self._done(tinker.RestClient(**self._where).delete_checkpoint_from_tinker_path(path))
        with contextlib.suppress(Exception):
            self._done(self._service.close("success"))

    def _unload(self) -> None:
        """The protocol has a request for it, the SDK no call; ending the session does not do it on every server."""
        import httpx

        with httpx.Client(headers={"X-API-Key": self.place.key or ""}, timeout=min(self.timeout_s, _CLOSE_S)) as client:
            for model in self._models:
                body = {"model_id": model, "type": "unload_model"}
                client.post(f"{self._where['base_url']}/api/v1/unload_model", json=body)

    def _done(self, future: Any) -> None:
        future.result(timeout=min(self.timeout_s, _CLOSE_S))

    def wait(self, value: Any) -> Any:
        """The result of a future, or what is none."""
        return value.result(timeout=self.timeout_s) if hasattr(value, "result") else value

    def trainer(self, model: str | None = None, seed: int = 0) -> Any:
        """A fresh adapter."""
        return self._made(self._service.create_lora_training_client(model or self.model, rank=_RANK, seed=seed))

    def sampler(self, trainer: Any = None) -> Any:
        """Of a training client's weights, or of the base model."""
        made = trainer.save_weights_and_get_sampling_client() if trainer is not None else None
        return self.wait(made or self._service.create_sampling_client(base_model=self.model))

    def saved(self, trainer: Any) -> str:
        """The path of its state, which is deleted in the end."""
        path: str = self.wait(trainer.save_state(f"audit-{time.time_ns()}")).path
        self._saved.append(path)
        return path

    def restored(self, path: str) -> Any:
        """A training client from a saved state."""
        return self._made(self._service.create_training_client_from_state_with_optimizer(path))

    def _made(self, asked: Any) -> Any:
        client = self.wait(asked)
        self._models.append(client.model_id)
        return client

    def logprobs(self, trainer: Any, *sequences: list[int]) -> list[Array]:
        """Of each sequence's tokens but the first, by a forward pass."""
        return logprobs_of(self.wait(trainer.forward([datum(ids) for ids in sequences], "cross_entropy")))

    def scored(self, sampler: Any, ids: list[int]) -> Array:
        """The same, by the engine that samples, with or without a place for the first token."""
        return np.asarray(self.wait(sampler.compute_logprobs(text_of(ids)))[1 - len(ids) :], dtype=np.float64)

    def drawn(self, sampler: Any, prompt: list[int] = PROMPT, number: int = 3, **params: Any) -> Any:
        """Samples, of eight tokens unless told otherwise."""
        from tinker import types

        given = types.SamplingParams(**{"max_tokens": 8, "seed": 1, "temperature": 1.0, **params})
        return self.wait(sampler.sample(text_of(prompt), number, given)).sequences

    def train(self, trainer: Any, *passes: Sequence[Any], **adam: float) -> Any:
        """Passes and a step, submitted before any is waited for; the step's answer."""
        from tinker import types

        futures = [trainer.forward_backward(list(data), _loss_of(data[0])) for data in passes]
        futures.append(trainer.optim_step(types.AdamParams(**{"learning_rate": RATE, **adam})))
        return [self.wait(future) for future in futures][-1]

    def after(self, *passes: Sequence[Any]) -> Array:
        """PROBE's log-probabilities after one step on these passes."""
        trainer = self.trainer()
        self.train(trainer, *passes)
        return self.logprobs(trainer, PROBE)[0]


def text_of(ids: Sequence[int]) -> Any:
    """As the protocol has it."""
    from tinker import types

    return types.ModelInput.from_ints(list(ids))


def datum(ids: list[int], **fields: Any) -> Any:
    """For cross-entropy with weights of 1, or for the policy losses where `logprobs` and `advantages` are given."""
    from tinker import types

    targets: Any = np.asarray(ids[1:])
    given: dict[str, Any] = {
        name: np.asarray(value, dtype=np.float32)
        for name, value in (fields or {"weights": np.ones(len(ids) - 1)}).items()
    }
    return types.Datum(model_input=text_of(ids[:-1]), loss_fn_inputs={"target_tokens": targets, **given})


def _loss_of(one: Any) -> str:
    return "importance_sampling" if "advantages" in one.loss_fn_inputs else "cross_entropy"


def logprobs_of(output: Any) -> list[Array]:
    """Of each datum that a pass answered."""
    return [np.asarray(each["logprobs"].data, dtype=np.float64) for each in output.loss_fn_outputs]
