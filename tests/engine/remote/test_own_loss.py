"""A loss of one's own on a server: the formula runs here, through the SDK's `forward_backward_custom`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from code_rl.cli.train import train_command
from code_rl.engine import probes
from code_rl.engine.local import passes
from code_rl.engine.losses import LOSSES
from tests.engine.remote.remote_support import records, settings
from tests.engine.serve.serve_support import ServerThread


@pytest.mark.slow
@pytest.mark.parametrize("listed", [True, False])
def test_a_loss_that_a_server_lacks_is_computed_here_and_trains_alike(tmp_path, monkeypatch, capsys, listed):
    """A server that lists its losses, and one whose refusal of a probe tells."""
    few = {name: loss for name, loss in LOSSES.items() if name != "gspo"}
    with ServerThread(tmp_path / "server") as server:
        assert train_command(settings(server.url, tmp_path / "theirs", max_steps="1", loss="gspo")) == 0
        monkeypatch.setattr(passes, "LOSSES", few)
        if not listed:
            survey = probes._survey
            monkeypatch.setattr(probes, "_survey", lambda *asked: replace(survey(*asked), losses=None))
        assert train_command(settings(server.url, tmp_path / "here", max_steps="1", loss="gspo")) == 0
    assert "loss=gspo is computed here" in capsys.readouterr().out
    here, theirs = (records(tmp_path / name)[-1] for name in ("here", "theirs"))
    assert here["n_datums"] > 0
    assert here["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    assert here["clip_fraction"] == theirs["clip_fraction"]
    assert here["optim/grad_norm"] == pytest.approx(theirs["optim/grad_norm"], rel=1e-3)
