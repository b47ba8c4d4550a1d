"""Where a run goes on: the last checkpoint whose files are whole, the journal as the truth, one process at a time."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chz
import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.backends.connect import _restored
from code_rl.budget import Tokens
from code_rl.commands.train import train_command
from code_rl.config import make_config
from code_rl.console import Console
from code_rl.errors import BackendError, CheckpointError, ConfigError
from code_rl.files import JsonLines, keep_lines, mark_of, seal, unseal, write_atomically
from code_rl.judging.verdict import Verdict, VerdictKind
from code_rl.runs.checkpoints import append_checkpoint, get_last_checkpoint, read_checkpoints
from code_rl.runs.directory import CONFIG, METRICS, check_log_dir, read_config, with_checksum
from code_rl.runs.inflight import InFlight, Request, SampledAnswer, step_file
from code_rl.runs.journal import JOURNAL, Journal, read_history, read_journal
from code_rl.runs.lock import LOCK, lock_run
from code_rl.runs.logs import MultiplexLogger
from code_rl.runs.recorder import ROLLOUTS, Recorder
from code_rl.runs.resume import Start, check_decisions, choose_start, go_back, lost_tokens, open_history

REQUEST = Request("p", (1, 2, 3), count=2, max_tokens=8, seed=5)
PASSED = Verdict(VerdictKind.PASSED, 1, 1, "lcb")


def drawn(*tokens: int) -> SampledAnswer:
    return SampledAnswer(tokens, tuple(-0.5 for _ in tokens), "stop")


@lru_cache
def template(steps: int) -> Path:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return make_run(folder, steps)


def a_run(folder: Path, steps: int = 6) -> Path:
    """A run directory as a run of so many steps leaves it."""
    return Path(shutil.copytree(template(steps), folder, dirs_exist_ok=True))


def make_run(folder: Path, steps: int, save_every: int = 2) -> Path:
    journal, metrics = Journal(folder / JOURNAL), JsonLines(folder / METRICS)
    rollouts = JsonLines(folder / ROLLOUTS)
    journal.record("begin", step=0, version=2)
    for step in range(steps):
        facts = {"problems": [f"p{step}"], "seeds": [step], "prompt_tokens": [3], "max_tokens": 8}
        journal.record("sample", step=step, policy_step=step, **facts)
        journal.record("train", step=step, substep=0, first=0, datums=1, tokens=10)
        rollouts.append({"step": step, "group": 0})
        journal.record("logged", step=step, metrics={"loss": step / 7})
        metrics.append({"step": step, "loss": step / 7})
        if (step + 1) % save_every == 0:
            marks = {name: mark_of(folder / name) for name in (METRICS, ROLLOUTS, JOURNAL)}
            record = {"name": f"{step + 1:06d}", "step": step + 1, "offset": step, "state_path": f"s{step + 1}"}
            record |= {"version": 2, "marks": {name: [mark.size, mark.crc] for name, mark in marks.items()}}
            journal.record("saved", **record)
            append_checkpoint(folder, record)
    for file in (journal, metrics, rollouts):
        file.close()
    return folder


def chosen(folder: Path, broken: tuple[str, ...] = ()) -> tuple[Start, list[str]]:
    """Where a resume of the run would go on, and what it says."""
    said: list[str] = []

    async def load(start: Start) -> None:
        state_path = start.state_path(folder)
        if state_path in broken:
            raise CheckpointError(f"{state_path} is damaged")

    history = open_history(folder, said.append)
    return asyncio.run(choose_start(folder, history, said.append, load))[0], said


def test_the_newest_checkpoint_is_taken_without_a_word(tmp_path):
    assert chosen(a_run(tmp_path)) == (Start(6, read_checkpoints(tmp_path)[-1]), [])


def test_a_damaged_newest_state_falls_back_to_the_one_before_and_says_so(tmp_path):
    start, said = chosen(a_run(tmp_path), broken=("s6",))
    assert start.step == 4
    assert said == ["checkpoint 000006 cannot be used: s6 is damaged"]


def test_when_no_state_can_be_used_the_refusal_names_the_newest_and_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint 000006 cannot be used: s6 is damaged; .*begin anew"):
        chosen(a_run(tmp_path), broken=("s2", "s4", "s6"))


def test_while_everything_since_the_beginning_is_kept_the_beginning_is_the_last_resort(tmp_path):
    a_run(tmp_path)
    InFlight(tmp_path / "inflight").group_log((0, 0, 0)).keep_answers((0, 0), (), [drawn(1)], 0.1, 0)
    assert chosen(tmp_path, broken=("s2", "s4", "s6"))[0] == Start()


def test_rollouts_that_lost_their_end_are_those_of_an_earlier_checkpoint(tmp_path):
    a_run(tmp_path)
    with (tmp_path / ROLLOUTS).open("rb+") as file:
        file.truncate(read_checkpoints(tmp_path)[1]["marks"][ROLLOUTS][0] + 3)
    start, said = chosen(tmp_path)
    assert start.step == 4
    assert "rollouts.jsonl are damaged" in said[0]
    go_back(tmp_path, start, Tokens())
    assert [json.loads(line)["step"] for line in (tmp_path / ROLLOUTS).read_text().splitlines()] == [0, 1, 2, 3]


def test_rollouts_damaged_at_their_beginning_are_refused_by_name_and_moved_away_they_are_done_without(tmp_path):
    a_run(tmp_path)
    data = bytearray((tmp_path / ROLLOUTS).read_bytes())
    data[3] ^= 1
    (tmp_path / ROLLOUTS).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"rollouts\.jsonl are damaged or missing; move it away"):
        chosen(tmp_path)
    (tmp_path / ROLLOUTS).unlink()
    start, said = chosen(tmp_path)
    assert start.step == 6
    assert "goes on without its earlier part" in said[0]


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_metrics_are_restored_from_the_journal_byte_for_byte(tmp_path_factory, at, bit):
    folder = a_run(tmp_path_factory.mktemp("run"))
    whole = (folder / METRICS).read_bytes()
    data = bytearray(whole)
    data[at % len(data)] ^= 1 << bit
    (folder / METRICS).write_bytes(data)
    start, said = chosen(folder)
    assert start.step == 6
    assert said == [f"{folder / METRICS} was damaged and is restored from the journal"]
    assert (folder / METRICS).read_bytes() == whole


def test_checkpoints_that_vanished_are_restored_from_the_journal(tmp_path):
    a_run(tmp_path)
    whole = read_checkpoints(tmp_path)
    (tmp_path / "checkpoints.jsonl").unlink()
    start, _ = chosen(tmp_path)
    assert start.step == 6
    go_back(tmp_path, start, Tokens())
    assert read_checkpoints(tmp_path) == whole[-1:]


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_an_altered_checkpoint_line_never_starts_a_run_elsewhere(tmp_path_factory, at, bit):
    folder = a_run(tmp_path_factory.mktemp("run"))
    known = read_checkpoints(folder)
    path = folder / "checkpoints.jsonl"
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    assert all(record in known for record in read_checkpoints(folder))
    assert chosen(folder)[0] == Start(6, known[-1])


def test_a_damaged_journal_is_set_aside_whole_and_cut_and_the_run_goes_on(tmp_path):
    a_run(tmp_path)
    whole = (tmp_path / JOURNAL).read_bytes()
    data = bytearray(whole)
    data[len(data) // 2] ^= 4
    (tmp_path / JOURNAL).write_bytes(data)
    start, said = chosen(tmp_path)
    assert start.step == 6
    assert any("journal.damaged.jsonl" in line for line in said)
    assert (tmp_path / "journal.damaged.jsonl").read_bytes() == bytes(data)
    assert whole.startswith((tmp_path / JOURNAL).read_bytes())


def test_a_torn_last_line_is_no_damage_and_the_next_event_has_a_line_of_its_own(tmp_path):
    journal = Journal(tmp_path / JOURNAL)
    journal.record("sample", step=0, problems=[], seeds=[], prompt_tokens=[], max_tokens=8)
    journal.close()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(seal({"event": "train", "step": 0}).encode()[:-9])
    assert read_history(tmp_path / JOURNAL).damaged is None
    journal = Journal(tmp_path / JOURNAL)
    journal.record("resume", step=0)
    journal.close()
    assert [entry["event"] for entry in read_journal(tmp_path / JOURNAL)] == ["sample", "resume"]


def test_going_back_leaves_each_step_once_and_voids_the_rest(tmp_path):
    a_run(tmp_path)
    start, _ = chosen(tmp_path, broken=("s6",))
    go_back(tmp_path, start, Tokens(train=20))
    assert [json.loads(line)["step"] for line in (tmp_path / METRICS).read_text().splitlines()] == [0, 1, 2, 3]
    assert [record["step"] for record in read_checkpoints(tmp_path)] == [2, 4]
    history = read_history(tmp_path / JOURNAL)
    assert sorted(history.saved) == [2, 4]
    assert sorted(history.sampled) == [0, 1, 2, 3]
    assert history.lost == Tokens(train=20)


def test_tokens_that_a_killed_run_spent_in_vain_are_counted_once(tmp_path):
    a_run(tmp_path, steps=5)
    history = read_history(tmp_path / JOURNAL)
    log = InFlight(tmp_path / "inflight").group_log((4, 0, 0))
    log.open(REQUEST)
    log.keep_answers((0, 0), (), [drawn(1, 2)], 0.1, 4)
    lost = lost_tokens(tmp_path, history, 4, completions=2)
    assert lost == Tokens(prefill=3, sample=8, train=10)
    start, _ = chosen(tmp_path)
    go_back(tmp_path, start, lost)
    again = read_history(tmp_path / JOURNAL)
    assert again.lost == lost
    assert lost_tokens(tmp_path, again, 4, completions=2) == Tokens()


def test_data_that_changed_under_a_run_are_refused(tmp_path):
    history = read_history(a_run(tmp_path) / JOURNAL)
    check_decisions(history, lambda step: ([f"p{step}"], [step]))
    with pytest.raises(ConfigError, match=r"step 5 .*'p5' became 'q'.*dataset="):
        check_decisions(history, lambda step: ([f"p{step}" if step < 5 else "q"], [step]))


def test_checkpoints_of_other_formats_are_refused_with_the_reason(tmp_path):
    a_run(tmp_path)
    append_checkpoint(tmp_path, {"name": "000008", "step": 8, "state_path": "s8", "version": 9, "marks": {}})
    start, said = chosen(tmp_path)
    assert start.step == 6
    assert "format 9" in said[0]
    append_checkpoint(tmp_path, {"name": "000010", "step": 10, "state_path": "s10"})
    assert "format None" in chosen(tmp_path)[1][0]


def test_records_of_other_programs_have_no_checksum_and_are_read(tmp_path):
    (tmp_path / "checkpoints.jsonl").write_text('{"name": "a", "step": 1, "state_path": "x"}\n')
    assert (get_last_checkpoint(tmp_path) or {})["name"] == "a"


def test_settings_that_were_edited_are_refused(tmp_path):
    write_atomically(tmp_path / CONFIG, json.dumps(with_checksum({"seed": 1, "resolved": {"prompts": 2}})))
    assert read_config(tmp_path)["seed"] == 1
    (tmp_path / CONFIG).write_text((tmp_path / CONFIG).read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(ConfigError, match="does not match its checksum"):
        read_config(tmp_path)


def test_the_state_of_a_run_directory_that_was_moved_is_found_beside_its_other_files(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    state = tmp_path / "checkpoints" / "000002.state.safetensors"
    state.touch()
    start = Start(2, {"state_path": "/elsewhere/run/checkpoints/000002.state.safetensors"})
    assert start.state_path(tmp_path) == str(state)
    assert Start(2, {"state_path": "tinker://run/weights/000002"}).state_path(tmp_path) == "tinker://run/weights/000002"


class Saved:
    """A service whose saves are files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def _save(self, name: str) -> SimpleNamespace:
        path = self.folder / name
        path.touch()
        return SimpleNamespace(path=str(path))

    def save_state(self, name: str, overwrite: bool) -> Any:
        return self._save(f"{name}.state")

    def save_weights_for_sampler(self, name: str) -> Any:
        return self._save(f"{name}.sampler")


