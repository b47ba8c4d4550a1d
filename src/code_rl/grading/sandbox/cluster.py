"""The nodes of a Ray cluster: our own server on each, in an actor (`server.node`), filled to that
node's capacity.

Ray lists the nodes, starts the servers with a token of this run's own, and detects deaths. Jobs
travel to them directly, as to any server of ours (`fusion.jobs`). Work lost with a node runs again
on another (`sandbox.blame`). Expected outputs stay in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aiohttp import ClientSession, TCPConnector

from code_rl.grading.sandbox.executor import default_slots
from code_rl.grading.sandbox.fusion.protocol import RUN_PATH
from code_rl.grading.sandbox.fusion.servers import FusionServer
from code_rl.grading.sandbox.fusion.transport import bearer
from code_rl.grading.sandbox.pooled import Pool
from code_rl.grading.sandbox.remote import RemoteExecutor
from code_rl.util.concurrency import IN_FLIGHT_PER_PLACE, cancel_all, gather_or_cancel
from code_rl.util.errors import ConfigError, IsolationError, SandboxError, install_command

if TYPE_CHECKING:
    from code_rl.grading.sandbox.server.node import NodeFacts

CONNECT_S = 5.0
START_S = 120.0
"""Seconds for a node to start its sandbox; its first actor waits for a process with our imports."""
LOOK_S = 2.0
"""Seconds between two queries of Ray's nodes."""
WELL_S = 30.0
BUSY_S = 60.0

logger = logging.getLogger("code_rl.outages")


class RayNode(FusionServer):
    """A node: the server in its actor. It has more `slots` than it runs at once, so that the next
    submission is already there when one ends."""

    def __init__(
        self,
        session: ClientSession,
        row: dict[str, Any],
        actor: Any,
        facts: NodeFacts,
        places: int,
    ) -> None:
        """Add the server in `actor`, which has started and said `facts`, to a pool. `row` is the
        node's entry in Ray's list; `places` is the number of programs that it runs at once."""
        slots = IN_FLIGHT_PER_PLACE * places
        super().__init__(session, facts.url + RUN_PATH, slots, BUSY_S, 0, name=_name(row))
        self.id, self.actor, self.facts, self.places = row["NodeID"], actor, facts, places
        self.takes_jobs = True


