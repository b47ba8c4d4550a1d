from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`code-rl serve` on a thread of the test."""
    pytest.importorskip("prometheus_client")
    from tests.engine.serve.serve_support import ServerThread

    with ServerThread(tmp_path_factory.mktemp("state")) as running:
        yield running
