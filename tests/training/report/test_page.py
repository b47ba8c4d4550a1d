"""The page in a real browser: it draws, it can be clicked through, it loads nothing, and everyone can read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from code_rl.training.report import open_run, write_report
from tests.training.report.browsing import DARK, DESKTOP, PHONE, expect, open_page, watched
from tests.training.report.run_folders import write_run


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_report([open_run(write_run(folder / "run"))], folder / "report.html")
    return folder / "report.html"


SLOW = pytest.mark.slow
LOOKS = {"desktop": DESKTOP, "dark": DARK, "phone": PHONE}


def looks(by_default: str) -> pytest.MarkDecorator:
    """Each look; those that are not in the default run, in the slow one."""
    each = (pytest.param(look, id=name, marks=[SLOW] * (name != by_default)) for name, look in LOOKS.items())
    return pytest.mark.parametrize("look", list(each))


@pytest.mark.long
@looks("desktop")
def test_it_draws_without_an_error_and_asks_for_nothing(browser, report, tmp_path, look):
    with watched(browser, **look) as seen:
        page = open_page(seen, report)
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        assert (tmp_path / "page.png").stat().st_size > 50_000
        assert seen.problems == []
        assert seen.leaving(report.as_uri()) == []
        assert page.inner_text("h1") == "Yes, it learned."
        assert page.locator("canvas:visible").count() >= 8
        assert page.evaluate(
            "[document.documentElement, document.querySelector('nav')].every(e => e.scrollWidth <= e.clientWidth)"
        )
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        assert (sum(ground) < 120) == (look is DARK)


def test_curves_are_painted_and_follow_axis_smoothing_and_theme(browser, report):
    with watched(browser, **DESKTOP) as seen:
        page = open_page(seen, report)
        painted = "document.querySelector('#chart-reward canvas').toDataURL()"
        looks = [page.evaluate(painted)]
        page.click(".segmented button[data-value=elapsed]")
        looks.append(page.evaluate(painted))
        page.fill(".slider input", "0.9")
        looks.append(page.evaluate(painted))
        for _ in "light", "dark":
            page.click(".bar .button")
        looks.append(page.evaluate(painted))
        assert len(set(looks)) == 4
        assert seen.problems == []


@pytest.mark.long
def test_the_viewer_filters_follows_a_problem_and_opens_a_matrix_cell(browser, report):
    with watched(browser, **DESKTOP) as seen:
        page = open_page(seen, report)
        assert page.locator(".group-row").count() == 3
        page.click("text=sums/again")
        page.click("#follow")
        assert page.locator(".group-row").count() == 12
        assert page.locator(".history .mark").count() == 12
        page.locator(".history .mark").nth(4).click()
        expect(page.locator(".detail .eyebrow")).to_contain_text("Step 4")

        page.select_option("#verdict-filter", "runtime_error")
        kept = page.locator(".group-row").count()
        assert 0 < kept < 12
        assert page.locator(".group-row").count() == page.locator(".group-row:has(.v-r)").count()
        page.locator(".group-row").first.click()
        page.wait_for_selector("#sample .tag.v-r")
        page.locator(".matrix .cell.v-r").first.click()
        assert "runtime error" in page.inner_text("#test-detail")
        assert page.locator("#sample .t-builtin").count() > 0
        page.select_option("#verdict-filter", "")

        page.fill("#search", "sums/7a")
        expect(page.locator(".group-row")).to_have_count(1)
        page.fill("#search", "UNDEFINED_name")
        expect(page.locator(".group-row").nth(1)).to_be_visible()
        assert seen.problems == []
        assert seen.leaving(report.as_uri()) == []


@pytest.fixture(scope="module")
def opened(browser, report):
    """The report on a desktop; tests leave it as they find it, but for the test shown in detail."""
    with watched(browser, **DESKTOP) as seen:
        yield open_page(seen, report)


@pytest.mark.long
def test_a_public_test_is_shown_in_full_and_a_hidden_one_is_marked(opened):
    opened.locator(".matrix tbody tr").nth(0).locator(".cell").first.click()
    assert "(public)" in opened.inner_text("#test-detail")
    assert "1 2 3" in opened.inner_text("#test-detail")
    opened.locator(".matrix tbody tr").nth(5).locator(".cell").first.click()
    assert "(hidden)" in opened.inner_text("#test-detail")
    assert "not logged" in opened.inner_text("#test-detail")


def test_tokens_are_shaded_by_probability_and_join_to_the_text(opened):
    shown = opened.inner_text("#sample .text-box")
    opened.click(".segmented button[data-value=tokens]")
    assert opened.locator(".tok.l3, .tok.l4, .tok.l5").count() > 0
    tokens = opened.locator(".code.tokens").inner_text().replace("⏎", "")
    assert "".join(shown.split()) == "".join(tokens.split())
    opened.click(".segmented button[data-value=code]")


@pytest.fixture(scope="module")
def edited(browser, tmp_path_factory):
    """A page of a run of three steps: its first completions have an earlier turn, one of its splits has not changed,
    and its reward has a named part."""
    run = write_run(tmp_path_factory.mktemp("edited") / "run", steps=3)
    groups, steps = (
        [json.loads(line) for line in (run / name).read_text().splitlines()]
        for name in ("rollouts.jsonl", "metrics.jsonl")
    )
    for group in groups:
        said = [{"role": "user", "content": "The program fails a test"}]
        group["completions"][0]["turns"] = [{"text": "first try", "verdict": "wrong_answer", "messages": said}]
    steps[-1] |= {name: value for name, value in steps[0].items() if name.startswith("eval/constants/")}
    for number, step in enumerate(steps):
        step["reward_part/brevity"] = 0.1 * number
    for name, rows in (("rollouts.jsonl", groups), ("metrics.jsonl", steps)):
        (run / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report([open_run(run)], run / "report.html")
    with watched(browser, **DESKTOP) as seen:
        yield open_page(seen, run / "report.html")


def test_the_turns_of_a_trajectory_stand_before_the_answer_that_counts(edited):
    shown = edited.inner_text("#sample .text-box")
    assert shown.index("first try") < shown.index("The program fails a test") < shown.index("Turn 2, which counts")


def test_each_named_part_of_a_reward_has_a_chart_among_the_curves(edited):
    chart = edited.locator("#curves .chart", has_text="Reward: brevity")
    assert chart.locator("canvas").is_visible()


def test_a_link_to_a_rollout_opens_it(browser, report):
    with watched(browser, **DESKTOP) as seen:
        seen.page.goto(f"{report.as_uri()}#rollout/0/3/1/2")
        expect(seen.page.locator("#sample h4")).to_have_text("Sample 2")
        assert "Step 3, group 1" in seen.page.inner_text(".detail")


def test_runs_of_other_lengths_and_problems_are_not_put_under_one_heading(browser, tmp_path):
    runs = [
        write_run(
            tmp_path / name,
            steps=n,
            config={
                "resolved": {
                    "prompts": 3,
                    "completions": 6,
                    "trained_on": {"constants": n - 6, "compositions": 0},
                }
            },
        )
        for name, n in (("six", 6), ("nine", 9))
    ]
    metrics = runs[1] / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"eval/constants/problems": 64', '"eval/constants/problems": 8'))
    write_report([open_run(run) for run in runs], tmp_path / "both.html")
    with watched(browser, **DESKTOP) as seen:
        page = open_page(seen, tmp_path / "both.html")
        text = page.inner_text("#held-out")
        assert "After\t" in text
        for said in ("six, 64 problems", "nine, 8 problems", "after 6 steps", "after 9 steps"):
            assert said in text, said
        assert "on compositions." in page.inner_text("#better")  # constants were not measured alike
        assert "3 of them are also among those that nine trains on" in text
        assert "that six trains on" not in text


def test_steps_count_from_0_in_whole_steps_and_no_level_figure_is_green(edited):
    assert edited.inner_text(".held-out tbody tr >> nth=0").count("+0.0") == 1
    assert edited.locator(".held-out tbody tr >> nth=0").locator(".up").count() == 0
    assert edited.locator(".held-out .up").count() == 1
    found = edited.evaluate("""async () => Object.fromEntries(await Promise.all(["reward", "pass"].map(async (id) => {
        const chart = new Chart(CHARTS.find((each) => each.id === id));
        document.body.append(chart.node);
        chart.show(JSON.parse(document.getElementById("data").textContent).runs, 0, true);
        await new Promise(requestAnimationFrame);
        return [id, [chart.uplot.data[0], chart.uplot.axes[0]._values]];
    })))""")
    assert found["reward"] == [[0, 1, 2], ["0", "1", "2"]]
    assert found["pass"] == [[-1, 2], ["start", "0", "1", "2"]]


@looks("dark")
def test_axe_finds_no_serious_violation(browser, report, look):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with watched(browser, **look) as seen:
        page = open_page(seen, report)
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        page.click(".segmented button[data-value=tokens]")
        found = axe.run(page).response["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0].get("failureSummary"))
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_without_scripts_the_summary_is_there(browser, report):
    with watched(browser, java_script_enabled=False) as seen:
        seen.page.goto(report.as_uri())
        assert "Yes, it learned." in seen.page.inner_text("noscript")


def test_print_leaves_the_controls_out_and_uses_paper(browser, report):
    with watched(browser, **DARK) as seen:
        page = open_page(seen, report)
        page.emulate_media(media="print")
        assert not page.is_visible(".bar")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert page.is_visible("#chart-reward canvas")


def test_several_runs_begin_with_which_is_better_and_every_section_names_its_run(browser, tmp_path):
    runs = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    write_report([open_run(run) for run in runs], tmp_path / "report.html")
    with watched(browser, **DESKTOP) as seen:
        page = open_page(seen, tmp_path / "report.html")
        assert page.locator("main section").first.get_attribute("id") == "better"
        for section in ("findings", "settings", "time", "verdicts"):
            assert "one" in page.inner_text(f"#{section}-title")
        assert page.inner_text("#chart-reward .legend").split()[::2] == ["one", "two"]
        # Each run has its color in the table as in the curves.
        assert len(set(page.eval_on_selector_all(".dot.after", "all => all.map(e => getComputedStyle(e).fill)"))) == 2
        page.click(".picker button[data-value='1']")
        assert "two" in page.inner_text("#time-title")
        assert seen.problems == []
