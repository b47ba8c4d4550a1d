"""A loss of one's own on a server: the formula runs here, through the SDK's `forward_backward_custom`."""

from __future__ import annotations

import pytest

from code_rl.cli.train import train_command
from tests.remote.remote_support import records, settings
from tests.serve.serve_support import ServerThread


@pytest.mark.slow
def test_a_loss_of_ones_own_that_is_the_servers_trains_alike(tmp_path):
    with ServerThread(tmp_path / "server") as server:
        for name, loss in (("own", "tests.newcomer:SAME_AS_BUILT_IN"), ("theirs", "importance_sampling")):
            assert train_command(settings(server.url, tmp_path / name, max_steps="1", loss=loss)) == 0
    own, theirs = (records(tmp_path / name)[-1] for name in ("own", "theirs"))
    assert own["n_datums"] > 0
    assert own["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert own["optim/grad_norm"] == pytest.approx(theirs["optim/grad_norm"], rel=1e-3)
