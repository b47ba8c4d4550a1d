"""An Executor on a Ray cluster: one embedded sandbox per node, as an actor (`node`), filled to that
node's capacity.

Ray lists the nodes, carries the calls and detects deaths. Work lost with a node runs again on
another (`sandbox.retries`). Expected outputs stay in this process. Trusted jobs, which see them,
run in an embedded sandbox of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from code_rl.grading.sandbox.cases import case_messages
from code_rl.grading.sandbox.executor import CallInput, Execution, Job, default_slots
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.grading.sandbox.node import Node, NodeFacts, NodeReply, code_here
from code_rl.grading.sandbox.pooled import Server, ServerPool
from code_rl.grading.sandbox.retries import RefusedError, Retries
from code_rl.util.concurrency import IN_FLIGHT_PER_PLACE, cancel_all, closing, gather_or_cancel
from code_rl.util.errors import ConfigError, IsolationError, SandboxError, install_command

CONNECT_S = 5.0
START_S = 120.0
"""Seconds for a node to start its sandbox; its first actor waits for a process with our imports."""
LOOK_S = 2.0
"""Seconds between two queries of Ray's nodes."""
WELL_S = 30.0
NO_NODE_S = 1.0
"""Seconds without a node after which an attempt fails; `retries` then waits."""

logger = logging.getLogger("code_rl.outages")


@dataclass(slots=True, eq=False, kw_only=True)
class RayNode(Server):
    """A node with its actor. It has more `slots` than it runs at once, so that the next submission
    is already there when one ends."""

    id: str
    actor: Any
    facts: NodeFacts


