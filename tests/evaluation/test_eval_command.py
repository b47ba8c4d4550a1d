"""The verb `eval`, end to end: real programs, a real server, real cuts."""

from __future__ import annotations

import contextlib
import json
import pathlib
from functools import partial

import pytest

from code_rl.cli.main import main
from code_rl.evaluation import EvalConfig, check_benchmarks
from code_rl.util.files import LOCK, only_writer
from tests.evaluation.chat_server import RIGHT, ServerThread
from tests.refusals import one_line, refused

WRONG = "```python\nprint(0)\n```"
SUM = {
    "statement": "Print the sum.",
    "tests": [{"kind": "stdin", "input": "1 2\n", "expected": "3\n", "public": True}, {"kind": "stdin", "input": "2 5\n", "expected": "7\n"}],
    "solutions": ["print(sum(map(int, input().split())))"],
}  # fmt: skip


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    rows = [{"id": f"sum-{i}", **SUM, "meta": {"difficulty": "easy" if i % 2 else "hard"}} for i in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_samples(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(**settings):
    return main(["eval", *(f"{name}={value}" for name, value in settings.items())])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_times(rows):
    return sorted(json.dumps({k: v for k, v in row.items() if not k.endswith("_s")}) for row in rows)


@pytest.fixture
def two_kinds(problems, tmp_path):
    """Two samples a problem: of sum-0 both right, of sum-1 one, of sum-2 none, of sum-3 none has a fence."""
    answers = {"sum-0": [RIGHT, RIGHT], "sum-1": [RIGHT, WRONG], "sum-2": [WRONG, WRONG], "sum-3": ["no", "idea"]}
    rows = [{"problem_id": name, "completion": text} for name, texts in answers.items() for text in texts]
    return write_samples(tmp_path / "stored.jsonl", rows)


@pytest.mark.long
def test_stored_samples_give_figures_verdicts_breakdowns_and_a_line_to_paste(problems, two_kinds, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(benchmark=problems, samples=two_kinds, out=out) == 0
    results = json.loads((out / "results.json").read_text())
    assert results["pass@1"] == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    assert (results["pass@2"], results["pass@k"], results["k"]) == (0.5, 0.5, 2)
    assert results["interval"][0] <= results["pass@1"] <= results["interval"][1]
    assert results["format_rate"] == 0.75
    assert results["verdicts"] == {"no_code": 2, "passed": 3, "wrong_answer": 3}
    assert results["breakdown"]["difficulty"]["hard"]["pass@1"] == 0.5
    assert len(lines(out / "samples.jsonl")) == len(lines(out / "verdicts.jsonl")) == 8
    shown = capsys.readouterr().out
    assert (out / "results.md").read_text().strip() in shown
    assert "| 4 problems | Pass@1 37.5 [" in shown
    assert run(benchmark=problems, samples=two_kinds, limit=2, out=tmp_path / "two") == 0
    assert "4 samples of problems" in capsys.readouterr().out
    lines_of = pathlib.Path(two_kinds).read_text().splitlines(keepends=True)
    pathlib.Path(two_kinds).write_text("".join(lines_of[:-1]))
    assert run(benchmark=problems, samples=two_kinds, out=tmp_path / "fewer") == 1
    assert json.loads((tmp_path / "fewer" / "results.json").read_text())["missing"] == {"not_in_file": 1}


@pytest.mark.long
def test_a_folder_that_prepare_wrote_is_a_benchmark_and_so_is_each_split(tmp_path):
    wordings = ("Add both numbers and print what comes out.", "Print the sum of the integers on the line.")
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({**SUM, "id": f"sum-{w[:3]}", "statement": w}) + "\n" for w in wordings))
    assert main(["prepare", f"dataset={path}", f"out={tmp_path / 'prepared'}", "test_share=0.5", "mutants=0"]) == 0
    held = json.loads((tmp_path / "prepared" / "manifest.json").read_text())["splits"]
    assert held["train"]["problems"] == held["test"]["problems"] == 1
    asked: dict[str, list[str]] = {}
    for split in ("", ":test", ":train"):
        out = tmp_path / f"out{len(asked)}"
        assert run(benchmark=f"{tmp_path / 'prepared'}{split}", model_name="reference", out=out) == 0
        asked[split] = [row["problem_id"] for row in lines(out / "verdicts.jsonl")]
    assert asked[""] == asked[":test"] != asked[":train"]


@pytest.mark.long
def test_an_evaluation_cut_anywhere_resumes_to_the_same_files(problems, two_kinds, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(benchmark=problems, samples=two_kinds, out=whole)
    run(benchmark=problems, samples=two_kinds, out=cut)
    for name, kept in (("samples.jsonl", 5), ("verdicts.jsonl", 2)):
        text = (cut / name).read_text().splitlines(keepends=True)
        (cut / name).write_text("".join(text[:kept]) + text[kept][: len(text[kept]) // 2])
    (cut / "results.json").unlink()
    assert run(benchmark=problems, samples=two_kinds, out=cut) == 0
    for name in ("samples.jsonl", "verdicts.jsonl"):
        assert without_times(lines(cut / name)) == without_times(lines(whole / name))
    results = [json.loads((out / "results.json").read_text()) for out in (whole, cut)]
    assert [r["pass@1"] for r in results] == [0.375, 0.375]
    assert results[0]["verdicts"] == results[1]["verdicts"]


@pytest.mark.long
def test_a_folder_that_another_process_writes_is_refused(problems, two_kinds, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    with only_writer(out / LOCK, "out="):
        assert run(benchmark=problems, samples=two_kinds, out=out) == 2
    one_line(capsys, f"out={out}")


def test_another_evaluation_in_the_same_folder_is_refused_by_name(problems, two_kinds, tmp_path, capsys):
    out = tmp_path / "out"
    run(benchmark=problems, samples=two_kinds, out=out)
    assert run(benchmark=problems, samples=two_kinds, out=out, reward_timeout=3) == 2
    one_line(capsys, "reward_timeout")
    assert run(benchmark=problems, model_name="reference", out=out) == 2


@pytest.mark.parametrize("beside", ["mine.txt", "prepared/manifest.json", "evals/one/manifest.json"])
def test_a_folder_with_other_things_is_left_alone(problems, two_kinds, tmp_path, beside):
    home = tmp_path / "home"
    (home / beside).parent.mkdir(parents=True, exist_ok=True)
    (home / beside).write_text("{}")
    assert run(benchmark=problems, samples=two_kinds, out=home) == 2
    assert (home / beside).is_file()
    assert not (home / "samples.jsonl").exists()


def test_a_problem_without_a_reference_is_missing_not_wrong(problems, tmp_path, capsys):
    with open(problems, "a") as file:
        file.write(json.dumps({"id": "alone", **SUM, "solutions": []}) + "\n")
    assert run(benchmark=problems, model_name="reference", out=tmp_path / "out") == 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["pass@1"], results["problems"], results["missing"]) == (1.0, 4, {"no_reference": 1})


@pytest.mark.long
def test_an_evaluation_without_any_verdict_is_one_line_and_keeps_its_rows(tmp_path, capsys):
    broken = {**SUM, "id": "sum", "compare": {"rule": "checker", "checker": "def check(*_):\n    raise ValueError"}}
    problems = write_samples(tmp_path / "problems.jsonl", [broken])
    out = tmp_path / "out"
    assert run(benchmark=problems, model_name="reference", out=out) == 1
    one_line(capsys, "checker_error")
    assert [row["verdict"] for row in lines(out / "verdicts.jsonl")] == ["checker_error"]


def test_two_evaluations_compare_problem_by_problem(problems, two_kinds, tmp_path, capsys):
    rows = [{"problem_id": f"sum-{i}", "completion": RIGHT} for i in range(4) for _ in "ab"]
    run(benchmark=problems, samples=two_kinds, out=tmp_path / "a")
    run(benchmark=problems, samples=write_samples(tmp_path / "better.jsonl", rows), out=tmp_path / "b")
    assert run(compare=f"{tmp_path / 'a'},{tmp_path / 'b'}", out=tmp_path / "c") == 0
    figures = json.loads((tmp_path / "c" / "comparison.json").read_text())["figures"]
    assert figures["pass@1"]["difference"] == pytest.approx(0.625)
    assert (figures["pass@1"]["rose"], figures["pass@1"]["fell"]) == (3, 0)
    assert figures["pass@2"]["difference"] == pytest.approx(0.5)
    assert "+62.5" in capsys.readouterr().out
    with open(problems, "a") as file:
        file.write(json.dumps({"id": "more", **SUM}) + "\n")
    run(benchmark=problems, samples=two_kinds, out=tmp_path / "d")
    capsys.readouterr()
    assert run(compare=f"{tmp_path / 'a'},{tmp_path / 'd'}") == 2
    one_line(capsys, "files")


@pytest.mark.long
def test_values_published_for_the_recipe_of_the_evaluated_run_stand_beside_ours(problems, two_kinds, tmp_path, capsys):
    for name in "ab":
        run(benchmark=problems, samples=two_kinds, out=tmp_path / name)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        manifest["identity"] |= {"benchmark": "livecodebench", "asked": {"recipe": "cookbook"}}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    assert run(compare=f"{tmp_path / 'a'},{tmp_path / 'b'}", out=tmp_path / "c") == 0
    published = json.loads((tmp_path / "c" / "comparison.json").read_text())["published"]
    assert [(value["figure"], value["after"]) for value in published] == [("pass@1", 42.7), ("pass@8", 55.0)]
    assert "33.8 → 42.7" in capsys.readouterr().out


@pytest.fixture
def serve():
    with contextlib.ExitStack() as servers:
        yield lambda script: servers.enter_context(ServerThread(script))


@pytest.mark.long
def test_an_endpoint_is_evaluated_in_the_words_that_are_set_and_every_sample_is_accounted_for(
    problems, tmp_path, serve
):
    served = serve(lambda body, attempt: RIGHT if body["seed"] % 2 else WRONG)
    out = tmp_path / "out"
    words = {"prompt": "plain", "system_prompt": "Think first.", "top_p": "0.95", "top_k": "20"}
    again = partial(run, benchmark=problems, endpoint=served.url, model_name="m", n=3, asking=4, out=out, **words)
    assert again() == 0
    for body in served.bodies:
        system, question = body["messages"]
        assert system == {"role": "system", "content": "Think first."}
        assert "### Format" not in question["content"]
        assert (body["top_p"], body["top_k"]) == (0.95, 20)
    results = json.loads((out / "results.json").read_text())
    assert (results["samples"], served.answered) == (12, 12)
    assert results["tokens"] == {"prompt": 84, "completion": 132}
    assert results["prompt"] == "plain, system prompt 'Think first.'"
    assert "top_p 0.95, top_k 20" in results["how"]
    assert again() == 0
    assert served.answered == 12


@pytest.mark.long
def test_a_server_that_stays_away_stops_the_evaluation_and_the_same_command_goes_on(problems, tmp_path, serve, capsys, monkeypatch):  # fmt: skip
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.02)
    back: list[bool] = []

    def script(body, attempt):
        return RIGHT if served.answered < 5 or back else "drop"

    served = serve(script)
    out = tmp_path / "out"
    settings = {"model_name": "m", "n": 4, "asking": 1, "outage_timeout": 0.3}
    again = partial(run, benchmark=problems, endpoint=served.url, out=out, **settings)
    assert again() == 1
    one_line(capsys)
    kept = len(lines(out / "samples.jsonl"))
    assert kept == 5
    back.append(True)
    assert again() == 0
    assert len(lines(out / "samples.jsonl")) == 16
    assert served.answered == 16
    assert json.loads((out / "manifest.json").read_text())["counts"]["samples_judged"] == 16


def test_a_refused_request_is_missing_and_the_rest_goes_on(problems, tmp_path, serve):
    from aiohttp import web

    seeds = []

    def script(body, attempt):
        seeds.append(body["seed"])
        return web.Response(status=400, text="too long") if body["seed"] == seeds[0] else RIGHT

    served = serve(script)
    assert run(benchmark=problems, endpoint=served.url, model_name="m", n=2, asking=1, out=tmp_path / "out") == 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["missing"], results["samples"], results["pass@1"]) == ({"http_400": 1}, 7, 1.0)


@pytest.mark.long
def test_several_benchmarks_under_several_limits_end_in_a_table_with_averages(problems, tmp_path, serve, capsys):
    other = tmp_path / "other.jsonl"
    other.write_bytes(pathlib.Path(problems).read_bytes())
    served = serve(lambda body, attempt: RIGHT)
    out = tmp_path / "out"
    sets = f"{problems},{other}"
    again = partial(run, benchmark=sets, endpoint=served.url, model_name="m", n=1, sweep="32,64", out=out)
    assert again() == 0
    assert {body["max_tokens"] for body in served.bodies} == {32, 64}
    rows = json.loads((out / "summary.json").read_text())
    assert [row["of"] for row in rows] == ["32", "64"]
    for row in rows:
        figures = [each["pass@1"] for each in row["benchmarks"].values()]
        assert row["average"]["pass@1"] == sum(figures) / 2
    asked = len(served.bodies)
    assert again() == 0
    assert len(served.bodies) == asked
    assert "| max_tokens | " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "benchmark", "expected"),
    [
        (None, "humaneval+,mbpp+", {"humaneval+": None, "mbpp+": None}),
        ("a.jsonl", "humaneval, humaneval+", {"humaneval": "a.jsonl", "humaneval+": "a.jsonl"}),
        ("mbpp+:b", "humaneval+,mbpp+", {"humaneval+": None, "mbpp+": "b"}),
        ("humaneval+:a,mbpp+:b", "humaneval+,mbpp+", {"humaneval+": "a", "mbpp+": "b"}),
    ],
)
def test_data_goes_to_the_benchmark_whose_it_is(data, benchmark, expected):
    assert check_benchmarks(EvalConfig(benchmark=benchmark, data=data)) == expected


