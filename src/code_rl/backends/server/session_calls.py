"""Calls about sessions: begin, heartbeat, end; and what the server says of itself."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict
from tinker import types

from code_rl.backends.names import BUILT_IN, built_in_context
from code_rl.errors import ConfigError

from .core import Core
from .refusals import bad, unknown
from .requests import validated

KEPT_KEYS = 1024


class _Finish(BaseModel):
    model_config = ConfigDict(extra="forbid")
    reason: dict[str, Any]
    detail: str | None = None


class Capabilities(types.GetServerCapabilitiesResponse):
    """What the SDK asks for, and which losses there are with their settings, for those who would rather know at the start."""

    losses: dict[str, list[str]]


class SessionCalls:
    """What a ServiceClient calls."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_key: dict[str, str] = {}

    def create(self, data: Mapping[str, Any], key: str | None) -> types.CreateSessionResponse:
        """A new session; `key` is the client's idempotency key, under which a retry finds the session again."""
        request = validated(types.CreateSessionRequest, data)
        if key is not None and key in self._by_key:
            return types.CreateSessionResponse(session_id=self._by_key[key])
        self._core.refuse_when_draining()
        record = request.model_dump(mode="json", include={"tags", "user_metadata", "sdk_version", "display_name"})
        session_id = self._core.create_session(record)
        if key is not None:
            self._by_key[key] = session_id
            while len(self._by_key) > KEPT_KEYS:
                del self._by_key[next(iter(self._by_key))]
        return types.CreateSessionResponse(session_id=session_id)

    def heartbeat(self, data: Mapping[str, Any]) -> types.SessionHeartbeatResponse:
        """The client is alive."""
        self._core.session(validated(types.SessionHeartbeatRequest, data).session_id)
        return types.SessionHeartbeatResponse()

    def finish(self, session_id: str, data: Mapping[str, Any]) -> None:
        """The client is done: what it held is freed, its checkpoints stay. The first reason counts."""
        request = validated(_Finish, data)
        record = self._core.store.read_session(session_id)
        if record is None:
            raise unknown(f"session {session_id[:100]!r}")
        if request.reason.get("type") not in ("success", "errored", "interrupted"):
            raise bad("reason.type must be success, errored or interrupted")
        if record.get("finished") is not None:
            return
        session = self._core.session(session_id)
        session.finished = True
        self._core.store.write_session(
            session_id, {**record, "finished": {"type": request.reason["type"], "detail": request.detail}}
        )
        self._free(session_id)

    def _free(self, session_id: str) -> None:
        """Give up everything of a session but its checkpoints."""
        core = self._core
        core.promises.drop_session(session_id)
        for sampler_id in core.store.samplers_of(session_id):
            core.samplers.pop(sampler_id, None)
            core.store.delete_sampler(sampler_id)
        for run in core.runs_of(session_id):
            core.unload(run)

    def capabilities(self, wanted: str | None) -> Capabilities:
        """The models known by name: mapped ones, the built-in one and those in memory; and `wanted`, if it could be loaded."""
        core, contexts = self._core, dict[str, int | None]()
        for name, engine in list(core.engines.items()):
            if engine.loaded.done() and engine.loaded.exception() is None:
                contexts[name] = engine.loaded.result().context
        if (built_in := built_in_context()) is not None:
            contexts.setdefault(BUILT_IN, built_in)
        for asked, local in core.names.table.items():
            contexts.setdefault(asked, contexts.get(local))
        if wanted is not None and contexts.get(wanted) is None:
            with contextlib.suppress(ConfigError):
                contexts[wanted] = core.host.context_of(core.names.local(wanted))
        return Capabilities(
            losses={name: sorted(keys) for name, keys in core.host.losses.items()},
            supported_models=[
                types.SupportedModel(model_name=name, max_context_length=context, trainable=True, sampleable=True)
                for name, context in contexts.items()
            ],
        )
