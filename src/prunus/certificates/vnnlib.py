"""Boxes of inputs from VNN-LIB files (https://www.vnnlib.org): `(assert (<= X_0 0.68))`.

Only constraints on single inputs are taken: they make a box. Constraints on outputs alone are about one network and are
left aside; anything else, such as an `or` over inputs, is refused.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import torch

from prunus.certificates.domains import Box
from prunus.errors import BadFile

_TOKEN = re.compile(r"\(|\)|[^\s()]+")
_INPUT = re.compile(r"X_(\d+)")
Tree = list["Tree | str"]


def read_vnnlib(path: str | os.PathLike[str]) -> Box:
    """The box of inputs that a VNN-LIB file describes, as a flat vector.

    Args:
        path: the file.

    Returns:
        A `Box` over inputs X_0, X_1, ...

    Raises:
        BadFile: the file is missing, no VNN-LIB, or not a box (an input lacks a limit, or
            a constraint is about several).
    """
    try:
        text = Path(path).read_text("utf8")
    except OSError as error:
        raise BadFile(f"The specification {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path} is no VNN-LIB specification.") from None
    inputs: set[int] = set()
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    for form in _forms(re.sub(r";[^\n]*", "", text), path):
        if form[:1] == ["declare-const"] and len(form) == 3 and isinstance(form[1], str):
            found = _INPUT.fullmatch(form[1])
            if found:
                inputs.add(int(found[1]))
        elif form[:1] == ["assert"] and len(form) == 2:
            _constraint(form[1], low, high, path)
        else:
            raise BadFile(f"{path} holds {_text(form)}, which is neither declare-const nor assert.")
    inputs |= set(low) | set(high)
    if not inputs or inputs != set(range(len(inputs))):
        raise BadFile(f"{path} does not describe inputs X_0, X_1, ... without a gap.")
    for number in sorted(inputs):
        if number not in low or number not in high:
            raise BadFile(f"{path} is not a box: X_{number} lacks a lower or an upper limit.")
        if low[number] > high[number]:
            raise BadFile(f"{path} is empty: X_{number} must be at least {low[number]:g} and at most {high[number]:g}.")
    order = range(len(inputs))
    return Box(
        torch.tensor([low[i] for i in order], dtype=torch.float64),
        torch.tensor([high[i] for i in order], dtype=torch.float64),
    )


def _forms(text: str, path: object) -> list[Tree]:
    """S-expressions of a file."""
    stack: list[Tree] = [[]]
    for token in _TOKEN.findall(text):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise BadFile(f"{path} is no VNN-LIB specification: a parenthesis closes nothing.")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1 or any(isinstance(item, str) for item in stack[0]):
        raise BadFile(f"{path} is no VNN-LIB specification: its parentheses do not match.")
    return stack[0]  # type: ignore[return-value]


def _constraint(form: Tree | str, low: dict[int, float], high: dict[int, float], path: object) -> None:
    text = _text(form)
    if not _INPUT.search(text):
        return  # about outputs alone
    if isinstance(form, list) and form[:1] == ["and"]:
        for part in form[1:]:
            _constraint(part, low, high, path)
        return
    plain = isinstance(form, list) and len(form) == 3 and form[0] in ("<=", ">=")
    if not plain or not all(isinstance(item, str) for item in form):
        raise BadFile(f"{path} is not a box: {text} is no limit on one input.")
    sign, left, right = str(form[0]), str(form[1]), str(form[2])
    if _INPUT.fullmatch(right):
        sign, left, right = ("<=" if sign == ">=" else ">="), right, left
    name, value = _INPUT.fullmatch(left), _number(right)
    if name is None or value is None:
        raise BadFile(f"{path} is not a box: {text} is no limit on one input.")
    number = int(name[1])
    if sign == "<=":
        high[number] = min(value, high.get(number, math.inf))
    else:
        low[number] = max(value, low.get(number, -math.inf))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _text(form: Tree | str) -> str:
    return form if isinstance(form, str) else f"({' '.join(_text(part) for part in form)})"