@pytest.mark.parametrize("data", ["a.jsonl", "mbpp:a"])
def test_data_that_could_be_anyone_s_is_refused(data):
    with refused("data="):
        check_benchmarks(EvalConfig(benchmark="humaneval+,livecodebench", data=data))


REFUSED = (
    ("", "model_name="),
    ("endpoint=http://h samples=s.jsonl model_name=m", "samples"),
    ("endpoint=http://h", "model_name="),
    ("model_name=reference n=4", "model_name=reference"),
    ("model_name=reference temperature=1", "temperature="),
    ("model_name=reference top_p=0.9", "top_p="),
    ("endpoint=http://h model_name=m environment=repair", "environment="),
    ("endpoint=http://h model_name=m device=cpu", "device="),
    ("model_name=tiny environment=repare", "'repair'"),
    ("model_name=tiny max_turns=3", "max_turns=3"),
    ("model_name=tiny temperature=0 n=8", "n=1"),
    ("model_name=tiny n=0", "n=0"),
    ("model_name=tiny n=4 k=5", "n=4"),
    ("model_name=tiny start_date=2024-08-01", "livecodebench"),
    ("model_name=tiny standings=s.jsonl", "benchmark=codeforces"),
    ("checkpoint=/nowhere", "/nowhere"),
    ("model_name=tiny top_k=0", "top_k=0"),
    ("model_name=tiny prompt=plane", "'plain'"),
    ("samples=s.jsonl prompt=plain", "prompt="),
    ("samples=/dev/null", "samples=/dev/null"),
    ("model_name=tiny sweep=8,16 max_tokens=8", "max_tokens"),
    ("model_name=tiny sweep=8,many", "sweep"),
    ("model_name=tiny limit=0", "limit=0"),
    ("model_name=tiny benchmark=humanevil", "'humaneval'"),
    ("model_name=tiny benchmark=livecodebench", "version"),
)


@pytest.mark.parametrize(("words", "named"), REFUSED)
def test_what_would_have_no_effect_or_no_sense_is_refused_by_name(problems, words, named, capsys, tmp_path):
    dry = "" if "/dev/null" in words else "true"
    given = dict(word.split("=", 1) for word in words.split())
    assert run(**{"benchmark": problems, "out": tmp_path / "out", **({"dry_run": dry} if dry else {}), **given}) == 2
    one_line(capsys, named)


def test_a_model_that_cannot_be_loaded_leaves_no_folder(tmp_path, capsys):
    assert run(benchmark="builtin", model_name="nosuchmodel", limit=1, out=tmp_path / "new") == 2
    one_line(capsys, "nosuchmodel")
    assert not (tmp_path / "new").exists()
