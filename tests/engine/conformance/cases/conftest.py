"""The back ends that the conformance cases run on. The cases import nothing but the SDK, numpy and pytest, so that they also
run in an environment that does not have this project.

Without settings they run on the embedded engine in process and through `code-rl serve`. CODE_RL_CONFORMANCE_URL names a server
to use instead, or `hosted` (TINKER_API_KEY pays for it); CODE_RL_CONFORMANCE_MODEL its base model.
"""

import os
from dataclasses import dataclass
from typing import Any

import pytest

from .shapes import ready

URL = os.environ.get("CODE_RL_CONFORMANCE_URL")
MODEL = os.environ.get("CODE_RL_CONFORMANCE_MODEL", "tiny")
LOCAL = ("in-process", "http")


@dataclass
class Backend:
    """A service of Tinker's client shape, and the facts that the cases need about it."""

    name: str
    service: Any
    model: str = MODEL

    def trainer(self, rank: int = 4, seed: int = 0, **kwargs: Any) -> Any:
        """A training client with a fresh adapter."""
        return ready(self.service.create_lora_training_client(self.model, rank=rank, seed=seed, **kwargs))

    def base_sampler(self) -> Any:
        return ready(self.service.create_sampling_client(base_model=self.model))


def pytest_generate_tests(metafunc: Any) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", ["url"] if URL else LOCAL, indirect=True, scope="module")


@pytest.fixture(scope="module")
def backend(request: Any, tmp_path_factory: Any) -> Any:
    if request.param == "in-process":
        pytest.importorskip("torch")
        from code_rl.engine.local import EmbeddedService

        yield Backend("in-process", EmbeddedService(device="cpu", state_dir=tmp_path_factory.mktemp("state")))
        return
    import tinker

    os.environ["TINKER_TELEMETRY"] = "0"
    if request.param == "url":
        url = None if URL == "hosted" else URL
        key = None if URL == "hosted" else os.environ.get("TINKER_API_KEY", "tml-dummy")
        yield Backend("url", tinker.ServiceClient(base_url=url, api_key=key))
        return
    pytest.importorskip("torch")
    pytest.importorskip("prometheus_client")
    from tests.engine.serve.serve_support import ServerThread

    with ServerThread(tmp_path_factory.mktemp("state")) as server:
        service = tinker.ServiceClient(base_url=server.url, api_key="tml-dummy")
        yield Backend("http", service)
        service.close("success").result()
