"""Runs that cannot begin: one line that gives the remedy, exit code 2, nothing written, and no key anywhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from code_rl.cli.main import main
from code_rl.engine import preflight
from code_rl.training.config import make_config
from tests.engine.remote.remote_support import FaultyProxy, OtherServer, settings
from tests.engine.serve.serve_support import ServerThread
from tests.refusals import names_all, one_line
from tests.verbs import train_command

KEY = "tml-5ecret-0123456789abcdef"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that wants a key."""
    with ServerThread(tmp_path_factory.mktemp("guarded"), token=KEY) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch, tmp_path):
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_CREDENTIAL_CMD", "CODE_RL_SERVER_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def refusal(capsys, log_path: Path, **given: str) -> str:
    """The line that a run with these settings ends with."""
    words = [f"{name}={value}" for name, value in given.items()]
    assert main(["train", *words, f"log_path={log_path}"]) == 2
    assert not log_path.exists()
    return one_line(capsys)


@pytest.mark.parametrize("key", [None, "sk-123", "tml-two words", "tml-fake-0123456789"])
def test_a_key_that_is_none_is_refused_without_being_shown(capsys, tmp_path, monkeypatch, guarded, key):
    if key is not None:
        monkeypatch.setenv("TINKER_API_KEY", key)
        monkeypatch.setenv("TINKER_BASE_URL", guarded.url)
    line = refusal(capsys, tmp_path / "run", backend="tinker", model_name="tiny")
    assert "TINKER_API_KEY" in line
    assert key is None or key not in line


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("modal", "backend='modal'"),
        ("http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("http://host:x", "http://host:port"),
        ("http://host:1/?key=hunter2", "http://host:port"),
        ("http://user:hunter2@host:1", "backend"),
    ],
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(capsys, tmp_path, url, named):
    line = refusal(capsys, tmp_path / "run", backend=url, model_name="tiny")
    assert named in line
    assert "hunter2" not in line


def test_key_for_tinker_is_not_sent_to_another_server(capsys, tmp_path, monkeypatch):
    sent: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        sent.append(request.headers.get("X-API-Key"))
        return web.json_response({})

    monkeypatch.setenv("TINKER_API_KEY", KEY)
    with OtherServer(answer) as other:
        refusal(capsys, tmp_path / "run", backend=other.url, model_name="tiny")
    assert sent
    assert KEY not in sent


def test_unknown_model_is_refused_with_those_that_the_server_has(capsys, tmp_path, monkeypatch, guarded):
    monkeypatch.setenv("CODE_RL_SERVER_KEY", KEY)
    line = refusal(capsys, tmp_path / "run", backend=guarded.url, model_name="Qwen/Qwen3-900B")
    names_all(line.rstrip(), "model_name='Qwen/Qwen3-900B'", "tiny")


async def of_an_older_generation(request: web.Request) -> web.Response:
    """SkyRL 0.3: JSON."""
    if request.path.endswith("client/config"):
        return web.json_response({"pjwt_auth_enabled": False})
    if request.path.endswith("forward_backward"):
        return web.json_response({"detail": [{"type": "missing", "loc": ["body", "model_id"]}]}, status=422)
    return web.json_response({"detail": "Not Found"}, status=404)


async def of_protobuf_alone(request: web.Request) -> web.Response:
    """SkyRL 0.4: passes in protobuf, and no flags that are refreshed."""
    if request.path.endswith("forward_backward"):
        needed = "forward_backward requires a application/x-protobuf body (tinker SDK >= 0.25.0)"
        return web.json_response({"detail": needed}, status=415)
    if request.path.endswith("get_server_capabilities"):
        return web.json_response({"supported_models": [{"model_name": "tiny"}]})
    return await of_an_older_generation(request)


@pytest.mark.parametrize(
    ("server", "installed", "needed"),
    [
        (of_an_older_generation, None, "0.24.1"),
        (of_protobuf_alone, None, "0.25.0"),
        (of_protobuf_alone, "0.24.1", "0.25.0"),
    ],
)
def test_server_of_an_older_generation_is_refused_with_the_sdk_that_it_needs(
    capsys, tmp_path, monkeypatch, server, installed, needed
):
    if installed:
        monkeypatch.setattr("importlib.metadata.version", lambda _: installed)
    with OtherServer(server) as other:
        line = refusal(capsys, tmp_path / "run", backend=other.url, model_name="tiny")
    assert f"tinker=={needed}" in line


def test_server_of_an_older_generation_is_accepted_by_the_sdk_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.25.0")
    with OtherServer(of_protobuf_alone) as other:
        found = asyncio.run(preflight(make_config(settings(other.url, tmp_path))))
    assert found is not None
    assert (set(found.models), found.older_sdk, found.numbered_requests) == ({"tiny"}, "0.25.0", True)


def test_sdk_too_old_for_the_embedded_engine_is_refused_with_what_to_install(tmp_path):
    older = tmp_path / "packages" / "tinker"
    older.mkdir(parents=True)
    (older / "__init__.py").touch()
    program = "import sys; from code_rl.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["train", "backend=embedded", f"log_path={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": str(older.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "pip install 'tinker>=0.38'" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("status", [404, 429, 503])
def test_server_that_is_overloaded_or_broken_at_the_start(capsys, tmp_path, guarded, monkeypatch, status):
    monkeypatch.setenv("CODE_RL_SERVER_KEY", KEY)
    with FaultyProxy(guarded.url, {"client/config": [status] * 3}) as proxy:
        line = refusal(capsys, tmp_path / "run", backend=proxy.url, model_name="tiny")
    assert str(status) in line


def test_server_that_is_busy_for_a_moment_is_asked_again(capsys, tmp_path, guarded, monkeypatch):
    monkeypatch.setenv("CODE_RL_SERVER_KEY", KEY)
    with FaultyProxy(guarded.url, {"client/config": [429], "get_server_capabilities": [503]}) as proxy:
        assert "'other'" in refusal(capsys, tmp_path / "run", backend=proxy.url, model_name="other")
        assert len(proxy.injected) == 2


@pytest.mark.long
def test_key_is_in_no_file_of_the_run_and_not_on_the_terminal(capfd, tmp_path, monkeypatch, guarded):
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKER_BASE_URL", guarded.url)
    log_path = tmp_path / "run"
    assert train_command(settings("auto", log_path, max_steps="1")) == 0
    files = [path for path in log_path.rglob("*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        assert KEY.encode() not in path.read_bytes(), path
    captured = capfd.readouterr()
    assert KEY not in captured.out + captured.err
