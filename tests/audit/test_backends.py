"""The audit of servers: ours is clean, each planted fault is named by the check that is meant for it, and silence is no hang."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")

from code_rl.audit.backend import CHECKS, audit_backend
from code_rl.audit.checklist import Checklist
from code_rl.audit.proxy import FaultyProxy
from code_rl.audit.server import Audited
from code_rl.cli import main
from code_rl.places import place_of
from tests.audit.planted_servers import FAULTS, Honest, WithoutFirst, repeats_itself, serving

QUICK = ("log-probabilities one token late", "stale sampler")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serving(tmp_path_factory.mktemp("state"), Honest) as running:
        yield running


def _audit(url: str, *parts: str, timeout_s: float = 60.0) -> Checklist:
    return audit_backend(place_of(url, {}), "tiny", timeout_s, lambda line: None, frozenset(parts))


@pytest.mark.slow
def test_our_own_server_is_clean_and_the_card_says_of_what(
    server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", f"backend={server.url}", "model_name=tiny", f"out={tmp_path}"]) == 0
    card = json.loads((tmp_path / "audit.json").read_text())
    assert card["clean"]
    assert [(check["part"], check["name"], check["status"]) for check in card["checks"]] == [
        (part, name, "passed") for part, name, _ in CHECKS
    ]
    assert "No check failed" in (tmp_path / "audit.html").read_text()
    assert "non-retryable" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_a_planted_fault_is_named_by_the_check_that_is_meant_for_it(tmp_path: Path, name: str) -> None:
    engine, part, wanted = FAULTS[name]
    with serving(tmp_path / "state", engine) as running:
        card = _audit(running.url, part, timeout_s=8.0 if part == "refusals" else 60.0)
    assert wanted <= card.mistakes(), card.to_json()
    assert not card.clean


def test_a_place_that_is_left_out_of_scored_prompts_is_no_fault_of_the_weights(tmp_path: Path) -> None:
    with serving(tmp_path / "state", WithoutFirst) as running:
        card = _audit(running.url, "numbers", "sampling")
    assert card.mistakes() == {"first_token_left_out"}, card.to_json()


@pytest.mark.slow
def test_a_server_that_carries_out_what_comes_again_is_named(tmp_path: Path) -> None:
    with serving(tmp_path / "state", Honest) as running:
        repeats_itself(running)
        card = _audit(running.url, "repeats")
    assert card.mistakes() == {"pass_repeated", "step_repeated", "pass_lost", "step_lost"}, card.to_json()


def test_an_audit_gives_its_models_back(tmp_path: Path) -> None:
    with serving(tmp_path / "state", Honest, max_models=6) as running:
        for parts in (("order", "numbers"), ("order",)):  # the first makes more of them than the server holds
            card = _audit(running.url, *parts)
            assert {check.status for check in card.checks} == {"passed"}, card.to_json()
            assert not running.core.runs


def test_models_are_given_back_where_ending_a_session_does_not_do_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinker.ServiceClient.close", lambda *_: None)
    with serving(tmp_path / "state", Honest) as running:
        card = _audit(running.url, "checkpoints")
        assert card.clean, card.to_json()
        assert not running.core.runs


class Full(FaultyProxy):
    """SkyRL with as many adapters as it holds."""

    async def _own(self, request: web.Request) -> web.StreamResponse | None:
        if request.path.endswith("/create_model"):
            return web.json_response({"detail": "Maximum number of LoRA adapters (40) reached"}, status=400)
        return None


def test_a_server_that_says_with_a_400_that_it_is_full_is_not_judged(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("code_rl.audit.backend._ROOM_S", 0.0)
    with Full(server.url, {}) as proxy:
        card = _audit(proxy.url, "checkpoints", "refusals")
    asked = [(check.status, check.mistake) for check in card.checks if check.part in ("checkpoints", "refusals")]
    assert asked == [("missing", "no_room")] * 7
    assert card.findings() == ["server: Not one check could be made: nothing is known of this server."]


def test_an_audit_leaves_nothing_of_what_it_saved(tmp_path: Path) -> None:
    with serving(tmp_path / "state", Honest) as running:
        card = _audit(running.url, "checkpoints")
        assert card.clean, card.to_json()
        assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
def test_a_server_without_room_is_not_judged_and_that_is_no_clean_card(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "state", Honest, max_models=1) as running,
        Audited(place_of(running.url, {}), "tiny", 60.0) as another,
    ):
        another.trainer()
        card = _audit(running.url, "checkpoints")
    told = [(check.status, check.mistake) for check in card.checks]
    assert told == [("missing", "no_room"), ("failed", "nothing_judged")]


@pytest.mark.parametrize("fault", [500, pytest.param("lost", marks=pytest.mark.slow)])
def test_a_server_that_never_answers_right_is_given_up_on(server: Any, fault: int | str) -> None:
    with FaultyProxy(server.url, {"/forward_backward": [fault] * 9999, "/forward": [fault] * 9999}) as proxy:
        card = _audit(proxy.url, "numbers", timeout_s=4.0)
    assert card.mistakes() <= {"no_answer", "error", "not_there"}
    assert len([check for check in card.checks if check.status == "missing"]) == len(card.checks) - 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["backend=http://127.0.0.1:9", "model_name=tiny"], "cannot be reached"),
        (["backend=embedded"], "backend=embedded is no server"),
        (["backend=nowhere"], "must be"),
        (["backend=http://127.0.0.1:9", "learning_steps=0"], "learning_steps=0 does nothing with backend="),
    ],
)
def test_what_cannot_be_asked_is_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1


def test_a_model_that_the_server_lacks_is_one_line(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for words, named in (([], "model_name is not set"), (["model_name=no/such"], "no/such")):
        assert main(["audit", f"backend={server.url}", *words]) == 2
        assert named in capsys.readouterr().err
