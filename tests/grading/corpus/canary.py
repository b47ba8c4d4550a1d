"""The host's side of the containment tests: things to attack, and whether they were hurt."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

PROBES: dict[str, str] = {
    row["name"]: row["code"]
    for row in map(json.loads, Path(__file__).with_name("probes.jsonl").read_text().splitlines())
}
"""Programs that try to reach past their sandbox, and print `BREACH ...` for each thing that they could do."""
PLANT, FIND = PROBES.pop("plant"), PROBES.pop("find")
"""The first leaves something in every place that could outlive a submission, the second looks for it."""
_PRELUDE = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def breach(*what):
    print("BREACH", *what)
def listing(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
def attempt(name, action):
    try:
        result = action()
    except Exception:
        return None
    if result is not False and result is not None and result != -1:
        breach(name, repr(result)[:80])
"""


@dataclass(frozen=True, slots=True)
class Canary:
    """The targets that the host has set up."""

    secret: str
    folder: str
    pid: int
    tcp_port: int
    udp_port: int
    abstract: str
    socket_path: str
    marker: str


def probe_source(body: str, canary: Canary) -> str:
    """A complete program."""
    facts = "".join(f"{name} = {getattr(canary, name)!r}\n" for name in Canary.__slots__)
    return f"{_PRELUDE}{facts}{body}\n"


@dataclass(slots=True)
class Guarded:
    """A canary and its state; `reached` lists the connections to the listeners."""

    canary: Canary
    process: subprocess.Popen[bytes]
    datagrams: socket.socket
    reached: list[str] = field(default_factory=list)

    def damage(self) -> list[str]:
        """Everything that a contained program cannot have done."""
        found = list(self.reached)
        secret = Path(self.canary.folder, "secret.txt")
        if not secret.exists() or secret.read_text() != self.canary.secret:
            found.append("secret file changed")
        if sorted(os.listdir(self.canary.folder)) != ["secret.txt", "socket"]:
            found.append(f"folder holds {sorted(os.listdir(self.canary.folder))}")
        if self.process.poll() is not None or _state(self.process.pid) in "TtZ":
            found.append("canary process was signalled")
        with contextlib.suppress(BlockingIOError):
            found.append(f"datagram {self.datagrams.recv(64)!r}")
        return found


@contextlib.asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Guarded]:
    """A secret file, a process, and listeners of four kinds, for one test."""
    secret, marker = secrets.token_hex(16), secrets.token_hex(8)
    (folder / "secret.txt").write_text(secret)
    os.environ["CANARY"] = secret
    reached: list[str] = []

    def server(kind: str):
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.append(f"connection over {kind}")
            writer.close()

        return serve

    tcp = await asyncio.start_server(server("tcp"), "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    unix = await asyncio.start_unix_server(server("unix path"), folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0canary_" + marker)
    abstract = await asyncio.start_unix_server(server("abstract unix"), sock=listener)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    datagrams.setblocking(False)
    process = subprocess.Popen(  # noqa: ASYNC220 - starts and is not waited for
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    canary = Canary(
        secret,
        str(folder),
        process.pid,
        port,
        datagrams.getsockname()[1],
        "canary_" + marker,
        str(folder / "socket"),
        marker,
    )
    try:
        yield Guarded(canary, process, datagrams, reached)
    finally:
        del os.environ["CANARY"]
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()
        datagrams.close()
        for each in (tcp, unix, abstract):
            each.close()


def processes_named(name: str) -> list[int]:
    """Ids of live processes of this machine whose command name is `name`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if Path("/proc", entry, "comm").read_text().strip() == name and _state(int(entry)) != "Z":
                    found.append(int(entry))
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