class RayCluster:
    """Runs submissions on all nodes of a Ray cluster that have processors; an `Executor`.

    Args:
        concurrency: submissions at once on each node. None: twice the processors that Ray lists for
            the node, at least four.
        isolation: the level that every node must have; `auto` means the strongest of each. A node
            without the level is left out, with a message that names it.
        outage_timeout_s: how long a cluster without any working node is waited for, in seconds.
            Setting `stop` ends the wait.

    The cluster is that of RAY_ADDRESS, else the one that this machine belongs to, else a new one
    that is stopped by `aclose`. The constructor connects at once. A RayCluster belongs to one event
    loop. Raises ConfigError without Ray, SandboxError if no cluster answers.
    """

    def __init__(
        self,
        concurrency: int | None = None,
        isolation: str = "auto",
        *,
        outage_timeout_s: float,
        stop: asyncio.Event | None = None,
    ) -> None:
        self._ray = _import_ray()
        self._owned = _connect(self._ray)
        self._concurrency, self._isolation = concurrency, isolation
        self._retries = Retries(
            self._attempt,
            outage_timeout_s=outage_timeout_s,
            repeats_sleepers=False,
            stop=stop,
        )
        self._pool: ServerPool[RayNode] = ServerPool((), self._well)
        self._numbers = itertools.count()
        self._left_out: dict[str, str] = {}
        self._looking: asyncio.Task[None] | None = None
        self._first_look: asyncio.Task[None] | None = None
        self._local: EmbeddedSandbox | None = None
        self._node_retries = 0

    @property
    def description(self) -> str:
        """One line about the cluster for users."""
        nodes = self._pool.servers
        levels = ", ".join(sorted({node.facts.isolation for node in nodes}))
        return (
            f"{len(nodes)} node{'s' * (len(nodes) != 1)} of a Ray cluster, isolation {levels}, "
            f"{self.slots} workers"
        )

    @property
    def slots(self) -> int:
        """The number of submissions that run at once, on all nodes."""
        return sum(node.facts.concurrency for node in self._pool.servers)

    @property
    def retries(self) -> int:
        """The number of failed attempts so far, here and on nodes."""
        return self._retries.count + self._node_retries

    async def check(self) -> None:
        """Start a sandbox on every node. If none can run programs, raises IsolationError, or
        SandboxError with the reason of each node."""
        await self._joined()
        if not self._pool.servers:
            reasons = "; ".join(self._left_out.values()) or "no node has processors in Ray's books"
            raise (SandboxError if self._isolation == "auto" else IsolationError)(
                f"executor=ray: no node of the cluster can run programs: {reasons}"
            )

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one Execution per case, in order; see the Executor contract."""
        if job.trusted:
            self._local = self._local or EmbeddedSandbox(isolation=self._isolation)
            executions = self._local.run(job)
        else:
            await self._joined()
            executions = self._retries.run(_plain(job))
        async with closing(executions):
            async for execution in executions:
                yield execution

    async def aclose(self) -> None:
        """Stop the sandboxes of all nodes, and the cluster if it was started here. Idempotent."""
        await cancel_all(task for task in (self._looking, self._first_look) if task is not None)
        self._looking = self._first_look = None
        await self._retries.aclose()
        await self._pool.aclose()
        nodes, self._pool.servers = self._pool.servers, []
        await asyncio.gather(*(self._end(node) for node in nodes))
        if self._local is not None:
            await self._local.aclose()
        if self._owned:
            self._owned = False
            self._ray.shutdown()

    async def _attempt(self, job: Job, _alone: bool) -> AsyncIterator[Execution]:
        """Run `job` once on the least loaded node. The node's own sandbox decides whether the
        program is to blame for a failure."""
        async with self._pool.slot(outage_timeout_s=NO_NODE_S) as node:
            number, over = next(self._numbers), False
            call = node.actor.begin.remote(number, job)
            try:
                while not over:
                    reply: NodeReply = await call
                    over = reply.over
                    self._node_retries += reply.retries
                    for execution in reply.executions:
                        yield execution
                    if reply.failure is not None:
                        raise reply.failure
                    if not over:
                        call = node.actor.step.remote(number)
                self._pool.succeeded(node)
            except self._ray.exceptions.RayError as error:
                over = True
                raise self._lost(node, error) from error
            except RefusedError:
                raise
            except SandboxError as error:
                self._pool.failed(node, str(error))
                raise
            finally:
                if not over:
                    node.actor.stop.remote(number)

    def _lost(self, node: RayNode, error: Exception) -> SandboxError:
        """Stop using a node whose call failed, for a while, or for good if its actor is dead (a
        living node then gets a new actor)."""
        why = f"node {node.name}: {_in_words(error)}"
        if not isinstance(error, self._ray.exceptions.RayActorError):
            self._pool.failed(node, why)
        elif node in self._pool.servers:
            self._pool.remove(node)
            logger.warning("%s; %d nodes go on", why, len(self._pool.servers))
        return SandboxError(why)

    async def _well(self, node: RayNode) -> bool:
        try:
            return bool(await asyncio.wait_for(node.actor.well.remote(), WELL_S))
        except self._ray.exceptions.RayError as error:
            self._lost(node, error)
            return False
        except TimeoutError:
            return False

    async def _joined(self) -> None:
        """Wait until the first nodes have joined. After that, new nodes are added as they
        appear."""
        if self._first_look is None:
            self._first_look = asyncio.create_task(self._look())
            self._looking = asyncio.create_task(self._keep_looking(self._first_look))
        await asyncio.shield(self._first_look)

    async def _keep_looking(self, first: asyncio.Task[None]) -> None:
        await asyncio.wait([first])
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError, TimeoutError):
                await self._look()

    async def _look(self) -> None:
        """Start a sandbox on every new node, and forget nodes that have left."""
        rows = {
            row["NodeID"]: row for row in await asyncio.to_thread(self._ray.nodes) if row["Alive"]
        }
        for node in list(self._pool.servers):
            if node.id not in rows:
                self._pool.remove(node)
                logger.warning(
                    "node %s has left the cluster; %d nodes go on",
                    node.name,
                    len(self._pool.servers),
                )
        known = {node.id for node in self._pool.servers} | set(self._left_out)
        new = [
            row
            for each, row in rows.items()
            if each not in known and row["Resources"].get("CPU", 0) >= 1
        ]
        await gather_or_cancel(self._start(row) for row in new)

    async def _start(self, row: dict[str, Any]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name = f"{row['NodeName']} ({row['NodeID'][:6]})"
        places = self._concurrency or default_slots(int(row["Resources"]["CPU"]))
        slots = IN_FLIGHT_PER_PLACE * places
        options = {
            "num_cpus": 0,
            "max_concurrency": 4 * slots + 16,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(row["NodeID"], soft=False),
        }
        actor = self._ray.remote(Node).options(**options).remote(places, self._isolation)
        try:
            facts: NodeFacts = await asyncio.wait_for(actor.facts.remote(), START_S)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            facts = NodeFacts(
                code_here(), refusal=_in_words(error) or f"no sandbox within {START_S:g} s"
            )
        refusal = facts.refusal
        if not refusal and facts.code != code_here():
            refusal = (
                f"it has code-rl {facts.code}, this process {code_here()}; install the same on all "
                "nodes"
            )
        if refusal:
            self._left_out[row["NodeID"]] = f"node {name} is left out: {refusal}"
            logger.warning(self._left_out[row["NodeID"]])
            self._ray.kill(actor)
            return
        if self._first_look is not None and self._first_look.done():
            logger.warning("node %s has joined", name)
        self._pool.add(RayNode(name, slots, id=row["NodeID"], actor=actor, facts=facts))

    async def _end(self, node: RayNode) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            await asyncio.wait_for(node.actor.close.remote(), WELL_S)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(node.actor)


def _import_ray() -> ModuleType:
    if os.environ.get(
        "RAY_ADDRESS"
    ):  # tries, one a second, at an address that refuses us; Ray reads it on import
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", f"{CONNECT_S:.0f}")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"executor=ray needs Ray: {install_command('ray')}") from error
    module: ModuleType = ray
    return module


def _connect(ray: ModuleType) -> bool:
    """Connect this process. Return False if it was connected already. Raises SandboxError if no
    cluster answers."""
    if ray.is_initialized():
        return False
    named = os.environ.get("RAY_ADDRESS", "")
    _reach(named)
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=named or None, log_to_driver=False, logging_level=logging.ERROR)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)  # Ray has installed its own handlers
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        raise SandboxError(
            f"executor=ray: no Ray cluster can be used: {_in_words(error)}; a head that was "
            "started with RAY_AUTH_MODE=token needs it and its ~/.ray/auth_token here"
        ) from error
    return True


def _reach(address: str) -> None:
    """Raise SandboxError if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise SandboxError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({error}); start one with `ray "
            "start --head`, and give HOST:6379 of its head"
        ) from error


def _in_words(error: BaseException) -> str:
    """Return the last line of an error that is not blank."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _plain(job: Job) -> Job:
    """Return the job with its arguments encoded, so that only bytes and text are sent. Raises
    RefusedError."""
    messages = case_messages(job)
    if job.fn_name is None:
        return job
    return dataclasses.replace(
        job, cases=tuple(CallInput((), message=message) for message in messages)
    )
