"""One browser for a module's pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from tests.training.report.browsing import chromium

    with chromium() as browser:
        yield browser
