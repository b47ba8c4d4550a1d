"""A stand-in of the hub's API for uploads: it makes repositories, and keeps the files of each commit."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Hub(ThreadingHTTPServer):
    """Serves on loopback; `files` has what was committed, by repository and path."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.tokens: set[str] = set()
        self.private: list[bool] = []
        self.refuses = refuses
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def run(self, *words: str, token: str | None = "hf_of_this_test") -> subprocess.CompletedProcess[str]:
        """A command of ours in a process that has this hub: its address is read when the package loads."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": self.url, "HF_HOME": tempfile.mkdtemp()} | ({"HF_TOKEN": token} if token else {})
        command = [sys.executable, "-m", "code_rl.cli", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.tokens.add(self.headers.get("Authorization", ""))
        parts = self.path.strip("/").split("/")
        if self.server.refuses:
            self._answer({"error": "the disk is full"}, 507)
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.server.files[name] = {}
            self.server.private.append(bool(asked.get("private") or asked.get("visibility") == "private"))
            self._answer({"url": f"{self.server.url}/{name}"})
        elif "preupload" in parts:
            listed = json.loads(body)["files"]
            self._answer(
                {"files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in listed]}
            )
        elif "commit" in parts:
            name = "/".join(parts[2:4])
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    value = row["value"]
                    self.server.files[name][value["path"]] = base64.b64decode(value["content"])
            self._answer({"commitUrl": f"{self.server.url}/{name}/commit/1", "commitOid": "1" * 40, "hookOutput": ""})
        else:
            self._answer({"errors": [], "warnings": []})

    def do_GET(self) -> None:
        self._answer({"id": "me/model", "sha": "0" * 40, "siblings": []})

    def _answer(self, row: Any, status: int = 200) -> None:
        data = json.dumps(row).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass
