"""Mutation testing of the formulas: would the tests notice a wrong formula?

Draws mutants of `src/prunus/formulas` and of the formulas in `src/prunus/papers`, reproducibly from a seed: flipped
comparisons, swapped operators, perturbed constants and defaults, lost negations, swapped min and max. Each runs against
its own paper's tests in a forked process, on a copy of the package. Results go to docs/evidence/mutation.json and .md;
explanations of survivors are kept in docs/evidence/mutation-survivors.toml.

Not drawn, because no result depends on it by construction:
- annotations, decorators (sizes of caches), imports, `__all__`, docstrings, f-strings and what is raised;
- on a line marked `# tolerance`, another number, and < for <= or > for >=. Such lines hold how far a sum or an
  integral goes and its nodes, the size of a chunk, what is forgiven as rounding, where a search begins or ends, and
  where one form of a number hands over to another. Operators, flipped comparisons and names are drawn there too;
- the -1 of `reshape`: every negative number means the same there.

    python -m tools.mutation --count 200
    python -m tools.mutation --only tangent --count 20 --trial
"""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import queue
import random
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.evidence import record
from tools.forked import Outcome, Worker

ROOT = Path(__file__).resolve().parents[1]
TEST_FOLDER = ROOT / "tests"
PACKAGE = ROOT / "src" / "prunus"
SURVIVORS = ROOT / "docs" / "evidence" / "mutation-survivors.toml"
WANTED_SHARE = 0.95
MARK = "# tolerance"
NOT_FORMULAS = ("checks", "reproductions", "comparison", "simulation", "planning", "_simulation", "_networks")
SHARED = {  # files of formulas/ and the papers whose tests cover them; others are tested by all papers
    "closeness": ["closeness"],
    "intervals": ["closeness"],
    "norms": ["closeness"],
    "energy": ["balanced"],
    "quadrature": ["balanced"],
    "laws": ["balanced", "noisy_topk"],
    "tangent": ["tangent"],
    "two_level": ["noisy_topk"],
}

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "ceil": "floor",
    "floor": "ceil",
    "sin": "cos",
    "cos": "sin",
    "any": "all",
    "all": "any",
    "expm1": "exp",
    "log1p": "log",
}


@dataclass(frozen=True)
class Mutant:
    """One change: `number` counts the candidates of its file in the order of `candidates`."""

    file: str
    number: int
    line: int
    function: str
    kind: str
    before: str
    after: str


@dataclass(frozen=True)
class Candidate:
    """A change that can be made to a parsed file: what it is, where, and the function that makes it."""

    kind: str
    node: ast.AST
    shown: ast.AST  # the expression around it
    function: str
    change: Callable[[], None]


def candidates(source: str) -> tuple[ast.Module, Iterator[Candidate]]:
    """The parsed file and all its changes, in a fixed order. `change` alters the tree in place."""
    tree = ast.parse(source)
    marked = {number for number, line in enumerate(source.splitlines(), 1) if line.endswith(MARK)}
    return tree, _candidates(tree, marked)


def _candidates(tree: ast.Module, marked: set[int]) -> Iterator[Candidate]:
    for node, shown, replace, function, default in _walk(tree, "", False):
        accuracy = getattr(node, "lineno", 0) in marked
        if isinstance(node, ast.Compare):
            for position, operator in enumerate(node.ops):
                others = COMPARISONS.get(type(operator), ())
                for other in others[1:] if accuracy and len(others) > 1 else others:
                    yield Candidate("comparison", node, node, function, _set_item(node.ops, position, other()))
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
            yield Candidate("operator", node, node, function, _set(node, "op", OPERATORS[type(node.op)]()))
        elif isinstance(node, ast.BoolOp):
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield Candidate("and/or", node, node, function, _set(node, "op", other()))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            yield Candidate("negation", node, shown, function, lambda r=replace, n=node: r(n.operand))
        elif isinstance(node, ast.Constant) and not accuracy:
            for value in _perturbed(node.value):
                kind = "default" if default else "constant"
                yield Candidate(kind, node, shown, function, _set(node, "value", value))
        elif isinstance(node, ast.Call):
            yield from _renamed(node, function)


def _renamed(node: ast.Call, function: str) -> Iterator[Candidate]:
    called = node.func
    if isinstance(called, ast.Name) and called.id in NAMES:
        yield Candidate("name", node, node, function, _set(called, "id", NAMES[called.id]))
    if isinstance(called, ast.Attribute) and called.attr in NAMES:
        yield Candidate("name", node, node, function, _set(called, "attr", NAMES[called.attr]))


