"""The environment that programs see holds nothing of ours, at any level and over the wire."""

from __future__ import annotations

import pytest

from tests.grading.jobs import stdin_job
from tests.grading.sandbox.sandbox_boxes import LEVELS, run

PRINT_ENVIRONMENT = """
import ctypes, os
print(dict(os.environ), dict(os.environb))
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print([libc.getenv(name) for name in (b"TINKER_API_KEY", b"PLANTED", b"HOME", b"USER")])
for pid in ("self", 1, os.getppid()):
    try: print(open(f"/proc/{pid}/environ", "rb").read())
    except OSError: pass
"""
SECRETS = {"TINKER_API_KEY": "tml-5ecret5ecret5ecret", "HF_TOKEN": "hf_5ecret5ecret5ecret", "PLANTED": "planted-5ecret"}


@pytest.mark.parametrize("level", [*LEVELS, "none"])
def test_a_program_that_prints_its_environment_prints_none_of_ours(level, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (seen,) = run(stdin_job(PRINT_ENVIRONMENT), level, own=True)
    assert seen.stdout, seen.detail
    assert b"5ecret" not in seen.stdout + seen.stderr
    assert not any(name.encode() in seen.stdout for name in ("PLANTED", "HF_TOKEN", "USER'", "SSH_", "VIRTUAL_ENV"))