class RayNodes(RemoteExecutor):
    """All nodes of a Ray cluster that have processors.

    Args:
        concurrency: submissions at once on each node. None: twice the processors that Ray lists for
            the node, at least four.
        isolation: the level that every node must have; `auto` means the strongest of each. A node
            without the level is left out, with a message that names it.

    The cluster is that of RAY_ADDRESS, else the one that this machine belongs to, else a new one
    that is stopped by `aclose`. The constructor connects at once. Raises ConfigError without Ray,
    SandboxError if no cluster answers.
    """

    pool: Pool[RayNode]

    def __init__(
        self,
        concurrency: int | None,
        isolation: str,
        outage_timeout_s: float,
        stop: asyncio.Event | None,
    ) -> None:
        """Connect this process to a cluster, or start one, at once; the sandboxes start with
        `ready`. Raises ConfigError without Ray, SandboxError if no cluster answers."""
        super().__init__(outage_timeout_s, stop)
        self._ray = _import_ray()
        self._owned = _connect(self._ray)
        self._concurrency, self._isolation = concurrency, isolation
        self._token = secrets.token_urlsafe()
        self._session: ClientSession | None = None
        self._left_out: dict[str, str] = {}
        self._looking: asyncio.Task[None] | None = None
        self._first_look: asyncio.Task[None] | None = None

    @property
    def description(self) -> str:
        """One line about the cluster for users: its nodes, isolation levels and workers, as they
        are now."""
        nodes = self.pool.members
        levels = ", ".join(sorted({node.facts.isolation for node in nodes}))
        return (
            f"{len(nodes)} node{'s' * (len(nodes) != 1)} of a Ray cluster, isolation {levels}, "
            f"{self.slots} workers"
        )

    @property
    def slots(self) -> int:
        """The number of submissions that run at once, on all nodes."""
        return sum(node.places for node in self.pool.members)

    async def check(self) -> None:
        """Start a sandbox on every node. If none can run programs, raises IsolationError, or
        SandboxError if `isolation` is `auto`, with the reason of each node."""
        await self.ready()
        if not self.pool.members:
            reasons = "; ".join(self._left_out.values()) or "no node has processors in Ray's books"
            raise (SandboxError if self._isolation == "auto" else IsolationError)(
                f"executor=ray: no node of the cluster can run programs: {reasons}"
            )

    async def release(self) -> None:
        """Stop the sandboxes of all nodes, and the cluster if it was started here. Failures of Ray
        are ignored. Idempotent."""
        await cancel_all(task for task in (self._looking, self._first_look) if task is not None)
        self._looking = self._first_look = None
        nodes, self.pool.members = self.pool.members, []
        await asyncio.gather(*(self._end(node) for node in nodes))
        if self._session is not None:
            await self._session.close()
        if self._owned:
            self._owned = False
            self._ray.shutdown()

    async def ready(self) -> None:
        """Wait until the first nodes have joined or are left out, which the first call starts.
        After that, a background task adds new nodes as they appear. There may be no node."""
        if self._first_look is None:
            self._session = ClientSession(
                headers=bearer(self._token), connector=TCPConnector(limit=0)
            )
            self._first_look = asyncio.create_task(self._look())
            self._looking = asyncio.create_task(self._keep_looking(self._first_look))
        await asyncio.shield(self._first_look)

    async def _keep_looking(self, first: asyncio.Task[None]) -> None:
        """Look for nodes every two seconds, forever, once the first look has ended. Failures of Ray
        and of connections are ignored until the next look."""
        await asyncio.wait([first])
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError, TimeoutError):
                await self._look()

    async def _look(self) -> None:
        """Start a sandbox on every new node with a processor, and remove nodes that have left, or
        whose actor is dead, from the pool; the latter start again on the next look. A node that was
        left out stays so."""
        rows = {
            row["NodeID"]: row for row in await asyncio.to_thread(self._ray.nodes) if row["Alive"]
        }
        for node in list(self.pool.members):
            left = node.id not in rows
            if left or (node.down_until is not None and not await self._is_alive(node)):
                self.pool.remove(node)
                logger.warning(
                    "the sandbox of node %s has %s; %d nodes go on",
                    node.name,
                    "left the cluster" if left else "died",
                    len(self.pool.members),
                )
        known = {node.id for node in self.pool.members} | set(self._left_out)
        new = [
            row
            for each, row in rows.items()
            if each not in known and row["Resources"].get("CPU", 0) >= 1
        ]
        await gather_or_cancel(self._start(row) for row in new)

    async def _is_alive(self, node: RayNode) -> bool:
        """Return False if the node's actor is dead: it gets a new one. True if it answers, or does
        not answer in 30 s."""
        try:
            await asyncio.wait_for(node.actor.alive.remote(), WELL_S)
        except self._ray.exceptions.RayActorError:
            return False
        except (self._ray.exceptions.RayError, TimeoutError):
            pass
        return True

    async def _start(self, row: dict[str, Any]) -> None:
        """Start a sandbox on the node; add it to the pool, or leave it out for good with the
        reason, which is logged: it refuses, does not start within 120 s, or has other code of this
        package."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # It loads the server, which a process that only reads verdicts does not have.
        from code_rl.grading.sandbox.server.node import Node, NodeFacts, code_here

        places = self._concurrency or default_slots(int(row["Resources"]["CPU"]))
        options = {
            "num_cpus": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(row["NodeID"], soft=False),
        }
        actor = self._ray.remote(Node).options(**options).remote(places, self._isolation)
        try:
            facts: NodeFacts = await asyncio.wait_for(
                actor.start.remote(row["NodeManagerAddress"], self._token), START_S
            )
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
            self._left_out[row["NodeID"]] = f"node {_name(row)} is left out: {refusal}"
            logger.warning(self._left_out[row["NodeID"]])
            self._ray.kill(actor)
            return
        if self._first_look is not None and self._first_look.done():
            logger.warning("node %s has joined", _name(row))
        assert self._session is not None
        self.pool.add(RayNode(self._session, row, actor, facts, places))

    async def _end(self, node: RayNode) -> None:
        """Stop a node's sandbox, within 30 s, and kill its actor. Failures of Ray are ignored."""
        with contextlib.suppress(self._ray.exceptions.RayError, TimeoutError):
            await asyncio.wait_for(node.actor.close.remote(), WELL_S)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(node.actor)


def _import_ray() -> ModuleType:
    """Import Ray with few attempts at a refusing address, which is set in this process's
    environment. Raises ConfigError without Ray."""
    # The number of tries, one a second, at an address that refuses us; Ray reads it on import
    if os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", f"{CONNECT_S:.0f}")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"executor=ray needs Ray: {install_command('ray')}") from error
    module: ModuleType = ray
    return module


def _connect(ray: ModuleType) -> bool:
    """Connect this process to the cluster of RAY_ADDRESS, or to that of this machine, or start one.
    Return False if it was connected already, by its owner. Raises SandboxError if no cluster
    answers. Our handler of SIGTERM is put back in place of Ray's."""
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
    """Raise SandboxError if nothing listens at HOST:PORT within 5 s; Ray itself would try for
    minutes. An address without a port is not tried."""
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


def _name(row: dict[str, Any]) -> str:
    return f"{row['NodeName']} ({row['NodeID'][:6]})"


def _in_words(error: BaseException) -> str:
    """Return the last line of an error that is not blank, at most 300 characters, or its class
    without one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
