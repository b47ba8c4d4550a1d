from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.grading.fusion.fusion_support import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """Our server at the strongest isolation that this machine allows."""
    with ServerProcess() as process:
        yield process
