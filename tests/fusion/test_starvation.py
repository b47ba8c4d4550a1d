"""The rule that ends a test, told what it has to know: no clock and no machine takes part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.sandbox.starvation import (
    CEILING,
    LEAN_WINDOWS,
    SHORTEST_LOOK_S,
    WINDOW_S,
    Clock,
    Load,
    processors,
)


def ends(clock, cpu_of, runnable=1, count=2.0, late=0.0):
    """When a test ends whose processes have used `cpu_of(elapsed)`, with looks as often as the clock asks for."""
    elapsed = 0.0
    while not clock.over(elapsed, cpu_of(elapsed), runnable(elapsed) if callable(runnable) else runnable, count):
        elapsed += clock.next_look(elapsed, cpu_of(elapsed)) + late
        assert elapsed <= CEILING * clock.wall_s + SHORTEST_LOOK_S + late
    return elapsed


def test_a_sleeper_ends_at_its_cap():
    for cap in (0.4, 1.0, 2.0, 10.0, 26.0):
        assert ends(Clock(6.0, cap), lambda _: 0.01) == pytest.approx(cap, abs=2 * SHORTEST_LOOK_S)


def test_a_program_that_computes_ends_at_its_cpu_limit_whatever_it_waited_for():
    for share in (1.0, 0.5, 0.3):
        assert ends(Clock(6.0, 10.0), lambda t, s=share: s * t) == pytest.approx(6.0 / share, abs=0.3)


def test_a_starved_program_goes_on_past_its_cap_until_its_cpu_limit():
    assert ends(Clock(1.0, 6.0), lambda t: t / 40, runnable=80) == pytest.approx(40.0, abs=0.5)


def test_on_an_idle_machine_less_than_a_quarter_of_a_processor_is_idleness():
    assert ends(Clock(6.0, 10.0), lambda t: 0.24 * t, runnable=1) == pytest.approx(10.0, abs=0.1)
    assert ends(Clock(6.0, 10.0), lambda t: 0.26 * t, runnable=1) > 20


def test_no_program_outlasts_the_ceiling():
    assert ends(Clock(1e9, 2.0), lambda t: t, runnable=1) == pytest.approx(CEILING * 2.0, abs=0.1)
    assert ends(Clock(10.0, 2.0), lambda t: t / 1000, runnable=10_000) == pytest.approx(CEILING * 2.0, abs=0.1)


def test_lean_windows_are_forgiven_and_four_in_a_row_are_not():
    def pausing(period, pause):
        return lambda t: (t // period) * (period - pause) + min(t % period, period - pause)

    assert ends(Clock(100.0, 10.0), pausing(4.0, 3.0)) > 70
    assert ends(Clock(100.0, 10.0), pausing(20.0, 15.0)) == pytest.approx(10.0, abs=0.1)


def test_threads_that_come_and_go_do_not_make_a_program_look_starved():
    """Each new thread runs for 3 ms in 400; nothing is counted by thread, so nothing is overlooked."""
    assert ends(Clock(1.0, 6.0), lambda t: 0.003 * t / 0.4) == pytest.approx(6.0, abs=0.1)


def test_the_busier_end_of_a_window_counts():
    assert ends(Clock(1.0, 6.0), lambda t: t / 20, runnable=lambda t: 40 if int(t) % 2 else 1) > 15


def test_a_machine_that_does_not_tell_its_load_asks_for_a_64th_of_a_processor():
    assert ends(Clock(1.0, 6.0), lambda t: t / 60, runnable=None) == pytest.approx(CEILING * 6.0, abs=0.2)
    assert ends(Clock(1.0, 6.0), lambda t: t / 70, runnable=None) == pytest.approx(6.0, abs=0.1)


def test_strict_means_the_cap():
    assert ends(Clock(100.0, 6.0, strict=True), lambda t: t, runnable=1000) == pytest.approx(6.0)


@given(
    st.floats(0.05, 30), st.floats(0.1, 60), st.floats(0, 4), st.one_of(st.none(), st.integers(0, 500)), st.floats(0, 5)
)
def test_every_test_ends_by_the_ceiling_and_no_idle_one_lasts(cpu_s, wall_s, rate, runnable, late):
    end = ends(Clock(cpu_s, wall_s), lambda t: rate * t, runnable, late=late)
    assert end <= CEILING * wall_s + late + SHORTEST_LOOK_S
    if rate == 0:
        assert end <= wall_s + (LEAN_WINDOWS + 1) * (
            WINDOW_S + late
        )  # the first window, which counts for nothing, may end late too


def test_the_machine_tells_what_the_rule_needs():
    assert (Load().runnable() or 1) >= 1
    assert processors() > 0
