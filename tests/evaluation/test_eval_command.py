"""The verb `eval`, end to end: real programs, a real server, real cuts."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import subprocess
import sys
import threading

import openai
import pytest

from code_rl.cli.main import main
from code_rl.evaluation.session import data_of
from code_rl.util.errors import ConfigError
from tests.evaluation.chat_server import RIGHT, ChatServer

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


def test_each_row_of_the_table_names_its_tag_whatever_kind_its_value_is(tmp_path, capsys):
    tags = [{"difficulty": 2, "platform": "x"}, {"difficulty": 7, "platform": 2}]
    tagged = [{"id": f"sum-{i}", **SUM, "meta": meta} for i, meta in enumerate(tags)]
    data = write_samples(tmp_path / "tagged.jsonl", tagged)
    samples = write_samples(tmp_path / "s.jsonl", [{"problem_id": row["id"], "completion": RIGHT} for row in tagged])
    assert run(benchmark=data, samples=samples, out=tmp_path / "out") == 0
    shown = capsys.readouterr().out
    assert [name for name in ("difficulty=2", "difficulty=7", "platform=x", "platform=2") if name not in shown] == []


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
        assert run(benchmark=f"{tmp_path / 'prepared'}{split}", model="reference", out=out) == 0
        asked[split] = [row["problem_id"] for row in lines(out / "verdicts.jsonl")]
    assert asked[""] == asked[":test"] != asked[":train"]


def test_the_manifest_accounts_for_every_sample_and_names_data_and_code(problems, two_kinds, tmp_path):
    out = tmp_path / "out"
    run(benchmark=problems, samples=two_kinds, out=out)
    manifest = json.loads((out / "manifest.json").read_text())
    counts = manifest["counts"]
    assert (counts["samples_wanted"], counts["samples_judged"], counts["samples_missing"]) == (8, 8, 0)
    assert len(manifest["identity"]["files"][0]["sha256"]) == 64
    assert len(manifest["code"]["source_sha256"]) == 64
    assert manifest["speed"]["cpu_limit_factor"] >= 1


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


def test_another_evaluation_in_the_same_folder_is_refused_by_name(problems, two_kinds, tmp_path, capsys):
    out = tmp_path / "out"
    run(benchmark=problems, samples=two_kinds, out=out)
    assert run(benchmark=problems, samples=two_kinds, out=out, reward_timeout=3) == 2
    assert "reward_timeout was None, is 3.0" in capsys.readouterr().err
    assert run(benchmark=problems, model="reference", out=out) == 2


def test_a_folder_with_other_things_is_left_alone(problems, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("!")
    assert run(benchmark=problems, model="reference", out=tmp_path / "mine") == 2
    assert "holds no evaluation" in capsys.readouterr().err


@pytest.mark.parametrize("beside", ["inflight/mine.txt", "prepared/manifest.json", "evals/one/manifest.json"])
def test_a_manifest_somewhere_below_makes_no_folder_ours(problems, two_kinds, tmp_path, capsys, beside):
    home = tmp_path / "home"
    for name in ("inflight/mine.txt", beside):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("{}")
    assert run(benchmark=problems, samples=two_kinds, out=home / "evals" / "two") == 0
    assert run(benchmark=problems, samples=two_kinds, out=home) == 2
    assert "holds no evaluation, or other things beside some" in capsys.readouterr().err
    assert (home / "inflight" / "mine.txt").is_file()


def test_samples_that_are_not_an_evaluation_s_are_one_line(problems, two_kinds, tmp_path, capsys):
    run(benchmark=problems, samples=two_kinds, out=tmp_path / "out")
    (tmp_path / "out" / "samples.jsonl").write_text('{"question": "mine"}\n')
    capsys.readouterr()
    assert run(benchmark=problems, samples=two_kinds, out=tmp_path / "out") == 2
    assert "samples.jsonl" in capsys.readouterr().err


def test_the_line_to_paste_says_of_how_many_problems_a_pass_at_k_is(problems, tmp_path, capsys):
    rows = [{"problem_id": f"sum-{i}", "completion": RIGHT} for i in (0, 0, 1)]
    run(benchmark=problems, samples=write_samples(tmp_path / "s.jsonl", rows), out=tmp_path / "out")
    assert "| 2 problems | Pass@1 100.0 [" in (tmp_path / "out" / "results.md").read_text()
    assert "Pass@2 100.0 over 1 of them |" in (tmp_path / "out" / "results.md").read_text()


def test_samples_of_problems_that_a_limit_leaves_out_are_counted_and_said(problems, two_kinds, tmp_path, capsys):
    assert run(benchmark=problems, samples=two_kinds, limit=1, out=tmp_path / "out") == 0
    assert "6 samples of problems that" in capsys.readouterr().out
    assert len(lines(tmp_path / "out" / "samples.jsonl")) == 2


def test_a_file_without_samples_is_one_line(problems, tmp_path, capsys):
    empty = write_samples(tmp_path / "empty.jsonl", [])
    assert run(benchmark=problems, samples=empty, out=tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert "empty.jsonl has no sample of the 4 problems evaluated" in err
    assert err.count("\n") == 1


def test_a_device_of_samples_is_said_to_be_no_file(problems, tmp_path, capsys):
    assert run(benchmark=problems, samples="/dev/null", out=tmp_path / "out") == 2
    assert "samples=/dev/null is no file" in capsys.readouterr().err


def test_the_reference_scores_what_the_set_deserves(problems, tmp_path):
    assert run(benchmark=problems, model="reference", out=tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["pass@1"] == 1.0


def test_a_problem_without_a_reference_is_missing_not_wrong(problems, tmp_path, capsys):
    with open(problems, "a") as file:
        file.write(json.dumps({"id": "alone", **SUM, "solutions": []}) + "\n")
    assert run(benchmark=problems, model="reference", out=tmp_path / "out") == 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["pass@1"], results["problems"], results["missing"]) == (1.0, 4, {"no_reference": 1})
    assert "no_reference 1" in capsys.readouterr().out


def test_two_evaluations_compare_problem_by_problem(problems, two_kinds, tmp_path, capsys):
    better = write_samples(
        tmp_path / "better.jsonl", [{"problem_id": f"sum-{i}", "completion": RIGHT} for i in range(4) for _ in "ab"]
    )
    run(benchmark=problems, samples=two_kinds, out=tmp_path / "a")
    run(benchmark=problems, samples=better, out=tmp_path / "b")
    capsys.readouterr()
    assert run(compare=f"{tmp_path / 'a'},{tmp_path / 'b'}", out=tmp_path / "c") == 0
    figures = json.loads((tmp_path / "c" / "comparison.json").read_text())["figures"]
    assert figures["pass@1"]["difference"] == pytest.approx(0.625)
    assert (figures["pass@1"]["rose"], figures["pass@1"]["fell"]) == (3, 0)
    assert figures["pass@2"]["difference"] == pytest.approx(0.5)
    assert "+62.5" in capsys.readouterr().out


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


def test_evaluations_of_different_data_are_not_compared(problems, two_kinds, tmp_path, capsys):
    run(benchmark=problems, samples=two_kinds, out=tmp_path / "a")
    with open(problems, "a") as file:
        file.write(json.dumps({"id": "more", **SUM}) + "\n")
    run(benchmark=problems, samples=two_kinds, out=tmp_path / "b")
    assert run(compare=f"{tmp_path / 'a'},{tmp_path / 'b'}") == 2
    assert "files differs" in capsys.readouterr().err


class ServerThread:
    """A chat server with a loop of its own, that can be stopped and started again on its port."""

    def __init__(self, script):
        self.server = ChatServer(script)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.start()

    def start(self):
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(10)

    def stop(self):
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(10)

    def close(self):
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def serve():
    servers = []

    def start(script):
        servers.append(ServerThread(script))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def test_an_endpoint_is_evaluated_and_every_sample_is_accounted_for(problems, tmp_path, serve):
    served = serve(lambda body, attempt: RIGHT if body["seed"] % 2 else WRONG)
    out = tmp_path / "out"
    settings = {"benchmark": problems, "endpoint": served.server.url, "model": "m", "n": 3, "asking": 4, "out": out}
    assert run(**settings) == 0
    results = json.loads((out / "results.json").read_text())
    assert (results["samples"], served.server.answered) == (12, 12)
    assert results["tokens"] == {"prompt": 84, "completion": 132}
    assert run(**settings) == 0
    assert served.server.answered == 12


def test_a_server_that_dies_in_the_middle_costs_no_sample(problems, tmp_path, serve):

    def script(body, attempt):
        if served.server.answered == 5 and not dead:
            dead.append(threading.Thread(target=restart))
            dead[0].start()
            return "drop"
        return RIGHT

    def restart():
        served.stop()
        served.start()

    dead: list[threading.Thread] = []
    served = serve(script)
    assert run(benchmark=problems, endpoint=served.server.url, model="m", n=4, asking=2, out=tmp_path / "out") == 0
    dead[0].join(10)
    keys = [(row["problem_id"], row["sample"]) for row in lines(tmp_path / "out" / "samples.jsonl")]
    assert sorted(keys) == sorted({(f"sum-{i}", n) for i in range(4) for n in range(4)})


def test_a_server_that_stays_away_stops_the_evaluation_and_the_same_command_goes_on(problems, tmp_path, serve, capsys, monkeypatch):  # fmt: skip
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.02)
    back: list[bool] = []

    def script(body, attempt):
        return RIGHT if served.server.answered < 5 or back else "drop"

    served = serve(script)
    out = tmp_path / "out"
    settings = {
        "benchmark": problems,
        "endpoint": served.server.url,
        "model": "m",
        "n": 4,
        "asking": 1,
        "out": out,
        "patience": 0.3,
    }
    assert run(**settings) == 1
    assert "run the same command again" in capsys.readouterr().err
    kept = len(lines(out / "samples.jsonl"))
    assert kept == 5
    back.append(True)
    assert run(**settings) == 0
    assert len(lines(out / "samples.jsonl")) == 16
    assert served.server.answered == 16
    assert json.loads((out / "manifest.json").read_text())["counts"]["samples_judged"] == 16


def test_an_evaluation_that_is_killed_goes_on_where_it_was(problems, tmp_path, serve):
    async def slowly(body, attempt):
        await asyncio.sleep(0.15)
        return RIGHT

    served = serve(lambda body, attempt: slowly_counted(body, attempt))

    async def slowly_counted(body, attempt):
        answer = await slowly(body, attempt)
        if served.server.answered == 6:
            process.send_signal(signal.SIGKILL)
        return answer

    out = tmp_path / "out"
    words = [f"benchmark={problems}", f"endpoint={served.server.url}", "model=m", "n=4", "asking=1", f"out={out}"]
    process = subprocess.Popen([sys.executable, "-m", "code_rl.cli", "eval", *words], stdout=subprocess.DEVNULL)
    assert process.wait(60) == -signal.SIGKILL
    kept = len(lines(out / "samples.jsonl"))
    assert 0 < kept < 16
    before = served.server.answered
    assert main(["eval", *words]) == 0
    assert served.server.answered - before == 16 - kept
    keys = {(row["problem_id"], row["sample"]) for row in lines(out / "verdicts.jsonl")}
    assert len(keys) == 16


def test_a_refused_request_is_missing_and_the_rest_goes_on(problems, tmp_path, serve):
    from aiohttp import web

    seeds = []

    def script(body, attempt):
        seeds.append(body["seed"])
        return web.Response(status=400, text="too long") if body["seed"] == seeds[0] else RIGHT

    served = serve(script)
    assert run(benchmark=problems, endpoint=served.server.url, model="m", n=2, asking=1, out=tmp_path / "out") == 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["missing"], results["samples"], results["pass@1"]) == ({"http_400": 1}, 7, 1.0)


REFUSED = {
    "no one to evaluate": ({}, "who is evaluated"),
    "two to evaluate": ({"endpoint": "http://h", "samples": "s.jsonl", "model": "m"}, "give one"),
    "endpoint without a model": ({"endpoint": "http://h"}, "needs model="),
    "n of a reference": ({"model": "reference", "n": "4"}, "model=reference"),
    "temperature of a reference": ({"model": "reference", "temperature": "1"}, "temperature= has no effect"),
    "patience of weights": ({"model": "tiny", "patience": "3"}, "patience= has no effect"),
    "environment of an endpoint": ({"endpoint": "http://h", "model": "m", "environment": "repair"}, "environment= has no effect"),
    "unknown environment": ({"model": "tiny", "environment": "repare"}, "did you mean 'repair'"),
    "turns of a single answer": ({"model": "tiny", "max_turns": "3"}, "max_turns=3 has no effect"),
    "device of an endpoint": ({"endpoint": "http://h", "model": "m", "device": "cpu"}, "device= has no effect"),
    "many greedy ones": ({"model": "tiny", "temperature": "0", "n": "8"}, "give n=1"),
    "nothing": ({"model": "tiny", "n": "0"}, "samples nothing"),
    "k above n": ({"model": "tiny", "n": "4", "k": "5"}, "between 1 and n=4"),
    "a window of something else": ({"model": "tiny", "start_date": "2024-08-01"}, "livecodebench"),
    "a rating of something else": ({"model": "tiny", "standings": "s.jsonl"}, "belongs to benchmark=codeforces"),
    "no run": ({"checkpoint": "/nowhere"}, "no run directory"),
    "top_p of a reference": ({"model": "reference", "top_p": "0.9"}, "top_p= has no effect"),
    "top_k 0": ({"model": "tiny", "top_k": "0"}, "top_k=0 must be"),
    "unknown wording": ({"model": "tiny", "prompt": "plane"}, "did you mean 'plain'"),
    "wording of samples": ({"samples": "s.jsonl", "prompt": "plain"}, "prompt= has no effect"),
    "sweep and max_tokens": ({"model": "tiny", "sweep": "8,16", "max_tokens": "8"}, "leave one of them out"),
    "sweep of words": ({"model": "tiny", "sweep": "8,many"}, "must be whole numbers"),
    "limit 0": ({"model": "tiny", "limit": "0"}, "limit=0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_no_effect_or_no_sense_is_refused_in_one_line(problems, name, capsys, tmp_path):
    settings, message = REFUSED[name]
    assert run(benchmark=problems, out=tmp_path / "out", dry_run="true", **settings) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_benchmark_is_refused_with_those_that_exist(capsys):
    assert run(benchmark="humanevil", model="tiny") == 2
    assert "did you mean 'humaneval'" in capsys.readouterr().err


def test_livecodebench_without_a_release_is_refused_as_ambiguous(capsys):
    assert run(benchmark="livecodebench", model="tiny", dry_run="true") == 2
    assert "ambiguous" in capsys.readouterr().err


def test_wording_and_narrowing_are_asked_with_and_recorded(problems, tmp_path, serve):
    served = serve(lambda body, attempt: RIGHT)
    words = {"prompt": "plain", "system_prompt": "Think first.", "top_p": "0.95", "top_k": "20"}
    assert run(benchmark=problems, endpoint=served.server.url, model="m", n=1, out=tmp_path / "out", **words) == 0
    for body in served.server.bodies:
        system, question = body["messages"]
        assert system == {"role": "system", "content": "Think first."}
        assert "### Format" not in question["content"]
        assert (body["top_p"], body["top_k"]) == (0.95, 20)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["prompt"] == "plain, system prompt 'Think first.'"
    assert "top_p 0.95, top_k 20" in results["how"]


def test_several_benchmarks_under_several_limits_end_in_a_table_with_averages(problems, tmp_path, serve, capsys):
    other = tmp_path / "other.jsonl"
    other.write_bytes(pathlib.Path(problems).read_bytes())
    served = serve(lambda body, attempt: RIGHT)
    out = tmp_path / "out"
    settings = {
        "benchmark": f"{problems},{other}",
        "endpoint": served.server.url,
        "model": "m",
        "n": 1,
        "sweep": "32,64",
    }
    assert run(**settings, out=out) == 0
    assert {body["max_tokens"] for body in served.server.bodies} == {32, 64}
    rows = json.loads((out / "summary.json").read_text())
    assert [row["of"] for row in rows] == ["32", "64"]
    for row in rows:
        figures = [each["pass@1"] for each in row["benchmarks"].values()]
        assert row["average"]["pass@1"] == sum(figures) / 2
    asked = len(served.server.bodies)
    assert run(**settings, out=out) == 0
    assert len(served.server.bodies) == asked
    assert "| max_tokens | " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "names", "expected"),
    [
        (None, ["humaneval+", "mbpp+"], {"humaneval+": None, "mbpp+": None}),
        ("a.jsonl", ["humaneval", "humaneval+"], {"humaneval": "a.jsonl", "humaneval+": "a.jsonl"}),
        ("mbpp+:b", ["humaneval+", "mbpp+"], {"humaneval+": None, "mbpp+": "b"}),
        ("humaneval+:a,mbpp+:b", ["humaneval+", "mbpp+"], {"humaneval+": "a", "mbpp+": "b"}),
    ],
)
def test_data_goes_to_the_benchmark_whose_it_is(data, names, expected):
    assert data_of(data, names) == expected


@pytest.mark.parametrize("data", ["a.jsonl", "mbpp:a"])
def test_data_that_could_be_anyone_s_is_refused(data):
    with pytest.raises(ConfigError, match="data="):
        data_of(data, ["humaneval+", "livecodebench"])
