"""Control groups that a killed host left behind do not stay, and never stand in the way of a later one with its number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from code_rl.grading.sandbox.local.cgroups import Groups, _writable_parents

PARENTS = _writable_parents()[0]


@pytest.mark.skipif(not PARENTS, reason="no control groups can be made here")
def test_groups_of_a_host_that_is_gone_are_removed():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = [Path(parent, f"code-rl-{gone.pid}-7") for parent in PARENTS]
    for folder in left:
        folder.mkdir()
    Groups()
    assert not any(folder.exists() for folder in left)


@pytest.mark.skipif(not PARENTS, reason="no control groups can be made here")
def test_groups_of_a_host_that_lives_stay():
    kept = [Path(parent, f"code-rl-{os.getppid()}-7") for parent in PARENTS]
    for folder in kept:
        folder.mkdir()
    try:
        Groups()
        assert all(folder.exists() for folder in kept)
    finally:
        for folder in kept:
            folder.rmdir()


@pytest.mark.skipif(not PARENTS, reason="no control groups can be made here")
def test_empty_groups_of_this_process_stay_while_others_are_made():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    groups = Groups()
    group = groups.enclose(child.pid)
    assert group is not None
    child.communicate()
    Groups()
    try:
        assert all(Path(folder).exists() for folder in group.directories)
    finally:
        groups.release(group)
