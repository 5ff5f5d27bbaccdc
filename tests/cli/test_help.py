"""`prunus --help` groups the commands, and the example of every command's help runs as printed in an empty folder."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from prunus.cli import COMMANDS, GROUPS, run

EXAMPLE = re.compile(r"`(prunus [^`]+)`")


def commands() -> dict[str, str]:
    """Command -> its docstring; those with subcommands once for each."""
    found = {}
    for name in COMMANDS:
        command: Any = getattr(importlib.import_module(f"prunus.cli.{name}"), name)
        if inspect.isfunction(command):
            found[name] = inspect.getdoc(command) or ""
        else:
            module = importlib.import_module(f"prunus.cli.{name}")
            for part in command:
                if not part.startswith("-"):
                    found[f"{name} {part}"] = inspect.getdoc(command[part].default_command) or module.__doc__ or ""
    return found


def examples(text: str) -> list[list[str]]:
    after = text.partition("Example:")[2]
    return [shlex.split(" ".join(line.split()))[1:] for line in EXAMPLE.findall(after)]


def test_help_is_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(title) for title in GROUPS]
    assert places == sorted(places)
    for title, members in GROUPS.items():
        start = shown.index(title)
        end = min((place for place in places if place > start), default=len(shown))
        assert all(re.search(rf"\b{name}\b", shown[start:end]) for name in members)


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_help_has_an_example_of_itself(command: str) -> None:
    found = examples(commands()[command])
    assert any(example[: len(command.split())] == command.split() for example in found), command


@pytest.mark.parametrize("command", sorted(commands()))
def test_the_example_runs_as_printed_in_an_empty_folder(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRUNUS_DATA", raising=False)
    for example in examples(commands()[command]):
        status = run(example)
        found = 1 if "--fault" in example else 0  # a planted fault must be found
        assert status == found, f"prunus {shlex.join(example)}: {capsys.readouterr().err[-1500:]}"


def test_the_first_example_of_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prunus.cli import _EXAMPLE

    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(_EXAMPLE.partition(":")[2])[1:]) == 0
