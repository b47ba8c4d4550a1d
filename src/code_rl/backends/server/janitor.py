"""What happens by itself: models and samplers that nobody uses leave the memory, vanished clients free what they held,
checkpoints whose time is over are deleted."""

from __future__ import annotations

import asyncio
import sys
import time

from code_rl.redaction import print_exception

from .core import Core, Run, SamplingSession
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
        for session in core.sessions.values():
            session.last_seen += deaf
        for session in list(core.sessions.values()):
            if (
                not session.finished
                and not session.waiting
                and not session.vanished
                and now - session.last_seen > core.limits.session_timeout_s
            ):
                session.vanished = True
                self._vanish(session.session_id)
        for run in list(core.runs.values()):
            if run.held and now - run.held_since > GAP_S:
                self._close_gap(run)
        self._park_idle(now)
        self._drop_idle_samplers(now)
        self._close_idle_engines(now)

    def _vanish(self, session_id: str) -> None:
        """Free what a client held that shows no life: its samples stop, its models and samplers wait on the disk."""
        core = self._core
        core.promises.drop_samples(session_id)
        runs, samplers = core.members(session_id)
        for run in runs:
            core.drop_held(run, bad("the client is gone"))
            self._park(run)
        for sampler in samplers:
            sampler.weights = None

    def _close_gap(self, run: Run) -> None:
        """Requests whose predecessor never came fail, and the number after them is expected next."""
        last = max(run.held)
        self._core.drop_held(run, bad(f"request {run.next_seq} of model {run.run_id}, before this one, never came"))
        run.next_seq = last + 1

    def _park_idle(self, now: float) -> None:
        core = self._core
        live = sorted((r for r in core.runs.values() if r.trainer is not None), key=lambda r: r.last_used)
        surplus = len(live) - core.limits.max_models
        for run in live:
            if run.queued == 0 and (surplus > 0 or now - run.last_used > core.limits.idle_s):
                self._park(run)
                surplus -= 1

    def _park(self, run: Run) -> None:
        run.queued += 1
        loop = asyncio.get_running_loop()

        def parked(error: BaseException | None) -> None:
            run.queued -= 1
            if error is not None:
                print(f"model {run.run_id} could not be moved to the disk: {error}", file=sys.stderr, flush=True)

        self._core.park(run).add_done_callback(lambda done: loop.call_soon_threadsafe(parked, done.exception()))

    def _drop_idle_samplers(self, now: float) -> None:
        core = self._core
        live = sorted(
            (s for s in core.samplers.values() if s.weights is not None and s.record.has_weights),
            key=lambda s: s.last_used,
        )
        surplus = len(live) - core.limits.max_samplers
        for sampler in live:
            if sampler.queued == 0 and (surplus > 0 or now - sampler.last_used > core.limits.idle_s):
                sampler.weights = None
                surplus -= 1
        for sampler in list(core.samplers.values()):
            if sampler.queued == 0 and now - sampler.last_used > max(core.limits.idle_s, ABANDONED_S):
                self._forget(sampler)

    def _forget(self, sampler: SamplingSession) -> None:
        self._core.samplers.pop(sampler.record.sampler_id, None)
        self._core.store.delete_sampler(sampler.record.sampler_id)

    def _close_idle_engines(self, now: float) -> None:
        core = self._core
        for name, engine in list(core.engines.items()):
            used = any(r.local == name and (r.trainer is not None or r.queued) for r in core.runs.values())
            used = used or any(s.record.local == name and s.queued for s in core.samplers.values())
            if not used and not any(engine.waiting) and now - engine.last_used > core.limits.idle_s:
                for sampler in core.samplers.values():
                    if sampler.record.local == name:
                        sampler.weights = None
                engine.close()
                del core.engines[name]

    def _expire_checkpoints(self) -> None:
        for checkpoint in self._core.store.all_checkpoints():
            if checkpoint.expired:
                self._core.store.delete_checkpoint(checkpoint)
