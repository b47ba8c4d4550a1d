"""What happens by itself: vanished clients free what they held, engines that nobody uses leave the memory, checkpoints whose
time is over are deleted."""

from __future__ import annotations

import asyncio
import sys
import time

from code_rl.redaction import print_exception

from .core import Core
from .metrics import Metrics
from .refusals import bad

TICK_S = 1.0
DISK_EVERY_S = 60.0
STATUS_EVERY_S = 30.0
# Longer than the SDK keeps retrying one request.
GAP_S = 360.0
ABANDONED_S = 24 * 3600.0


class Janitor:
    """Looks after a server every second."""

    def __init__(self, core: Core, metrics: Metrics, status: bool) -> None:
        self._core = core
        self._metrics = metrics
        self._status = status
        self._disk_at = self._status_at = self._looked_at = time.monotonic()

    async def work(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - a full disk, say; the server goes on, and so does the next look
                print_exception(error)
            now = time.monotonic()
            if now - self._disk_at > DISK_EVERY_S:
                self._disk_at = now
                await asyncio.to_thread(self._expire_checkpoints)
            if self._status and now - self._status_at > STATUS_EVERY_S:
                self._status_at = now
                line = self._metrics.status_line()
                if line is not None:
                    print(line, file=sys.stderr, flush=True)

    def tick(self) -> None:
        """One look."""
        core = self._core
        now = time.monotonic()
        core.promises.sweep()
        # While this process had no turn it heard no heartbeat: that time is not the clients'.
        deaf = max(0.0, now - self._looked_at - 2 * TICK_S)
        self._looked_at = now
        for session in list(core.sessions.values()):
            session.last_seen += deaf
            silent = not session.finished and not session.waiting and now - session.last_seen
            if silent > core.limits.session_timeout_s:
                self._vanish(session.session_id, silent > core.limits.session_timeout_s + core.limits.idle_s)
                session.vanished = True
        for run in list(core.runs.values()):
            if run.held and now - run.held_since > GAP_S:
                core.close_gap(run)
        for sampler in list(core.samplers.values()):
            if sampler.queued == 0 and now - sampler.last_used > max(core.limits.idle_s, ABANDONED_S):
                del core.samplers[sampler.record.sampler_id]
                core.store.delete_sampler(sampler.record.sampler_id)
        self._close_idle_engines()

    def _vanish(self, session_id: str, for_good: bool) -> None:
        """Free what a client that shows no life held: what it has queued, and (`for_good`) its models."""
        core = self._core
        core.promises.drop_samples(session_id)
        for run in core.runs_of(session_id):
            core.drop_held(run, bad("the client is gone"))
            if for_good:
                core.unload(run)

    def _close_idle_engines(self) -> None:
        core = self._core
        used = {run.local for run in core.runs.values()}
        used |= {sampler.record.local for sampler in core.samplers.values() if sampler.queued}
        for name, engine in list(core.engines.items()):
            if name not in used and engine.idle_for() > core.limits.idle_s:
                engine.close()
                del core.engines[name]

    def _expire_checkpoints(self) -> None:
        for checkpoint in self._core.store.checkpoints(expired=True):
            self._core.store.delete_checkpoint(checkpoint)
