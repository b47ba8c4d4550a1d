"""A run of 5,000 steps and 640,000 rollouts: time, memory, size, and how fast the page opens."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.training.report.browsing import DESKTOP, chromium, open_page, watched
from tests.training.report.run_folders import write_large_run

STEPS, GROUPS, COMPLETIONS = 5_000, 8, 16


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_long_run_makes_a_small_page_in_bounded_time_and_memory(tmp_path):
    run = write_large_run(tmp_path / "run", STEPS, GROUPS, COMPLETIONS)
    code = (
        "import re, sys, time; from code_rl.cli.main import main; main(['report', 'log_path=' + sys.argv[1]])\n"
        "print(time.process_time(), int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024)"
    )  # ru_maxrss would count what the process of the tests had when it forked
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, timeout=900)
    wall = time.perf_counter() - started
    assert done.returncode == 0, done.stderr
    cpu, memory = map(float, done.stdout.splitlines()[-1].split())
    page = run / "report.html"
    size = page.stat().st_size / 1e6
    with chromium() as browser, watched(browser, **DESKTOP) as seen:
        open_page(seen, page)
        openings = []
        for _ in range(3):
            before = time.perf_counter()
            seen.page.reload()
            seen.page.wait_for_selector("#sample .text-box")
            openings.append(time.perf_counter() - before)
        assert seen.page.locator(".group-row").count() == GROUPS
        assert seen.problems == []
    logs = (run / "rollouts.jsonl").stat().st_size / 1e9
    print(
        f"\n{logs:.2f} GB of rollouts: {wall:.1f} s wall, {cpu:.1f} s CPU, {memory:.0f} MiB, page {size:.2f} MB, opens in {min(openings):.2f} s"
    )
    assert cpu < 60
    assert memory < 1024
    assert size < 10
    assert min(openings) < 3
