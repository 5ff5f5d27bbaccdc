from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
LONG = (
    "study/test_cluster.py",
    "native/test_kernels_check.py",
    "native/test_emulated_select.py",
    "test_examples.py",
    "test_docs.py",
    "test_face.py",
    "test_site.py",
    "study/test_runner.py",
)
"""Files whose tests take longest: they begin, so that no worker is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.partition("::")[0].endswith(LONG))
    for item in items:
        reasons = [str(mark.kwargs.get("reason", "")) for mark in item.iter_markers("skip")]
        if any("empty parameter set" in reason for reason in reasons):
            raise pytest.UsageError(f"{item.nodeid} has no parameters, so it would test nothing.")
    folder = os.environ.get("PRUNUS_DATA", "")
    if folder and Path(folder).is_dir():
        return
    reason = "needs the public data sets: set PRUNUS_DATA to the folder that holds them"
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as wide as they are, whatever the terminal that runs the tests says."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    return Path(os.environ["PRUNUS_DATA"])
