"""The status of a test's end that broke several limits, or whose report is not all."""

from __future__ import annotations

import pytest

from code_rl.grading.sandbox.ending import Allowed, Ended, status_of

WELL = Ended(0, cpu_s=0.5, wall_s=0.6, peak_bytes=1 << 19, stderr=b"", over_time=False, killed_for_memory=False)


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ({}, "ok"),
        ({"stderr": b"MemoryError"}, "ok"),
        ({"exit_code": 1, "stderr": b"MemoryError"}, "memory_limit"),
        ({"exit_code": -9, "killed_for_memory": True}, "memory_limit"),
        ({"peak_bytes": 2 << 20, "over_time": True}, "time_limit"),
        ({"cpu_s": 1.01, "overflow": "stdout"}, "output_limit"),
    ],
)
def test_an_end_has_the_status_of_the_first_limit_that_it_broke(seen, status):
    assert status_of(WELL._replace(**seen), Allowed(cpu_s=1.0, wall_s=2.0, memory_bytes=1 << 20))[0] == status
