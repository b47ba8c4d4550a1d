"""Shared by all tests."""

import gc
import os
from importlib.util import find_spec

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several workers share the cores; set before torch is imported

import pytest
from hypothesis import settings

from tests.boxes import end_servers, require_boxes

if find_spec("chz") is not None:  # the core alone has no verbs
    from tests.named_settings import check_names

    check_names()

settings.register_profile("no-clock", deadline=None)
settings.load_profile("no-clock")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keep everything that tests read in a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODE_RL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def boxes():
    """Boxes, or a skip by name."""
    require_boxes()


def pytest_collection():
    gc.disable()  # what is collected stays, and would be looked through again and again


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_sessionfinish():
    end_servers()
