"""The live page: it takes up new steps, outlives a cut and resumed run, and answers this machine only."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from code_rl.util.admission import is_loopback
from tests.training.report.browsing import DESKTOP, expect, watched
from tests.training.report.run_folders import rewind, write_run


@contextlib.contextmanager
def served(run: Path) -> Iterator[str]:
    """The live page of a run, from a process of its own; yields its address."""
    command = [sys.executable, "-m", "code_rl.cli", "report", f"log_path={run}", "live=true", "port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def parts(whole: Path, step: int) -> dict[str, str]:
    """The lines of one step, by file."""
    return {
        name: "".join(
            line for line in (whole / name).read_text().splitlines(keepends=True) if json.loads(line)["step"] == step
        )
        for name in ("rollouts.jsonl", "metrics.jsonl")
    }


def append(run: Path, lines: dict[str, str]) -> None:
    for name, text in lines.items():
        with (run / name).open("a") as file:
            file.write(text)


def steps_shown(page: Any) -> Any:
    return page.locator(".stats .figure").first


@pytest.mark.long
def test_new_steps_appear_and_a_cut_and_resumed_run_goes_on(browser, tmp_path):
    whole, run = write_run(tmp_path / "whole", steps=9), write_run(tmp_path / "run", steps=9)
    rewind(run, 4)
    with served(run) as url, watched(browser, **DESKTOP) as seen:
        seen.page.goto(url)
        seen.page.wait_for_selector("#sample .text-box")
        expect(steps_shown(seen.page)).to_have_text("4 / 9")
        expect(seen.page.locator(".status")).to_have_text("live")
        for step in (4, 5):
            append(run, parts(whole, step))
            expect(steps_shown(seen.page)).to_have_text(f"{step + 1} / 9")
        with (run / "metrics.jsonl").open("a") as file:
            file.write(parts(whole, 6)["metrics.jsonl"][:50])  # killed while it wrote
        rewind(run, 5)  # what resuming from the checkpoint at step 5 does
        expect(steps_shown(seen.page)).to_have_text("5 / 9")
        for step in range(5, 9):
            append(run, parts(whole, step))
        expect(steps_shown(seen.page)).to_have_text("9 / 9")
        expect(seen.page.locator("h1")).to_have_text("Yes, it learned.")
        seen.page.click("#follow")
        expect(seen.page.locator("#step-slider")).to_have_attribute("max", "8")
        assert seen.problems == []
        assert seen.leaving(url) == []


def ask(url: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, {}, b""


def test_only_this_machine_is_answered_under_a_policy_and_unknown_parts_are_404(tmp_path):
    with served(write_run(tmp_path / "run", steps=2)) as url:
        status, headers, _ = ask(url)
        assert status == 200
        assert "script-src 'sha256-" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert ask(url, host="evil.invalid")[0] == 403
        assert ask(url + "runs/0/index")[0] == 200
        for path in ("runs/9/index", "runs/0/group/77/0", "runs/0/problem/999", "../../etc/passwd", "config.json"):
            assert ask(url + path)[0] == 404, path


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1:8265", True), ("localhost", True), ("[::1]:80", True), ("::1", True), ("127.0.0.1.evil.invalid:80", False), ("evil.invalid", False), ("0.0.0.0:1", False), ("", False)],
)  # fmt: skip
def test_loopback_is_told_from_names_that_look_like_it(host, ours):
    assert is_loopback(host) is ours
