"""Chromium for the tests of pages: found on the PATH, else skipped with a reason; required where CI is true."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium that reaches nothing but files."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        reason = "needs Chromium: install Debian's package chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield running
        finally:
            running.close()


@contextmanager
def opened(running: Any, file: Path, width: int = 1280, scheme: str = "light") -> Iterator[tuple[Any, list[str]]]:
    """A page opened offline from a file, and the list of what it complained about or tried to load."""
    context = running.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    own = file.resolve().as_uri()

    def asked(request: Any) -> None:
        if not request.url.startswith((own, "data:")):
            complaints.append(f"asks for {request.url[:200]}")

    page.on("request", asked)
    page.goto(own)
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    try:
        yield page, complaints
    finally:
        context.close()