def test_only_the_newest_checkpoints_are_kept_when_the_settings_say_so(tmp_path):
    async def saves() -> None:
        logger = MultiplexLogger([])
        recorder = Recorder(tmp_path, logger, Console(10), keep_checkpoints=2)
        (tmp_path / "checkpoints").mkdir()
        for step in range(1, 5):
            recorder.inflight.group_log((step, 0, 0)).keep_answers((0, 0), (), [drawn(step)], 0.1, step)
            trainer: Any = Saved(tmp_path / "checkpoints")
            saving = await recorder.begin_checkpoint(trainer, step)
            await recorder.commit_checkpoint(saving, step, offset=step)
        recorder.close()

    asyncio.run(saves())
    assert [record["step"] for record in read_checkpoints(tmp_path)] == [3, 4]
    left = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert left == ["000003.sampler", "000003.state", "000004.sampler", "000004.state"]
    assert [path.name for path in sorted((tmp_path / "inflight").glob("*.jsonl"))] == ["000003.jsonl", "000004.jsonl"]


@pytest.mark.parametrize(("status", "expected"), [(404, CheckpointError), (410, CheckpointError), (503, BackendError)])
def test_a_service_that_has_a_checkpoint_no_longer_is_told_from_one_that_is_away(status, expected):
    class Answer(Exception):
        status_code = status

    class Service:
        async def create_training_client_from_state_with_optimizer(self, path: str) -> None:
            raise BackendError("refused") from Answer()

    service: Any = Service()
    with pytest.raises(expected):
        asyncio.run(_restored(service, "tinker://run/weights/000002"))


