"""`code-rl serve` with an engine that does one thing wrong, for the audit of the audit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tinker import types

from code_rl.backends.embedded.lora import LoraSettings
from code_rl.backends.server.engine import EmbeddedEngine, EmbeddedHost
from tests.serve.serve_support import ServerThread


def _then(future: Future[Any], change: Callable[[Any], Any]) -> Future[Any]:
    made: Future[Any] = Future()

    def finish(done: Future[Any]) -> None:
        try:
            made.set_result(change(done.result()))
        except Exception as error:  # noqa: BLE001 - handed on
            made.set_exception(error)

    future.add_done_callback(finish)
    return made


class Honest(EmbeddedEngine):
    """Nothing wrong; remembers the last pass and step of each model."""

    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        if backward:
            self.last = run, data, loss_fn, config
        return super().run_pass(run, data, loss_fn, config, backward)

    def again(self, kind: str) -> None:
        """Carry the last pass out once more; after a step, with another step."""
        run, data, loss_fn, config = self.last
        EmbeddedEngine.run_pass(self, run, data, loss_fn, config, True)
        if "optim" in kind:
            EmbeddedEngine.optim_step(self, run, types.AdamParams(learning_rate=0.01))


class WrongLogprobs(Honest):
    @staticmethod
    def change(logprobs: list[float]) -> list[float]:
        return [logprob - 0.1 for logprob in logprobs]

    def sample(self, *args: Any) -> Future[Any]:
        def changed(response: Any) -> Any:
            sequences = [
                types.SampledSequence(
                    stop_reason=each.stop_reason,
                    sequence_id=each.sequence_id,
                    tokens_np=each.tokens_np,
                    logprobs_np=np.asarray(self.change(list(each.logprobs)), dtype=np.float32),
                )
                for each in response.sequences
            ]
            return types.SampleResponse(sequences=sequences)

        return _then(super().sample(*args), changed)


class ShiftedLogprobs(WrongLogprobs):
    @staticmethod
    def change(logprobs: list[float]) -> list[float]:
        return [-1.0, *logprobs[:-1]]


class WithoutFirst(Honest):
    def sample(self, *args: Any) -> Future[Any]:
        def changed(response: Any) -> Any:
            scored = response.prompt_logprobs_np
            return types.SampleResponse(
                sequences=response.sequences, prompt_logprobs_np=None if scored is None else scored[1:]
            )

        return _then(super().sample(*args), changed)


class DroppedStep(Honest):
    other = "learning_rate"

    def optim_step(self, run: str, params: types.AdamParams) -> Future[Any]:
        return super().optim_step(run, params.model_copy(update={self.other: 0.0}))


class DecayIgnored(DroppedStep):
    other = "weight_decay"


class ReversedStep(Honest):
    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        if backward:
            for each in data:
                weights = each.loss_fn_inputs["weights"]
                fields = {**each.loss_fn_inputs, "weights": types.TensorData.from_numpy(-weights.to_numpy())}
                data = [types.Datum(model_input=each.model_input, loss_fn_inputs=fields)]
        return super().run_pass(run, data, loss_fn, config, backward)


class DoubledGradient(Honest):
    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        if backward:
            super().run_pass(run, data, loss_fn, config, backward)
        return super().run_pass(run, data, loss_fn, config, backward)


class LastPassCounts(Honest):
    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        if backward and len(data) == 1 and len(data[0].model_input.to_ints()) == 16:
            backward = False
        return super().run_pass(run, data, loss_fn, config, backward)


class ForwardLearns(Honest):
    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        return super().run_pass(run, data, loss_fn, config, True)


class MeanLoss(Honest):
    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        def changed(output: Any) -> Any:
            output.metrics["loss:sum"] /= 23
            return output

        return _then(super().run_pass(run, data, loss_fn, config, backward), changed)


class SwappedDatums(Honest):
    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        def changed(output: Any) -> Any:
            output.loss_fn_outputs.reverse()
            return output

        return _then(super().run_pass(run, data, loss_fn, config, backward), changed)


class SwappedAnswers(Honest):
    """Two forward passes that wait at once get each other's answers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._waiting: tuple[Future[Any], Future[Any]] | None = None
        self._lock = threading.Lock()

    def run_pass(self, run: str, data: Any, loss_fn: str, config: Any, backward: bool) -> Future[Any]:
        mine, made = super().run_pass(run, data, loss_fn, config, backward), Future[Any]()
        if backward:
            return mine
        with self._lock:
            other, self._waiting = self._waiting, None
            if other is None:
                self._waiting = mine, made
                threading.Timer(1.0, self._alone, (mine, made)).start()
                return made
        other[0].add_done_callback(lambda done: made.set_result(done.result()))
        mine.add_done_callback(lambda done: other[1].set_result(done.result()))
        return made

    def _alone(self, mine: Future[Any], made: Future[Any]) -> None:
        with self._lock:
            if self._waiting is None or self._waiting[0] is not mine:
                return
            self._waiting = None
        made.set_result(mine.result())


