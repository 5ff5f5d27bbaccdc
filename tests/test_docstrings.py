"""Every public name says what it takes, returns and raises, and its example runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import prunus


def rooms() -> list[str]:
    found = []
    for room in prunus._ROOMS:
        try:
            importlib.import_module(f"prunus.{room}")
        except ModuleNotFoundError:
            continue
        found.append(room)
    return found


def public(room: str) -> Iterator[tuple[str, Any]]:
    """The public names of a room, and those of its public modules (`scores`, `patterns`, `allocations`)."""
    module = importlib.import_module(f"prunus.{room}")
    for name in module.__all__:
        value = getattr(module, name)
        yield f"prunus.{room}.{name}", value
        if inspect.ismodule(value) and value.__name__.startswith("prunus.pruning"):
            yield from ((f"prunus.{name}.{inner}", getattr(value, inner)) for inner in value.__all__)


def documented(value: Any) -> bool:
    """Constants and type aliases cannot carry a docstring of their own."""
    return inspect.isfunction(value) or inspect.isclass(value) or inspect.ismodule(value)


def missing(value: Any) -> list[str]:
    """What the docstring of a function or class lacks."""
    text = inspect.getdoc(value) or ""
    if not text or (inspect.isclass(value) and value.__doc__ is None):
        return ["a docstring"]
    if inspect.ismodule(value):
        return []
    lacks = [] if re.search(r"^Example:\n(?s:.*?)>>> ", text, re.MULTILINE) else ["Example"]
    return lacks + sections(value, text) if inspect.isfunction(value) else lacks


def sections(function: Any, text: str, *, always: bool = True) -> list[str]:
    """What the docstring `text` of a function or method does not say: an argument, what it returns, what it raises.

    Not `always`: what takes no arguments and raises nothing is told by its first line.
    """
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.MULTILINE)
    named = set(re.findall(r"^ {4}\**(\w+):", section[1], re.MULTILINE)) if section else set()
    names = inspect.signature(function).parameters
    takes = [name for name in names if not name.startswith("_") and name not in ("self", "cls")]
    lacks = [f"Args: {name}" for name in takes if name not in named]
    lacks += [f"Args: {name}, which it does not take" for name in named - set(takes)]
    gives = inspect.signature(function).return_annotation not in (None, "None", inspect.Signature.empty)
    if gives and (takes or always) and not re.search(r"^(Returns|Yields):", text, re.M):
        lacks.append("Returns")
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    if any(isinstance(node, ast.Raise) and node.exc for node in ast.walk(body)) and "Raises:" not in text:
        lacks.append("Raises")
    return lacks


def methods(kind: type) -> Iterator[tuple[str, Any, str]]:
    """(name, function, docstring) of the public methods of a class that are written here, inherited ones too."""
    for name in dir(kind):
        owner = next((one for one in kind.__mro__ if name in vars(one)), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("prunus"):
            continue
        found = vars(owner)[name]
        function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        if inspect.isfunction(function) and function.__module__.startswith("prunus"):
            yield name, function, inspect.getdoc(getattr(kind, name)) or ""


@pytest.mark.parametrize("room", rooms())
def test_public_names_are_documented(room: str) -> None:
    found = {name: missing(value) for name, value in public(room) if documented(value)}
    wrong = {name: lacks for name, lacks in found.items() if lacks}
    assert not wrong, "\n".join(f"{name} lacks {', '.join(lacks)}" for name, lacks in wrong.items())


@pytest.mark.parametrize("room", rooms())
def test_public_methods_are_documented(room: str) -> None:
    wrong = []
    for name, value in public(room):
        if inspect.isclass(value):
            wrong += [
                f"{name}.{method} lacks {', '.join(lacks)}"
                for method, function, text in methods(value)
                if (lacks := sections(function, text, always=False) if text else ["a docstring"])
            ]
            bare = (
                method for method, found in vars(value).items() if isinstance(found, property) and not found.__doc__
            )
            wrong += [f"{name}.{method} lacks a docstring" for method in bare if not method.startswith("_")]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", rooms())
def test_examples_run(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    finder, said, seen = doctest.DocTestFinder(), [], set()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for name, value in public(room):
        if not documented(value) or (inspect.ismodule(value) and value.__name__.startswith("prunus.native")):
            continue
        # An example may use torch, prunus and the public names of its own module without importing them.
        home = value if inspect.ismodule(value) else inspect.getmodule(value)
        names = {key: item for key, item in vars(home).items() if not key.startswith("_")}
        for case in finder.find(value, name, globs={"torch": torch, "prunus": prunus, **names}):
            if (case.filename, case.lineno) in seen:
                continue
            seen.add((case.filename, case.lineno))
            torch.manual_seed(0)
            runner.run(case, out=said.append)
    assert runner.failures == 0, "".join(said)
