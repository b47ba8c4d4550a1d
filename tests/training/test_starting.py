"""A run's start and end: the refusals of a resume, damage that stops nothing, output and files whatever happens."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console as RichConsole
from tokenizers import Tokenizer

import code_rl
import code_rl.loop
from code_rl.data import ProblemOrder
from code_rl.data.builtin import BuiltinTrainSet
from code_rl.engine.checkpoints import read_checkpoints, read_config
from code_rl.engine.names import BUILT_IN_FOLDER, source_of
from code_rl.grading import Problem, StdinTest
from code_rl.grading.native import format_problem
from code_rl.policy import prompt_length, refuse_prompts
from code_rl.policy.environments import Single
from code_rl.training import read_metrics
from code_rl.training.assembly import check_room, prepare
from code_rl.training.config import defaults_here, doubtful, make_config, unused
from code_rl.training.console import Console
from code_rl.util.errors import BackendError, DataError
from code_rl.util.files import read_lines
from tests.paths import ROOT
from tests.refusals import refused
from tests.training.pipeline_support import rollouts, small
from tests.verbs import export_command, train_command

HOSTILE = "a[/x][bold]:smile:"


@pytest.mark.long
def test_a_base_model_without_a_chat_template_trains_on_plain_turns_and_the_run_says_so(tmp_path, capsys):
    base = shutil.copytree(source_of("tiny"), tmp_path / "base")
    settings = json.loads((base / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(settings))
    assert train_command(small(tmp_path / "run", model_name=base, dataset="builtin", max_steps=1)) == 0
    assert "role_colon" in capsys.readouterr().out
    (prompt,) = {tuple(group["prompt_tokens"]) for group in rollouts(tmp_path / "run")[:1]}
    assert Tokenizer.from_file(str(base / "tokenizer.json")).decode(prompt).endswith("\n\nAssistant:")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("starting") / "run"
    assert train_command(small(log_path, max_steps=2, eval_every=-1, save_every=1)) == 0
    return log_path


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def contents(run: Path) -> dict[str, bytes]:
    """By name."""
    files = [path for path in run.rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"seed": "x"}'])
def test_settings_that_cannot_be_read_do_not_stop_delete(tmp_path, damage):
    (tmp_path / "config.json").write_text(damage)
    given = {"log_path": str(tmp_path), "backend": "embedded"}
    with refused("config.json"):
        prepare(given)
    assert prepare({**given, "behavior_if_log_dir_exists": "delete"})[1:] == (tmp_path, False)


@pytest.mark.long
@pytest.mark.parametrize("max_steps", [1, 2])
def test_a_run_that_has_done_its_steps_is_left_alone_with_one_line(finished, tmp_path, capsys, max_steps):
    run = copied(finished, tmp_path / "run")
    before = contents(run)
    capsys.readouterr()
    assert train_command({"log_path": str(run), "max_steps": str(max_steps)}) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1
    assert f"max_steps={max_steps}" in out[0]
    assert contents(run) == before


def test_what_a_kill_at_the_very_end_left_undone_is_done(finished, tmp_path):
    run = copied(finished, tmp_path / "run")
    (run / "checkpoints.jsonl").write_text((run / "checkpoints.jsonl").read_text().splitlines(keepends=True)[0])
    (run / "report.html").unlink()
    assert train_command({"log_path": str(run)}) == 0
    assert [record["step"] for record in read_checkpoints(run)] == [1, 2]
    assert rollouts(run) == rollouts(finished)
    assert (run / "report.html").is_file()


@pytest.mark.long
def test_a_page_that_cannot_be_written_stops_no_run(finished, tmp_path):
    run = copied(finished, tmp_path / "run")
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    assert train_command({"log_path": str(run), "max_steps": "3"}) == 0
    assert (run / "report.html").is_dir()


@pytest.mark.long
def test_a_damaged_line_of_the_rollouts_is_named_and_the_newest_weights_train_on(finished, tmp_path, capsys):
    run = copied(finished, tmp_path / "run")
    lines = (run / "rollouts.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rollouts.jsonl").write_bytes(b"".join([lines[0], b"\x00" * 40 + b"\n", *lines[2:]]))
    capsys.readouterr()
    assert train_command({"log_path": str(run), "max_steps": "3"}) == 0
    said = capsys.readouterr().out
    assert str(run / "rollouts.jsonl") in said
    assert "resumed after 2 steps" in said
    assert f"report: {run / 'report.html'}" in said
    assert [record["step"] for record in read_metrics(run)] == [0, 1, 2]


@pytest.mark.long
def test_a_resumed_run_says_from_which_step_and_keeps_its_id_and_another_one_is_new(finished, tmp_path, capsys):
    def name_of(run: Path) -> str:
        return str(read_config(run)["resolved"]["id"])

    run = copied(finished, tmp_path / "my run")
    assert train_command({"log_path": str(run), "max_steps": "3", "max_tokens_total": "100000"}) == 0
    said = capsys.readouterr().out
    assert "run  resumed after 2 steps" in said
    assert "new: " not in said
    assert f"log_path='{run}' max_steps=6 max_tokens_total=200000\n" in said  # it can be pasted
    assert "test_dataset=" in said
    assert name_of(run) == name_of(finished)
    assert train_command(small(run, max_steps=1, eval_every=-1, behavior_if_log_dir_exists="delete")) == 0
    said = capsys.readouterr().out
    assert "run  new: log_path holds no earlier one" in said
    assert "eval_limit=4 has no effect with eval_every=-1: nothing is evaluated" in said
    assert name_of(run) != name_of(finished)


@pytest.mark.long
def test_paths_are_kept_so_that_a_run_goes_on_and_is_exported_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "deeper").mkdir()
    shutil.copytree(BUILT_IN_FOLDER, tmp_path / "mine" / "model")
    problems = "".join(f"{format_problem(problem)}\n" for problem in BuiltinTrainSet()[:8])
    (tmp_path / "problems.jsonl").write_text(problems)
    monkeypatch.chdir(tmp_path)
    paths = {"model_name": "mine/model", "dataset": "problems.jsonl", "test_dataset": "problems.jsonl"}
    assert train_command(small(Path("run"), eval_every=0, eval_limit=1, max_steps=1, **paths)) == 0
    monkeypatch.chdir("deeper")
    assert train_command({"log_path": "../run", "max_steps": "2", "model_name": "../mine/model/"}) == 0
    assert export_command({"checkpoint": "../run", "format": "peft", "out": "adapter"}) == 0
    with refused("init_from="):
        train_command(small(Path("other"), model_name="adapter"))


def unprintable(place: str, folder: Path) -> Any:
    """A file for the output, on which only some of it can be printed, or nothing."""
    encoding = "utf-8" if place == "full disk" else place
    return open("/dev/full" if place == "full disk" else folder / "said", "w", encoding=encoding)


@pytest.mark.long
@pytest.mark.parametrize("place", ["ascii", "full disk"])
def test_a_run_of_the_library_ends_well_whatever_cannot_be_printed(tmp_path, monkeypatch, place):
    with unprintable(place, tmp_path) as out:
        for name in ("stdout", "__stdout__"):  # as in a process of its own
            monkeypatch.setattr(sys, name, out)
        code_rl.train(**small(tmp_path / "run", max_tokens=8, max_steps=1))
        assert sys.stdout is not out
        sys.stdout.flush()
    assert (tmp_path / "run" / "report.html").is_file()
    assert place == "full disk" or "?" in (tmp_path / "said").read_text(place)


# Each starts an interpreter of its own with torch: CI runs one.
@pytest.mark.parametrize(
    "place", [pytest.param("full disk", marks=pytest.mark.long), pytest.param("ascii", marks=pytest.mark.slow)]
)
def test_a_command_ends_well_whatever_cannot_be_printed(tmp_path, place):
    given = small(tmp_path / "run", eval_every=0, eval_limit=1, max_steps=1)
    words = ["-m", "code_rl.cli", "train", *(f"{name}={value}" for name, value in given.items())]
    with unprintable(place, tmp_path) as out:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, timeout=240,
            env={**os.environ, "PYTHONIOENCODING": place.replace("full disk", "utf-8")},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("error", [BackendError("gone"), ZeroDivisionError("a bug")])
def test_a_run_that_fails_writes_its_report_too(tmp_path, monkeypatch, capsys, error):
    async def failing(run: Any) -> None:
        raise error

    monkeypatch.setattr(code_rl.loop, "train", failing)
    with pytest.raises(type(error)):
        train_command(small(tmp_path / "run"))
    assert (tmp_path / "run" / "report.html").is_file()
    assert f"report: {tmp_path / 'run' / 'report.html'}" in capsys.readouterr().out


def test_a_model_that_cannot_be_sampled_is_refused_before_the_run_directory_exists(tmp_path):
    (tmp_path / "model").mkdir()
    shape = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 1}
    (tmp_path / "model" / "config.json").write_text(json.dumps(shape))
    with refused("MambaForCausalLM"):
        train_command(small(tmp_path / "run", model_name=str(tmp_path / "model"), dataset="builtin"))
    assert not (tmp_path / "run").exists()


def test_a_recipes_samples_of_evaluations_are_not_held_against_a_run_without_them():
    settings = {"backend": "embedded", "recipe": "smollm2", "eval_every": "-1"}
    assert not unused(make_config(settings))
    assert "eval_samples=2" in unused(make_config(settings | {"eval_samples": "2"}))[0]


class _Sandbox(BaseHTTPRequestHandler):
    """Health is fine; programs are refused with the server's `status`."""

    def do_GET(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.server.status)  # type: ignore[attr-defined]

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("status", [None, 401, 403])
def test_a_sandbox_that_does_not_answer_or_refuses_programs_ends_the_start_before_anything_is_sampled(tmp_path, status):
    server = HTTPServer(("127.0.0.1", 0), _Sandbox)
    server.status = status or 200  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if status is None:
        server.shutdown()
        server.server_close()
    with refused("executor=" if status is None else str(status)):
        train_command(small(tmp_path / "run", executor=f"http://127.0.0.1:{server.server_port}"))
    server.server_close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_that_is_shown_is_read_as_markup(terminal):
    text = io.StringIO()
    console = Console(3, rich_console=RichConsole(file=text, width=200, force_terminal=terminal))
    console.header({"log_path": HOSTILE})
    console.notice(HOSTILE)
    console.farewell([], Path(HOSTILE), [f"to resume: log_path={HOSTILE}"])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue())
    assert shown.count(HOSTILE) == 4


