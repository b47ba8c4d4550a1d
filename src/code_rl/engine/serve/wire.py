"""Requests and results on the wire: protobuf for passes and sampled sequences, JSON for the rest.

A malformed message raises a `Refusal` that names the faulty part. The SDK retries 408, 409, 429 and
5xx, and gives up at once on any other 4xx. 410 means that the object no longer exists: the SDK then
submits a sample again, and fails a training request.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError
from tinker import types
from tinker.proto import tinker_public_pb2 as pb

from code_rl.util.errors import CheckpointError, InputError

USER = "user"
SERVER = "server"
Model = TypeVar("Model", bound=BaseModel)
MAX_SEQ_ID = 2**63 - 1
MAX_DENSE = 1 << 24
LONGEST_MESSAGE = 1000
_DTYPES: Mapping[int, np.dtype[Any]] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
}
_STOP = {"stop": pb.STOP_REASON_STOP, "length": pb.STOP_REASON_LENGTH}
PROTOBUF = "application/x-protobuf"


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the server
    """An HTTP answer other than success. `retry_after_s` is when the client should try again."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        """Make the message one line of at most 1,000 characters. `retry_after_s` None: no time is
        named."""
        super().__init__(" ".join(message.split())[:LONGEST_MESSAGE])
        self.status = status
        self.retry_after_s = retry_after_s


bad = partial(Refusal, 400)
"""The request cannot be served as it is; not retried."""
gone = partial(Refusal, 410)
"""The named object existed and no longer does."""
busy = partial(Refusal, 429, retry_after_s=1)
"""A queue is full; retried by the SDK with growing pauses."""


def unknown(what: str) -> Refusal:
    """Return a 404, not retried: something named in the request does not exist."""
    return Refusal(404, f"{what} is not known to this server")


def category(error: BaseException) -> str:
    """Return `user` for a failure that the request caused (InputError, CheckpointError, Refusal),
    else `server`, as the SDK's `RequestErrorCategory` names them."""
    return USER if isinstance(error, InputError | CheckpointError | Refusal) else SERVER


@dataclass(frozen=True)
class PassRequest:
    """One forward or forward_backward request. `fault` is the error in its data, if any; the
    request then fails in its turn."""

    model_id: str
    seq_id: int
    data: list[types.Datum]
    loss_fn: str
    loss_fn_config: dict[str, float | str] | None
    forward_only: bool
    fingerprint: bytes
    fault: Refusal | None


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises a Refusal (400) for anything else."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise bad(f"the body must be a JSON object, not {type(data).__name__}")
    return data


def validated(kind: type[Model], data: Mapping[str, Any]) -> Model:
    """Return `data` as one of the SDK's request types. Raises a Refusal (400) that names the first
    faulty field."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise bad(f"{kind.__name__}: {where}: {first['msg']}") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise bad(f"{kind.__name__}: {error}") from None


def checked_seq(seq_id: int | None, name: str = "seq_id") -> int:
    """Return a sequence number chosen by a client, unchanged. Raises a Refusal (400), with the
    field's `name`, if it is missing or out of range."""
    if seq_id is None or not 0 <= seq_id <= MAX_SEQ_ID:
        raise bad(f"{name}={seq_id} must be from 0 to {MAX_SEQ_ID}")
    return seq_id


def digest(body: bytes) -> bytes:
    """Return a 16-byte digest of a request, by which a retry is told from another request with the
    same number."""
    return hashlib.blake2b(body, digest_size=16).digest()


def read_pass(body: bytes) -> PassRequest:
    """Read a forward or forward_backward request; its provenance spans are ignored. A faulty datum
    becomes the request's `fault`, so that it fails in its turn. Raises a Refusal if the message
    itself cannot be read or has no valid number."""
    try:
        message = pb.ForwardBackwardRequest.FromString(body)
    except DecodeError as error:
        raise bad(f"the body is not a ForwardBackwardRequest: {error}") from None
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.WhichOneof("value") == "text" else value.number
    data: list[types.Datum] = []
    fault: Refusal | None = None
    try:
        data = [_datum(i, datum) for i, datum in enumerate(message.data)]
    except Refusal as error:
        fault = error
    return PassRequest(
        message.model_id,
        checked_seq(message.seq_id),
        data,
        message.loss_fn,
        config or None,
        message.forward_only,
        # A retry may write the entries of a map in another order.
        digest(message.SerializeToString(deterministic=True)),
        fault,
    )