# Completions in flight


def test_completions_and_verdicts_of_the_same_request_come_back(tmp_path):
    log = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    log.open(REQUEST)
    log.keep_answers((0, 0), (), [drawn(7, 8), drawn(9)], 0.25, 2)
    log.keep_verdict((False, "pass"), PASSED)
    again = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    again.open(REQUEST)
    assert again.answers == {(0, 0): drawn(7, 8), (1, 0): drawn(9)}
    assert again.verdicts == {(False, "pass"): PASSED}
    assert (again.policy_step, again.sample_s) == (2, 0.25)


def test_a_program_that_the_sandbox_failed_on_is_judged_again_by_the_resumed_run(tmp_path):
    log = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    log.open(REQUEST)
    log.keep_answers((0, 0), (), [drawn(7)], 0.25, 2)
    log.keep_verdict((False, "pass"), Verdict(VerdictKind.SANDBOX_ERROR, 0, 1, "lcb"))
    again = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    again.open(REQUEST)
    assert (again.answers, again.verdicts) == ({(0, 0): drawn(7)}, {})


def test_a_later_turn_comes_back_for_the_prompt_that_it_answered_and_no_other(tmp_path):
    log = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    log.open(REQUEST)
    log.keep_answers((0, 0), REQUEST.prompt_tokens, [drawn(7)], 0.25, 2)
    log.keep_answers((0, 1), (1, 2, 3, 7, 9), [drawn(8)], 0.5, 2)
    again = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    again.open(REQUEST)
    assert again.answers == {(0, 0): drawn(7), (0, 1): drawn(8)}
    assert again.has((0, 1), (1, 2, 3, 7, 9))
    assert not again.has((0, 1), (1, 2, 3, 7, 10))
    assert not again.has((0, 2), (1, 2, 3))