def test_a_prompt_that_leaves_no_more_than_the_buffer_gives_its_place_wherever_it_stands(tmp_path, capsys):
    """70 problems, of which the last six leave 63 of 512 tokens: no place in the first 64 shows them."""
    tests = [{"kind": "stdin", "input": "", "expected": ""}]
    rows: list[Any] = [{"id": f"p{i}", "statement": "a " * (2 if i < 64 else 430), "tests": tests} for i in range(70)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    drawn: Any = ProblemOrder(rows, 0).batch(0, 16)
    order = [row["id"] for row in drawn]
    late = [name for name in order if int(name[1:]) >= 64]
    assert late
    given = small(tmp_path / "run", dataset=tmp_path / "problems.jsonl", eval_every=-1, save_every=0, max_steps=1)
    given |= {
        "batch_size": "32",
        "group_size": "16",
        "overlong": "penalty:100",
        "max_tokens": "128",
    }
    assert train_command(given) == 0
    groups = list(read_lines(tmp_path / "run" / "rollouts.jsonl"))
    assert all(group["max_tokens"] > 100 for group in groups)
    assert read_metrics(tmp_path / "run")[-1]["prompts_replaced"] == len(late)
    assert all(repr(name) in capsys.readouterr().out for name in late[:1])


class Words:
    """A renderer whose tokens are words."""

    def prompt_tokens(self, messages: Any) -> list[int]:
        return [0] * len(messages[-1]["content"].split())


def test_prompts_that_leave_no_room_are_counted_and_the_first_is_named():
    problems = [
        Problem(id=f"p{size}", statement="word " * size, tests=(StdinTest(input="", expected=""),))
        for size in (1, 500, 900)
    ]
    words: Any = Words()
    lengths = [(problem.id, prompt_length(problem, Single(), words)) for problem in problems]
    refuse_prompts(lengths, lengths[-1][1] + 1, "training")
    with refused("'p500'", str(lengths[1][1]), kind=DataError):
        refuse_prompts(lengths, lengths[1][1], "training")


@pytest.mark.parametrize(("width", "columns"), [(140, 11), (100, 11), (80, 8), (60, 6)])
def test_a_step_is_one_line_whatever_the_width(width, columns):
    rich = RichConsole(
        file=(text := io.StringIO()), width=width, force_terminal=True, highlight=False, color_system=None
    )
    metrics = dict.fromkeys(("mean_reward", "mean_correct", "format_rate", "loss", "eval/mean_correct"), 0.5)
    times = dict.fromkeys(("time/sample", "time/score", "time/train"), 1.0)
    Console(3, rich_console=rich).end_step(
        0, {**metrics, **times, "groups_skipped": 0, "groups_total": 8, "tokens/completion": 999}
    )
    head, row = text.getvalue().splitlines()
    assert max(len(head), len(row)) <= width
    assert len(head.split()) == columns
    assert head.split()[-1] == "held-out"


def test_a_checkpoint_that_does_not_fit_the_disk_is_refused_and_many_are_mentioned(tmp_path, monkeypatch):
    def said(free, **settings):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
        lines: list[str] = []
        config = make_config({"backend": "embedded", "max_steps": 30, "save_every": 10} | settings)
        backend: Any = SimpleNamespace(trainer=SimpleNamespace(checkpoint_bytes=100))
        check_room(config, backend, tmp_path, lines.append)
        return lines

    assert said(free=1000) == said(free=250, keep_checkpoints=2) == said(free=1, save_every=0) == []
    assert len(said(free=250)) == 1
    with refused("log_path"):
        said(free=50)


def test_a_setting_far_from_its_recipe_and_a_model_on_problems_of_others_are_said_at_the_start():
    def said(**settings):
        return doubtful(make_config({"backend": "embedded", **settings}))

    assert said() == said(learning_rate=1e-3, max_steps=1000) == []
    assert "learning_rate" in said(learning_rate=1e-5)[0]
    assert "model_name" in said(dataset="mine.jsonl", eval_every=-1)[0]


def test_help_shows_the_defaults_that_will_hold(monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert defaults_here()["learning_rate"].startswith("0.002 ")
    monkeypatch.setenv("TINKER_API_KEY", "tml-x")
    assert "learning_rate" not in defaults_here()  # the hosted recipe's is the setting's own
    assert defaults_here()["model_name"].startswith("Qwen/")
