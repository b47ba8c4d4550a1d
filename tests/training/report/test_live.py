"""The page of a run in progress: it is written anew after a step, and reloads itself until the run ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import code_rl
from code_rl.training.report import open_run, write_report
from tests.training.pipeline_support import small
from tests.training.report.browsing import DESKTOP, expect, open_page, watched
from tests.training.report.run_folders import rewind, write_run


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


def test_a_page_of_a_run_in_progress_reloads_itself_until_the_last_step(browser, tmp_path):
    whole, run = write_run(tmp_path / "whole", steps=6), write_run(tmp_path / "run", steps=6)
    rewind(run, 4)
    reader = open_run(run)

    def update() -> None:
        reader.refresh()
        write_report([reader], run / "report.html", live=True)

    update()
    with watched(browser, **DESKTOP) as seen:
        seen.page.clock.install()
        page = open_page(seen, run / "report.html")
        shown, status = page.locator(".stats .figure").first, page.locator(".status")
        expect(shown).to_have_text("4 / 6")
        expect(status).to_contain_text("running")
        append(run, parts(whole, 4))
        update()
        page.clock.fast_forward(11_000)
        expect(shown).to_have_text("5 / 6")
        page.click("#follow")
        append(run, parts(whole, 5))
        update()
        page.clock.fast_forward(11_000)
        expect(shown).to_have_text("5 / 6")  # somebody reads it
        page.clock.fast_forward(70_000)
        expect(shown).to_have_text("6 / 6")
        expect(status).to_be_hidden()
        assert seen.problems == []
        assert seen.leaving(run.as_uri()) == []


def test_writing_the_page_takes_a_small_part_of_a_runs_time(tmp_path):
    pages = set()

    def seen(trajectory: code_rl.Trajectory) -> float:
        pages.add((tmp_path / "report.html").stat().st_ino)
        return float(trajectory.format_ok)

    given: dict[str, Any] = small(tmp_path, batch_size=4, group_size=2, max_tokens=2, max_steps=20, save_every=0)
    code_rl.train(**given | {"reward": seen})
    assert 1 <= len(pages) < 10
