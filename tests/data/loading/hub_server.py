"""A small server of the hub's API: revisions, listings and files of data sets, and refusals of models, as huggingface_hub asks for them."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class HubServer:
    """Serves `repositories`: {name: {commit: folder}}; `main` is the last commit given. `models`: {name: (status, error code)}."""

    def __init__(
        self, repositories: dict[str, dict[str, Path]], models: dict[str, tuple[int, str]] | None = None
    ) -> None:
        self.repositories = repositories
        self.models = models or {}
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, body=True)

            def do_HEAD(self) -> None:
                server.answer(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        # It looks for its end this often, in seconds.
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = request.path.partition("?")[0]
        self.requests.append(f"{request.command} {path}")
        for name, commits in self.repositories.items():
            if path.startswith(f"/api/datasets/{name}"):
                self._api(request, name, commits, path.removeprefix(f"/api/datasets/{name}"))
                return
            start = f"/datasets/{name}/resolve/"
            if path.startswith(start):
                revision, _, file = path.removeprefix(start).partition("/")
                self._file(request, commits, revision, file, body)
                return
        for name, (status, code) in self.models.items():
            if path.startswith(f"/{name}/resolve/"):
                _send(request, status, b"{}", {"X-Error-Code": code}, body=body)
                return
        _send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)

    def _api(self, request: BaseHTTPRequestHandler, name: str, commits: dict[str, Path], rest: str) -> None:
        import json

        revision = rest.removeprefix("/revision/") if rest.startswith("/revision/") else "main"
        commit = list(commits)[-1] if revision == "main" else revision
        if commit not in commits:
            _send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        files = sorted(str(path.relative_to(commits[commit])) for path in commits[commit].rglob("*") if path.is_file())
        info = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files], "tags": []}
        _send(request, 200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(
        self, request: BaseHTTPRequestHandler, commits: dict[str, Path], revision: str, file: str, body: bool
    ) -> None:
        commit = list(commits)[-1] if revision == "main" else revision
        path = commits.get(commit, Path("/nowhere")) / file
        if not path.is_file():
            _send(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content = path.read_bytes()
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
        _send(request, 200, content, headers, body=body)


def _send(
    request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str], *, body: bool = True
) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    if body:
        request.wfile.write(content)