@pytest.mark.parametrize(
    "other", [{"seed": 6}, {"max_tokens": 9}, {"prompt_tokens": (1, 2, 4)}, {"problem_id": "q"}, {"count": 3}]
)
def test_completions_of_another_request_do_not(tmp_path, other):
    log = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    log.open(REQUEST)
    log.keep_answers((0, 0), (), [drawn(7)], 0.25, 2)
    from dataclasses import replace

    again = InFlight(tmp_path / "inflight").group_log((3, 1, 0))
    again.open(replace(REQUEST, **other))
    assert again.answers == {}


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_damaged_completion_is_left_out_and_the_others_come_back_unaltered(tmp_path_factory, at, bit):
    folder = tmp_path_factory.mktemp("inflight") / "inflight"
    log = InFlight(folder).group_log((0, 0, 0))
    log.open(Request("p", (1,), 4, 8, 5))
    kept = {member: drawn(member, 30 + member) for member in range(4)}
    for member, each in kept.items():
        log.keep_answers((member, 0), (), [each], 0.1, 0)
    path = step_file(folder, 0)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    again = InFlight(folder).group_log((0, 0, 0))
    again.open(Request("p", (1,), 4, 8, 5))
    assert again.answers.items() <= {(member, 0): each for member, each in kept.items()}.items()
    assert len(again.answers) >= 2


