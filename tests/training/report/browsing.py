"""A real Chromium, watched: its logs, its requests, and whether a planted script ran."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api")

expect = playwright.expect
DESKTOP = {"viewport": {"width": 1360, "height": 900}, "reduced_motion": "reduce"}
PATIENCE_MS = 200_000
"""A busy machine is slow, not broken."""
expect.set_options(timeout=PATIENCE_MS)
DARK = {**DESKTOP, "color_scheme": "dark"}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
    "reduced_motion": "reduce",
}


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """The installed Chromium, headless; the test is skipped where there is none."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page and everything about it that a test should know."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    planted: set[str] = field(default_factory=set)

    def leaving(self, home: str) -> list[str]:
        """Requests to anywhere but `home` and the page itself."""
        return [url for url in self.requests if not url.startswith((home, "data:", "blob:"))]


@contextlib.contextmanager
def watched(browser: Any, **look: Any) -> Iterator[Watched]:
    """A new page. A planted script shows by calling `xss(…)`, opening a dialog, or asking for evil.invalid."""
    context = browser.new_context(**look)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    seen = Watched(page)
    page.on(
        "console", lambda message: seen.problems.append(message.text) if message.type in ("error", "warning") else None
    )

    def dismiss(dialog: Any) -> None:
        seen.planted.add("dialog")
        dialog.dismiss()

    page.on("pageerror", lambda error: seen.problems.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("dialog", dismiss)
    page.expose_function("xss", lambda *which: seen.planted.add(str(which)))
    try:
        yield seen
    finally:
        context.close()


def open_page(seen: Watched, path: Path) -> Any:
    """Open a report and wait until its viewer shows a sample."""
    seen.page.goto(path.as_uri())
    seen.page.wait_for_selector("#sample .text-box")
    return seen.page
