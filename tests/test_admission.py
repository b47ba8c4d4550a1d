"""Which host names are this machine's own."""

from __future__ import annotations

import pytest

from code_rl.util.admission import is_loopback


@pytest.mark.parametrize(
    ("host", "ours"),
    [("127.0.0.1:8265", True), ("localhost", True), ("[::1]:80", True), ("::1", True), ("127.0.0.1.evil.invalid:80", False), ("evil.invalid", False), ("0.0.0.0:1", False), ("", False)],
)  # fmt: skip
def test_loopback_is_told_from_names_that_look_like_it(host, ours):
    assert is_loopback(host) is ours