def _perturbed(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 1.1 if value else 1.0]
    return []


def _set(node: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


def _set_item(items: list[Any], position: int, value: Any) -> Callable[[], None]:
    return lambda: items.__setitem__(position, value)


def _walk(
    node: ast.AST, function: str, default: bool
) -> Iterator[tuple[ast.AST, ast.AST, Callable[[ast.AST], None], str, bool]]:
    """Every node that computes something, what stands around it, and a function that puts another in its place.

    Annotations, docstrings, decorators, imports and the texts of errors compute nothing worth mutating.
    """
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        items = value if isinstance(value, list) else [value]
        for position, child in enumerate(items):
            if not isinstance(child, ast.AST) or isinstance(
                child, (ast.Raise, ast.Import, ast.ImportFrom, ast.JoinedStr)
            ):
                continue
            if isinstance(value, list):
                replace = lambda new, v=value, p=position: v.__setitem__(p, new)  # noqa: E731
            else:
                replace = lambda new, n=node, f=name: setattr(n, f, new)  # noqa: E731
            inside = child.name if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else function
            in_default = default or name in ("defaults", "kw_defaults")
            around = isinstance(node, (ast.expr, ast.keyword, ast.arguments, ast.Assign, ast.Return, ast.AugAssign))
            yield child, node if around else child, replace, inside, in_default
            if not (isinstance(child, ast.UnaryOp) and _is_reshape(node)):
                yield from _walk(child, inside, in_default)


def _is_reshape(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reshape"


def draw(files: Sequence[Path], count: int, seed: int) -> tuple[list[Mutant], int]:
    """Draw mutants uniformly among all of these files; returns them and how many there are to draw from.

    They come in random order, so that the first of them are a fair draw too.
    """
    sources = {path: path.read_text("utf8") for path in files}
    everything = [(path, n) for path in files for n, _ in enumerate(candidates(sources[path])[1])]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return [describe(path, sources[path], number) for path, number in chosen], len(everything)


def describe(path: Path, source: str, number: int) -> Mutant:
    """The mutant `number` of a file, with the piece of code around the change before and after."""
    candidate = next(itertools.islice(candidates(source)[1], number, None))
    line, before = getattr(candidate.node, "lineno", 0), ast.unparse(candidate.shown)
    candidate.change()
    after = ast.unparse(ast.fix_missing_locations(candidate.shown))
    name = path.relative_to(PACKAGE).as_posix()
    return Mutant(name, number, line, candidate.function, candidate.kind, before, after)


def mutate(source: str, number: int) -> str:
    """The source with its candidate `number` applied."""
    tree, changes = candidates(source)
    next(itertools.islice(changes, number, None)).change()
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def formulas(folder: Path = PACKAGE) -> list[Path]:
    """The files that hold formulas."""
    papers = [p for p in sorted((folder / "papers").glob("*/*.py")) if not p.name.startswith(NOT_FORMULAS)]
    index = [folder / "papers" / "index.py", folder / "papers" / "verify.py"]
    return [*sorted((folder / "formulas").glob("*.py")), *index, *papers]


def subject_of(name: str) -> str:
    """What a file belongs to: papers/tangent/_widths.py is tangent, formulas/swap_law.py is swap_law."""
    return name.split("/")[1].removesuffix(".py")


def tests_of(name: str) -> list[str]:
    """The test files that cover a file; what all papers share is tested by all of them."""
    subject = subject_of(name)
    if subject in ("index", "verify"):
        return [f"tests/papers/test_{subject}.py", "tests/cli/test_theory.py"]
    if name.startswith("papers/"):
        papers = [subject]
    else:
        papers = ["noisy_topk"] if subject.startswith("swap_") else SHARED.get(subject, ["*"])
    slow = ("test_reproductions.py", "test_comparison.py", "test_simulation.py", "test_planning.py")
    found = [
        p for paper in papers for p in sorted((TEST_FOLDER / "papers").glob(f"{paper}/test_*.py")) if p.name not in slow
    ]
    own = sorted((TEST_FOLDER / "formulas").glob(f"test_{subject}.py"))
    return [str(p.relative_to(ROOT)) for p in (*own, *found)]


def measure(drawn: Sequence[Mutant], jobs: int, seconds: int, minutes: float) -> tuple[list[Mutant], list[Mutant]]:
    """Run mutants against their subject's tests until the minutes are over; returns those run and the survivors.

    One that needs over twice its tests' processor time and three seconds is taken to hang, and is killed.
    """
    end = time.monotonic() + 60 * minutes
    finished: list[Mutant] = []
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="prunus-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        everyone = [Worker(Path(folder) / str(number)) for number in range(jobs)]
        needed = sorted({test for mutant in drawn for test in tests_of(mutant.file)})
        durations: dict[str, float] = {}
        parts = [needed[number::jobs] for number in range(min(jobs, len(needed)))]
        for before in pool.map(lambda w, part: w.run(part, {}, seconds, mutated=False), everyone, parts):
            if not before.passed:
                raise SystemExit(f"The tests fail without any mutation: {before.by}")
            durations |= before.durations
        for worker in everyone:
            worker.warm_up(needed, seconds)
            workers.put(worker)

        def judge(mutant: Mutant) -> Outcome | None:
            if time.monotonic() > end:
                return None
            worker = workers.get()
            try:
                with worker.changed(mutant.file, lambda source: mutate(source, mutant.number)):
                    tests = tests_of(mutant.file)
                    usual = sum(taken for test, taken in durations.items() if test.split("::")[0] in tests)
                    return worker.run(tests, durations, 3 + math.ceil(2 * usual), mutated=True)
            finally:
                workers.put(worker)

        for mutant, outcome in zip(drawn, pool.map(judge, drawn)):
            if outcome is None:
                continue
            finished.append(mutant)
            where = f"{mutant.file}:{mutant.line} {mutant.before!r} -> {mutant.after!r}"
            if outcome.passed:
                survivors.append(mutant)
            print(f"{'SURVIVED' if outcome.passed else 'killed'} {where}: {outcome.by}", flush=True)
            if len(finished) % 10 == 0:
                print(f"{len(finished)} of {len(drawn)} mutants, {len(survivors)} survived", flush=True)
        for worker in everyone:
            worker.close()
    return finished, survivors


def explanation(mutant: Mutant, entries: Sequence[dict[str, str]]) -> str:
    """The recorded reason why a mutant may survive: same file and function, `code` occurs in what it changes."""
    for entry in entries:
        same_place = entry["file"] == mutant.file and entry["function"] == mutant.function
        if same_place and entry.get("code", "") in mutant.before:
            return entry["why"]
    return ""


def report(drawn: Sequence[Mutant], survivors: Sequence[Mutant], seed: int) -> float:
    """Write the evidence; returns the killed share."""
    entries = tomllib.loads(SURVIVORS.read_text("utf8")).get("survivor", [])
    share = 1 - len(survivors) / len(drawn)
    by_file, lost = Counter(subject_of(m.file) for m in drawn), Counter(subject_of(m.file) for m in survivors)
    subjects = ", ".join(f"{name} {count - lost[name]}/{count}" for name, count in sorted(by_file.items()))
    note = (
        f"{len(drawn)} mutants drawn with seed {seed}: {len(drawn) - len(survivors)} killed ({share:.1%}), "
        f"{len(survivors)} survived. Killed by subject: {subjects}. Survivors:"
    )
    rows = [
        {
            "file": f"src/prunus/{m.file}",
            "line": m.line,
            "function": m.function,
            "before": m.before,
            "after": m.after,
            "explanation": explanation(m, entries),
        }
        for m in sorted(survivors, key=lambda m: (m.file, m.number))
    ]
    record("mutation", rows=rows, note=note)
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of the formulas.")
    parser.add_argument("--count", type=int, default=240, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=600, help="processor seconds for the tests without a mutant")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no further mutant after this long")
    parser.add_argument("--only", default="", help="papers or files of formulas/, separated by commas: tangent,iterand")
    parser.add_argument("--trial", action="store_true", help="print only, write no evidence")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    files = [p for p in formulas() if not wanted or subject_of(p.relative_to(PACKAGE).as_posix()) in wanted]
    drawn, possible = draw(files, options.count, options.seed)
    print(f"{len(drawn)} of {possible} possible mutants in {len(files)} files, seed {options.seed}", flush=True)
    if options.list:
        for m in sorted(drawn, key=lambda m: (m.file, m.number)):
            print(f"{m.file}:{m.line} [{m.kind}] {m.before!r} -> {m.after!r}")
        return 0
    drawn, survivors = measure(drawn, options.jobs, options.seconds, options.minutes)
    if options.trial:
        share = 1 - len(survivors) / len(drawn)
    else:
        share = report(drawn, survivors, options.seed)
    print(f"killed {share:.1%} of {len(drawn)}")
    return 0 if share >= WANTED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