def test_steps_before_the_last_two_checkpoints_are_forgotten(tmp_path):
    inflight = InFlight(tmp_path / "inflight")
    for step in range(4):
        inflight.group_log((step, 0, 0)).keep_answers((0, 0), (), [drawn(step)], 0.1, step)
    inflight.keep_from(2)
    assert sorted(path.name for path in (tmp_path / "inflight").iterdir()) == ["000002.jsonl", "000003.jsonl"]


# Lines


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.floats() | st.text(), min_size=1))
def test_a_sealed_line_gives_back_what_was_sealed(record):
    line = seal(record).encode()
    assert repr(unseal(line)) == repr(json.loads(json.dumps(record)))
    assert json.loads(line)["crc"] == line[9:17].decode() or "crc" in record


@given(at=st.integers(0, 200), bit=st.integers(0, 7))
def test_a_sealed_line_with_one_bit_altered_is_none(at, bit):
    data = bytearray(seal({"event": "sample", "seeds": [1, 2, 3]}).encode())
    data[at % len(data)] ^= 1 << bit
    assert unseal(bytes(data)) is None


def test_a_log_of_any_length_is_rewritten_in_flat_memory(tmp_path):
    line = json.dumps({"step": 0, "text": "x" * 10_000}) + "\n"
    with (tmp_path / "a.jsonl").open("w") as file:
        for _ in range(5_000):
            file.write(line)
    tracemalloc.start()
    keep_lines(tmp_path / "a.jsonl", lambda record: record["step"] == 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "a.jsonl").stat().st_size == 5_000 * len(line)
    assert peak < 2_000_000


# One run, one writer


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path):
    lock = lock_run(tmp_path)
    program = (
        "import sys; from pathlib import Path; from code_rl.runs.lock import lock_run; lock_run(Path(sys.argv[1]))"
    )
    second = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"in use by process {os.getpid()} on" in second.stderr
    lock.release()
    assert lock_run(tmp_path).earlier is None


def test_a_second_run_on_a_directory_is_refused_before_anything_is_loaded(tmp_path):
    settings = chz.asdict(make_config({"backend": "embedded", "executor": "embedded"}))
    write_atomically(tmp_path / CONFIG, json.dumps(with_checksum(settings)))
    lock = lock_run(tmp_path)
    with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
        train_command({"log_path": str(tmp_path)})
    lock.release()


def test_a_run_that_was_cut_before_it_had_settings_begins_anew(tmp_path):
    lock_run(tmp_path).release()
    (tmp_path / "tokenizer.json").touch()
    assert check_log_dir(tmp_path, "resume") == tmp_path


def test_the_lock_of_a_process_that_was_killed_is_taken_over_and_it_is_named(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from code_rl.runs.lock import lock_run; "
        "lock_run(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -9
    lock = lock_run(tmp_path)
    assert lock.earlier is not None
    assert lock.earlier.startswith("process ")
    lock.release()


def test_a_directory_that_was_deleted_and_made_anew_has_a_lock_of_its_own(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lock = lock_run(folder)
    (folder / LOCK).unlink()
    assert not lock.holds()
    assert lock_run(folder).holds()