def _datum(index: int, message: pb.Datum) -> types.Datum:
    """Decode the example at `index`. Raises a Refusal that names it, also for chunks other than
    text."""
    where = f"datum {index}"
    tokens: list[int] = []
    for chunk in message.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise bad(f"{where}: only text chunks are supported by the embedded engine")
        raw = chunk.encoded_text.tokens
        if len(raw) % 4:
            raise bad(f"{where}: {len(raw)} bytes of tokens are not whole 32-bit numbers")
        tokens += np.frombuffer(raw, dtype="<i4").tolist()
    inputs = {
        name: _tensor(f"{where}, {name}", tensor) for name, tensor in message.loss_fn_inputs.items()
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def _tensor(where: str, message: pb.Tensor) -> types.TensorData:
    """Decode a dense tensor, or a sparse one as dense, of float32 or int64. Raises a Refusal that
    names `where` if bytes and shape disagree or a sparse one is too large."""
    if message.dtype not in _DTYPES:
        raise bad(f"{where}: dtype {message.dtype} must be float32 or int64")
    dtype, shape = _DTYPES[message.dtype], list(message.shape)
    raw, rows = message.dense, dict[str, Any]()
    try:
        if message.HasField("sparse_csr"):
            raw, sparse = message.sparse_csr.values, message.sparse_csr
            for name in ("crow_indices", "col_indices"):
                part = np.frombuffer(getattr(sparse, name), dtype="<i8")
                rows[f"sparse_{name}"] = part.tolist()
            if math.prod(shape) > MAX_DENSE:
                raise ValueError(f"more than {MAX_DENSE} cells")
        data = np.frombuffer(raw, dtype=dtype)
        name = cast("types.TensorDtype", dtype.name)
        found = types.TensorData(data=data, dtype=name, shape=shape or None, **rows)
        return types.TensorData.from_numpy(found.to_numpy())
    except (ValueError, RuntimeError, AssertionError) as error:
        raise bad(f"{where}: {len(raw)} bytes of shape {shape}: {error}") from None


def encoded(result: object) -> tuple[bytes, str]:
    """Return a result's body and content type: protobuf for samples and passes, JSON for the SDK's
    other models. Other results are not allowed."""
    if isinstance(result, BaseModel):
        return result.model_dump_json(exclude_none=True).encode(), "application/json"
    if isinstance(result, types.SampleResponse):
        return _sample(result).SerializeToString(), PROTOBUF
    assert isinstance(result, types.ForwardBackwardOutput)
    return _pass(result).SerializeToString(), PROTOBUF


def _sample(result: types.SampleResponse) -> pb.SampleResponse:
    """Encode a response of sampling: tokens as int32 and log-probabilities as float32,
    little-endian. Prompt scores are included if there are any."""
    message = pb.SampleResponse()
    for sequence in result.sequences:
        into = message.sequences.add(stop_reason=_STOP[sequence.stop_reason])
        into.tokens = np.asarray(sequence.tokens_np, dtype="<i4").tobytes()
        into.logprobs = np.asarray(sequence.logprobs_np, dtype="<f4").tobytes()
    if result.prompt_logprobs_np is not None:
        message.prompt_logprobs = np.asarray(result.prompt_logprobs_np, dtype="<f4").tobytes()
    if (best := result.topk_prompt_logprobs_np) is not None:
        length, k = best.token_ids.shape
        message.topk_prompt_logprobs.CopyFrom(
            pb.TopkLogprobs(
                token_ids=best.token_ids.astype("<i4").tobytes(),
                logprobs=best.logprobs.astype("<f4").tobytes(),
                k=k,
                length=length,
            )
        )
    return message


def _pass(result: types.ForwardBackwardOutput) -> pb.ForwardBackwardOutput:
    """Encode the result of a pass: each output of all datums, as float32, in one field, with
    offsets in bytes. Every datum has the outputs of the first."""
    message = pb.ForwardBackwardOutput(loss_fn_output_type=result.loss_fn_output_type)
    record = message.loss_fn_outputs.add(num_datums=len(result.loss_fn_outputs))
    for name in result.loss_fn_outputs[0] if result.loss_fn_outputs else ():
        parts = [
            np.asarray(output[name].to_numpy(), dtype="<f4") for output in result.loss_fn_outputs
        ]
        field = record.fields[name]
        field.dtype = pb.DTYPE_FLOAT32
        field.trailing_shape.extend(parts[0].shape[1:])
        field.data = b"".join(part.tobytes() for part in parts)
        field.offsets = np.cumsum([0, *(part.nbytes for part in parts)], dtype="<i8").tobytes()
    for name, value in result.metrics.items():
        message.metrics[name] = value
    return message
