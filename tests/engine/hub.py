"""A stand-in of the hub's API for uploads: it makes repositories, and keeps the files of each commit."""

from __future__ import annotations

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants


def take_for_the_hub(url: str, patch: pytest.MonkeyPatch, home: Path, *, offline: bool = False) -> None:
    """Have this process ask `url` for the hub, keep its files in `home`, and hold no token of the user's."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.removeprefix(constants.ENDPOINT)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template)
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HF_HUB_OFFLINE", offline)
    patch.setattr(constants, "HF_HUB_CACHE", str(home))
    patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        patch.delenv(name, raising=False)


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
