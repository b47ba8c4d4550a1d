"""How `shim` calls the functions of a student's file, {"file": "train.py"}. Standard library and what the file itself imports; nothing is judged here."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Generator
from types import ModuleType
from typing import Any


class Future:
    """What a service would answer, at once; that it was waited for is recorded."""

    def __init__(self, events: list[list[Any]], number: int, value: Any) -> None:
        self._events, self._number, self._value = events, number, value

    def result(self, timeout: float | None = None) -> Any:
        """As in the SDK."""
        del timeout
        self._events.append(["wait", self._number])
        return self._value

    async def result_async(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """As in the SDK."""
        return self.result(timeout)

    async def coroutine(self) -> Any:
        """As in the SDK."""
        return self.result()

    def future(self) -> concurrent.futures.Future[Any]:
        """As in the SDK."""
        return _Done(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result_async().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"futures of the SDK have no {name!r}: result, result_async, future, coroutine and await are theirs"
        )


class _Done(concurrent.futures.Future[Any]):
    """A future of the standard library's kind, of one that is recorded."""

    def __init__(self, recorded: Future) -> None:
        super().__init__()
        self._recorded = recorded
        self.set_result(None)

    def result(self, timeout: float | None = None) -> Any:
        """What the recorded one gives."""
        return self._recorded.result(timeout)


_REQUESTS = ("forward_backward", "forward", "forward_backward_custom", "optim_step")


class Tokenizer:
    """What `get_tokenizer` gives here: bytes for tokens, whatever the model's own are."""

    vocab_size, eos_token_id, pad_token_id, bos_token_id = 257, 256, 256, None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Its bytes."""
        del add_special_tokens
        return list(text.encode())

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Bytes again; ids that are none are shown."""
        del skip_special_tokens
        given = [token_ids] if isinstance(token_ids, int) else token_ids
        return "".join(chr(int(token)) if int(token) < 256 else f"<{int(token)}>" for token in given)

    def __len__(self) -> int:
        return self.vocab_size


async def _later(request: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return request(*given, **named)


class RecordingClient:
    """A training client that does nothing but record. Requests: ["submit", name, content]."""

    model_id = "audit:train:0"

    def __init__(self) -> None:
        self.events: list[list[Any]] = []
        self._submitted = 0

    def forward_backward(self, data: Any, loss_fn: Any, loss_fn_config: Any = None) -> Future:
        """As in the SDK; the log-probabilities that come back are those that were sent."""
        return self._pass("forward_backward", data, loss_fn, loss_fn_config)

    def forward(self, data: Any, loss_fn: Any, loss_fn_config: Any = None) -> Future:
        """As in the SDK."""
        return self._pass("forward", data, loss_fn, loss_fn_config)

    def forward_backward_custom(self, data: Any, loss_fn: Callable[..., Any], **_: Any) -> Future:
        """Recorded by the function's name; it is not computed."""
        return self.forward_backward(data, f"{getattr(loss_fn, '__name__', 'a function')} (forward_backward_custom)")

    def get_tokenizer(self) -> Tokenizer:
        """As in the SDK, but for its tokens."""
        return Tokenizer()

    def get_telemetry(self) -> None:
        """As in the SDK where telemetry is off."""

    def __getattr__(self, name: str) -> Any:
        """`…_async` of each request, as in the SDK."""
        request = name.removesuffix("_async")
        if request != name and request in _REQUESTS:
            return functools.partial(_later, getattr(self, request))
        raise AttributeError(
            f"the audit's training client has no {name!r}: train_step needs forward_backward and optim_step"
        )

    def _pass(self, name: str, data: Any, loss_fn: Any, loss_fn_config: Any) -> Future:
        from tinker import types

        data = list(data)
        outputs = [
            {"logprobs": datum.loss_fn_inputs["logprobs"]} for datum in data if "logprobs" in datum.loss_fn_inputs
        ]
        answer = types.ForwardBackwardOutput(
            loss_fn_output_type="TensorData", loss_fn_outputs=outputs, metrics={"loss:sum": 0.0}
        )
        content = {"datums": [plain(datum) for datum in data], "loss": plain(loss_fn), "config": plain(loss_fn_config)}
        return self._submit(name, content, answer)

    def optim_step(self, adam_params: Any) -> Future:
        """As in the SDK."""
        from tinker import types

        content = adam_params.model_dump() if hasattr(adam_params, "model_dump") else plain(adam_params)
        return self._submit("optim_step", content, types.OptimStepResponse(metrics={}))

    def _submit(self, name: str, content: Any, answer: Any) -> Future:
        self._submitted += 1
        self.events.append(["submit", name, content])
        return Future(self.events, self._submitted - 1, answer)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: arrays as lists, datums as tokens and named fields, what is neither as what it is called."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "model_input"):
        fields = {
            str(name): {"data": plain(field.data), "dtype": str(getattr(field, "dtype", "?"))}
            for name, field in value.loss_fn_inputs.items()
        }
        return {"tokens": [int(token) for token in value.model_input.to_ints()], "fields": fields}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return {"type": type(value).__name__, "shown": repr(value)[:200]}


def datum_of(given: Any) -> Any:
    """A datum of what `plain` made of one."""
    from tinker import types

    fields = {
        name: types.TensorData(data=field["data"], dtype=field["dtype"], shape=[len(field["data"])])
        for name, field in given["fields"].items()
    }
    return types.Datum(model_input=types.ModelInput.from_ints(given["tokens"]), loss_fn_inputs=fields)


def load(spec: dict[str, Any], module_of: Callable[[str, str], ModuleType]) -> tuple[dict[str, Any], ModuleType]:
    """The file as a module, and what functions it has."""
    file = spec["file"]
    sys.path.insert(0, os.path.dirname(file))
    sys.argv = [file]
    module = module_of("student", file)
    importlib.import_module("tinker")  # takes seconds, which are not the first function's
    return {"has": [name for name in dir(module) if callable(getattr(module, name))]}, module


def answer(module: ModuleType, question: dict[str, Any]) -> dict[str, Any]:
    """Call one function; what it returned, its arguments afterwards, and what a training client was told."""
    arguments = question["arguments"]
    client = RecordingClient()
    if question["function"] == "train_step":
        from tinker import types

        arguments = [client, [datum_of(each) for each in arguments[0]], types.AdamParams(**arguments[1])]
    value = getattr(module, question["function"])(*arguments)
    if inspect.isawaitable(value):
        value = asyncio.run(_awaited(value))
    kept = arguments[1:2] if question["function"] == "train_step" else arguments
    return {"value": plain(value), "after": plain(kept), "events": client.events}


async def _awaited(value: Any) -> Any:
    return await value


def told(error: BaseException, spec: dict[str, Any]) -> str:
    """An exception, with the line of the student's file where it rose."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == spec["file"]]
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    return (f"line {line}: " if line else "") + f"{type(error).__name__}: {error}"[:300]
