"""What is called idle, on a /proc written for the test: time in which every thread that there was, seen or not, slept."""

import os
from pathlib import Path

import pytest

from code_rl.sandbox.embedded.guest.idleness import IdleTime, View

SUPERVISOR, PROGRAM = "1", "2"


class Proc:
    """A folder with one program below the supervisor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").symlink_to(SUPERVISOR)
        self._write(SUPERVISOR, "S", parent="0")
        (folder / SUPERVISOR / "schedstat").write_text("5 0 1")
        self.born = 2
        self.threads = {}

    def show(self, threads, born=None):
        """`threads`: number to (state, seconds on a processor or waiting for one); `born`: the last number given away."""
        self.born = self.born if born is None else born
        self._write(PROGRAM, "S", parent=SUPERVISOR)
        for number in self.threads.keys() - threads.keys():
            for name in ("stat", "schedstat"):
                (self.folder / PROGRAM / "task" / number / name).unlink()
            (self.folder / PROGRAM / "task" / number).rmdir()
        for number, (state, busy_s) in threads.items():
            self._write(f"{PROGRAM}/task/{number}", state, parent=SUPERVISOR)
            (self.folder / PROGRAM / "task" / number / "schedstat").write_text(f"0 {int(busy_s * 1e9)} 1")
        self.threads = threads
        (self.folder / "loadavg").write_text(f"0.1 0.2 0.3 1/20 {self.born}\n")

    def _write(self, name, state, parent):
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / name / "stat").write_text(f"{name} (a (strange) name) {state} {parent} " + "0 " * 30)


@pytest.fixture
def proc(tmp_path):
    shown = Proc(tmp_path)
    shown.show({"2": ("S", 0.0)})
    view = View(os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "loadavg", os.O_RDONLY))
    shown.idle = IdleTime(view)
    yield shown
    for fd in view:
        os.close(fd)


def test_sleep_is_idle(proc):
    proc.idle.look(1.0, lenient=True)
    assert proc.idle.seconds == 1.0


def test_a_wait_that_is_over_is_not_idle(proc):
    proc.show({"2": ("S", 0.75)})
    proc.idle.look(1.0, lenient=True)
    assert proc.idle.seconds == 0.25


def test_nothing_is_called_idle_while_a_thread_may_be_waiting(proc):
    proc.show({"2": ("R", 0.1)})
    proc.idle.look(0.5, lenient=True)
    proc.idle.look(1.0, lenient=True)
    assert proc.idle.open
    assert proc.idle.seconds == 0.0


def test_a_thread_that_ended_while_another_waited_takes_its_own_wait_with_it(proc):
    proc.show({"2": ("S", 0.0), "3": ("R", 0.0)}, born=3)
    proc.idle.look(0.5, lenient=True)
    proc.show({"2": ("S", 0.0), "4": ("R", 0.0)}, born=4)
    proc.idle.look(1.0, lenient=True)
    proc.show({"2": ("S", 0.0), "4": ("S", 0.1)})
    proc.idle.look(1.1, lenient=True)
    assert not proc.idle.open
    assert proc.idle.seconds == 0.0


def test_threads_that_came_and_went_between_two_looks_may_have_waited(proc):
    proc.idle.look(1.0, lenient=True)
    proc.show({"2": ("S", 0.0)}, born=7)
    proc.idle.look(2.0, lenient=True)
    assert proc.idle.seconds == 1.0
    proc.idle.look(3.0, lenient=True)
    assert proc.idle.seconds == 2.0


def test_a_sleeper_that_ended_may_have_waited_since_it_was_seen_and_no_longer(proc):
    proc.show({"2": ("S", 0.0), "3": ("S", 0.0)}, born=3)
    proc.idle.look(1.0, lenient=True)
    proc.show({"2": ("S", 0.0)})
    proc.idle.look(1.25, lenient=True)
    assert proc.idle.seconds == 1.0


def test_threads_that_are_there_to_be_seen_are_not_taken_for_missed_ones(proc):
    proc.show({"2": ("S", 0.0), "3": ("S", 0.0), "4": ("S", 0.0)}, born=4)
    proc.idle.look(1.0, lenient=True)
    assert proc.idle.seconds == 1.0


def test_in_the_end_threads_that_come_and_go_count_for_nothing(proc):
    proc.show({"2": ("S", 0.0)}, born=99)
    proc.idle.look(1.0, lenient=False)
    assert proc.idle.seconds == 1.0
