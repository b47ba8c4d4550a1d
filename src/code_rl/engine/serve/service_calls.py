"""The calls of the SDK's ServiceClient and RestClient: sessions, capabilities, runs, checkpoints
and their files."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict
from tinker import types

from code_rl.engine.local.models import context_of, supported
from code_rl.engine.local.passes import loss_settings
from code_rl.engine.local.state import read_state
from code_rl.util.errors import ConfigError

from .core import Core
from .store import Checkpoint, RunRecord
from .wire import bad, unknown, validated

T = TypeVar("T")
MAX_PAGE = 1000


class _Finish(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reason: dict[str, Any]
    detail: str | None = None


class WeightsInfoRequest(BaseModel):
    """The checkpoint to describe."""

    model_config = ConfigDict(extra="forbid")
    tinker_path: str


class ServiceCapabilities(types.GetServerCapabilitiesResponse):
    """The SDK's capabilities and two more facts: the losses with their settings, and why the
    requested model cannot be loaded."""

    losses: dict[str, list[str]]
    refused: str | None = None


class ServiceCalls:
    """Runs, checkpoints and sessions are read from the state folder, so they exist after a
    restart."""

    def __init__(self, core: Core) -> None:
        """Make the secret part of download addresses, which is new for each server."""
        self._core = core
        # A part of the files' addresses, which the SDK fetches without a key.
        self.secret = secrets.token_urlsafe()

    def create(self, request: types.CreateSessionRequest) -> types.CreateSessionResponse:
        """Create a session, of which a record is written. A repeated request creates another, so
        one whose answer was lost stays empty. Raises a Refusal while the server is shutting
        down."""
        self._core.refuse_when_draining()
        record = request.model_dump(
            mode="json", include={"tags", "user_metadata", "sdk_version", "display_name"}
        )
        return types.CreateSessionResponse(session_id=self._core.create_session(record))

    def heartbeat(self, request: types.SessionHeartbeatRequest) -> types.SessionHeartbeatResponse:
        """Mark the client as alive. Raises a Refusal if its session is unknown or finished."""
        self._core.session(request.session_id)
        return types.SessionHeartbeatResponse()

    def finish(self, session_id: str, data: Mapping[str, Any]) -> None:
        """End a client's session for good. Its models, samples and sampling sessions are freed and
        its checkpoints stay; the first reason is recorded, and later calls do nothing. Raises a
        Refusal for an unknown session or a malformed reason."""
        request = validated(_Finish, data)
        record = self._core.store.read_session(session_id)
        if request.reason.get("type") not in ("success", "errored", "interrupted"):
            raise bad("reason.type must be success, errored or interrupted")
        if record.get("finished") is not None:
            return
        core, finished = self._core, {"type": request.reason["type"], "detail": request.detail}
        core.session(session_id).finished = True
        core.store.write_session(session_id, {**record, "finished": finished})
        core.drop_samples(session_id)
        core.promises.drop(lambda p: p.session_id == session_id and p.done.is_set())
        for sampler_id in core.samplers_of(session_id):
            core.drop_sampler(sampler_id)
        for run in core.runs_of(session_id):
            core.unload(run)

    def capabilities(self, wanted: str | None) -> ServiceCapabilities:
        """Return the models known by name (mapped ones, the built-in one, those in memory) with
        their contexts in tokens, and `wanted` if it can be loaded (None: no other). If it cannot,
        the answer says why. Nothing is loaded."""
        core, refused = self._core, None
        contexts: dict[str, int | None] = {**core.service.contexts()}
        for asked, local in core.models.items():
            contexts.setdefault(asked, contexts.get(local))
        if wanted is not None and contexts.get(wanted) is None:
            try:
                contexts[wanted] = context_of(core.local_name(wanted))
            except ConfigError as error:
                refused = str(error)
        losses = {name: sorted(keys) for name, keys in loss_settings().items()}
        return ServiceCapabilities(
            losses=losses, supported_models=supported(contexts), refused=refused
        )

    def runs(self, query: Mapping[str, str]) -> types.TrainingRunsResponse:
        """Return training runs, newest first, of the query's `limit` (default 20) and `offset`.
        Raises a Refusal if these are not whole numbers."""
        found, cursor = _page(self._core.store.runs(), query, 20)
        return types.TrainingRunsResponse(
            training_runs=[self._run(record) for record in found], cursor=cursor
        )

    def run(self, run_id: str) -> types.TrainingRun:
        """Return one training run. Raises a Refusal if it is unknown."""
        return self._run(self._core.store.run(run_id))

    def checkpoints_of(self, run_id: str) -> types.CheckpointsListResponse:
        """Return all checkpoints of a run, newest first. Raises a Refusal if the run is unknown."""
        found = self._core.store.checkpoints(self._core.store.run(run_id).run_id)
        return types.CheckpointsListResponse(checkpoints=[_checkpoint(c) for c in found])

    def checkpoints(self, query: Mapping[str, str]) -> types.CheckpointsListResponse:
        """Return the checkpoints of all runs, newest first, of the query's `limit` (default 100)
        and `offset`. Raises a Refusal if these are not whole numbers."""
        found, cursor = _page(self._core.store.checkpoints(), query, 100)
        return types.CheckpointsListResponse(
            checkpoints=[_checkpoint(c) for c in found], cursor=cursor
        )

    def sessions(self, query: Mapping[str, str]) -> types.ListSessionsResponse:
        """Return session ids, newest first, finished ones too, of the query's `limit` (default 20)
        and `offset`. Raises a Refusal if these are not whole numbers."""
        return types.ListSessionsResponse(sessions=_page(self._core.store.sessions(), query, 20)[0])

    def session(self, session_id: str) -> types.GetSessionResponse:
        """Return a session's runs, its sampling sessions in memory, and its metadata. Raises a
        Refusal if it is unknown."""
        record = self._core.store.read_session(session_id)
        return types.GetSessionResponse(
            training_run_ids=self._core.store.runs_of(session_id),
            sampler_ids=self._core.samplers_of(session_id),
            user_metadata=record.get("user_metadata"),
            display_name=record.get("display_name"),
        )

    def external_urls(
        self, checkpoint: Checkpoint, server: str
    ) -> types.ExternalWeightsUrlsResponse:
        """Return an address below `server` for each file of an external checkpoint. An address
        works without a key, for as long as this server runs."""
        folder = f"{server}/download/{self.secret}/{checkpoint.run_id}/{checkpoint.checkpoint_id}"
        urls = {name: f"{folder}/{name}" for name in self._files(checkpoint)}
        never = datetime.max.replace(tzinfo=UTC)
        return types.ExternalWeightsUrlsResponse(urls=urls, expires=never)

    def external_file(self, checkpoint: Checkpoint, name: str) -> web.FileResponse:
        """Send one of the files. Raises a Refusal if there is none of this name."""
        found = self._files(checkpoint).get(name)
        if found is None:
            raise unknown(f"file {name!r}")
        return web.FileResponse(found)

    def _files(self, checkpoint: Checkpoint) -> dict[str, Path]:
        """Return the files of an external checkpoint's folder by name, sorted."""
        return {file.name: file for file in sorted(self._core.store.path_of(checkpoint).iterdir())}

    def weights_info(self, request: WeightsInfoRequest) -> types.WeightsInfoResponse:
        """Return the base model and adapter settings of a checkpoint, for clients that load it; its
        file is read. Raises a Refusal if it is unknown."""
        checkpoint = self._core.store.find(request.tinker_path, "state", "sampler")
        meta = read_state(self._core.store.path_of(checkpoint)).meta
        return types.WeightsInfoResponse(
            base_model=self._core.store.run(checkpoint.run_id).base_model,
            is_lora=True,
            lora_rank=int(meta["rank"]),
            train_unembed=bool(meta["train_unembed"]),
            train_mlp=bool(meta["train_mlp"]),
            train_attn=bool(meta["train_attn"]),
        )

    def _run(self, record: RunRecord) -> types.TrainingRun:
        """Return a run as the SDK lists it, with its last training checkpoint and its last sampler
        weights."""
        found = self._core.store.checkpoints(record.run_id)
        last = {c.kind: _checkpoint(c) for c in reversed(found)}
        return types.TrainingRun(
            training_run_id=record.run_id,
            base_model=record.base_model,
            model_owner="local",
            is_lora=True,
            lora_rank=record.rank,
            # A time in seconds; pydantic converts it.
            last_request_time=max(  # type: ignore[arg-type]
                [record.created, *(c.time for c in found)]
            ),
            last_checkpoint=last.get("state"),
            last_sampler_checkpoint=last.get("sampler"),
            user_metadata=record.user_metadata,
        )


def _checkpoint(checkpoint: Checkpoint) -> types.Checkpoint:
    """Return a checkpoint as the SDK lists it, where kind `state` is called `training`."""
    return types.Checkpoint(
        checkpoint_id=checkpoint.checkpoint_id,
        checkpoint_type="training" if checkpoint.kind == "state" else checkpoint.kind,
        time=checkpoint.time,  # type: ignore[arg-type]
        tinker_path=checkpoint.tinker_path,
        size_bytes=checkpoint.size_bytes,
        user_metadata=checkpoint.user_metadata,
    )


def _page(found: list[T], query: Mapping[str, str], limit: int) -> tuple[list[T], types.Cursor]:
    """Return the part of a list that the query's `offset` (default 0) and `limit` ask for, at most
    1,000 entries, and its position. Raises a Refusal (400) if these are not whole numbers; values
    out of range are clipped."""
    try:
        limit, offset = int(query.get("limit", limit)), int(query.get("offset", 0))
    except ValueError:
        raise bad("limit and offset must be whole numbers") from None
    limit, offset = min(max(limit, 0), MAX_PAGE), max(offset, 0)
    cursor = types.Cursor(offset=offset, limit=limit, total_count=len(found))
    return found[offset : offset + limit], cursor