class StaleSampler(Honest):
    first: Path | None = None

    def save(self, run: str, file: Path, training: bool, overwrite: bool, keep: bool = False) -> Future[None]:
        if training:
            return super().save(run, file, training, overwrite, keep)
        if self.first is None:
            self.first = Path(f"{file}.first")
            super().save(run, self.first, training, True).result()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.first.read_bytes())
        done: Future[None] = Future()
        done.set_result(None)
        return done


class SeedIgnored(Honest):
    drawn = 0

    def sample(self, weights: Path | None, request: types.SampleRequest, order: int) -> Future[Any]:
        self.drawn += 1
        params = request.sampling_params.model_copy(update={"seed": 1000 + self.drawn})
        return super().sample(weights, request.model_copy(update={"sampling_params": params}), order)


class TemperatureIgnored(Honest):
    other: Mapping[str, Any] = {"temperature": 1.0}

    def sample(self, weights: Path | None, request: types.SampleRequest, order: int) -> Future[Any]:
        params = request.sampling_params.model_copy(update=self.other)
        return super().sample(weights, request.model_copy(update={"sampling_params": params}), order)


class TopPIgnored(TemperatureIgnored):
    other: Mapping[str, Any] = {"top_p": 1.0}


class StopIgnored(TemperatureIgnored):
    other: Mapping[str, Any] = {"stop": None}


class ForgetsOptimizer(Honest):
    def create(
        self, run: str, lora: LoraSettings | None, file: Path | None = None, optimizer: bool = False
    ) -> Future[Any]:
        return super().create(run, lora, file, False)


class FailsOnBadData(Honest):
    def check_pass(self, data: Sequence[types.Datum], loss_fn: str, config: Any) -> None:
        try:
            super().check_pass(data, loss_fn, config)
        except Exception as error:
            raise RuntimeError("index out of range") from error


class Host(EmbeddedHost):
    """Engines of one kind."""

    def __init__(self, engine: type[Honest]) -> None:
        super().__init__(torch.device("cpu"), torch.float32, 16)
        self.engine = engine
        self.started: list[Honest] = []

    def start(self, name: str) -> Honest:
        self.started.append(self.engine(name, torch.device("cpu"), torch.float32, 16))
        return self.started[-1]


def serving(folder: Path, engine: type[Honest], **limits: Any) -> AbstractContextManager[Any]:
    """A server with such an engine."""
    return ServerThread(folder, host=Host(engine), **limits)


def repeats_itself(server: Any) -> None:
    """From now on the server carries out again what comes again."""
    seen = server.core.promises.seen

    def again(request_id: str, kind: str, fingerprint: bytes) -> Any:
        found = seen(request_id, kind, fingerprint)
        if found is not None and kind in ("forward_backward", "optim_step"):
            server._host.started[0].again(kind)
        return found

    server.core.promises.seen = again


FAULTS: dict[str, tuple[type[Honest], str, set[str]]] = {
    # name: the engine, the part of the audit that is to find it, and what it must say
    "wrong log-probabilities": (WrongLogprobs, "numbers", {"sampled_logprobs"}),
    "log-probabilities one token late": (ShiftedLogprobs, "numbers", {"logprobs_shifted"}),
    "dropped steps": (DroppedStep, "numbers", {"step_dropped"}),
    "reversed steps": (ReversedStep, "numbers", {"step_reversed"}),
    "gradients added twice": (DoubledGradient, "numbers", {"gradient"}),
    "some passes count for nothing": (LastPassCounts, "numbers", {"accumulation"}),
    "forward adds gradients": (ForwardLearns, "numbers", {"forward_has_gradient"}),
    "mean for sum": (MeanLoss, "numbers", {"loss_cross_entropy"}),
    "weight decay ignored": (DecayIgnored, "numbers", {"weight_decay_ignored"}),
    "datums in another order": (SwappedDatums, "order", {"datums_out_of_order"}),
    "answers swapped": (SwappedAnswers, "order", {"answers_swapped"}),
    "stale sampler": (StaleSampler, "sampling", {"stale_sampler"}),
    "seeds ignored": (SeedIgnored, "sampling", {"seed_ignored"}),
    "temperature ignored": (TemperatureIgnored, "sampling", {"temperature_ignored"}),
    "top_p ignored": (TopPIgnored, "sampling", {"top_p_ignored"}),
    "stops ignored": (StopIgnored, "sampling", {"stop_ignored"}),
    "optimizer not saved": (ForgetsOptimizer, "checkpoints", {"optimizer_state"}),
    "errors of its own for bad data": (FailsOnBadData, "refusals", {"unknown_token", "unknown_loss"}),
}
