"""Mutation testing of the theory modules: would the tests notice a wrong formula?

Draws mutants of `src/prunus/theory` (without the checks), reproducibly from a seed: flipped comparisons, swapped
operators, perturbed constants and defaults, lost negations, swapped min and max. Each runs against its own subject's
tests in a subprocess, on a copy of the package. Results go to docs/evidence/mutation.json and .md; explanations of
survivors are kept in docs/evidence/mutation-survivors.toml.

    python tests/mutation.py --count 200
    python tests/mutation.py --only tangent --count 20 --trial
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = ROOT / "src" / "prunus"
THEORY = PACKAGE / "theory"
SURVIVORS = ROOT / "docs" / "evidence" / "mutation-survivors.toml"
WANTED_SHARE = 0.95
MEMORY = 6 << 30  # bytes a run may use
TIMEOUT, STRANGER = 251, 252  # exit statuses of a run
TESTS = {  # modules whose tests bear another name
    "verify": ["tests/theory/test_verify.py", "tests/cli/test_theory.py"],
    "laws": [
        f"tests/theory/test_{name}.py" for name in ("order_statistics_energy", "balanced", "swaps", "swaps_errors")
    ],
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
class Outcome:
    """Whether the tests passed, what failed first, and the seconds each test took."""

    passed: bool
    by: str
    durations: dict[str, float]


@dataclass(frozen=True)
class Candidate:
    """A change that can be made to a parsed file: what it is, where, and the function that makes it."""

    kind: str
    node: ast.AST
    shown: ast.AST  # the expression around it
    function: str
    change: Callable[[], None]


def candidates(tree: ast.Module) -> Iterator[Candidate]:
    """All changes of one file, in a fixed order. `change` alters the tree in place."""
    for node, shown, replace, function, default in _walk(tree, "", False):
        if isinstance(node, ast.Compare):
            for position, operator in enumerate(node.ops):
                for other in COMPARISONS.get(type(operator), ()):
                    yield Candidate("comparison", node, node, function, _set_item(node.ops, position, other()))
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
            yield Candidate("operator", node, node, function, _set(node, "op", OPERATORS[type(node.op)]()))
        elif isinstance(node, ast.BoolOp):
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield Candidate("and/or", node, node, function, _set(node, "op", other()))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            yield Candidate("negation", node, shown, function, lambda r=replace, n=node: r(n.operand))
        elif isinstance(node, ast.Constant):
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
            yield from _walk(child, inside, in_default)


def draw(files: Sequence[Path], count: int, seed: int) -> tuple[list[Mutant], int]:
    """Draw mutants uniformly among all of these files; returns them and how many there are to draw from."""
    sources = {path: path.read_text("utf8") for path in files}
    everything = [(path, n) for path in files for n, _ in enumerate(candidates(ast.parse(sources[path])))]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return [describe(path, sources[path], number) for path, number in sorted(chosen)], len(everything)


def describe(path: Path, source: str, number: int) -> Mutant:
    """The mutant `number` of a file, with the piece of code around the change before and after."""
    tree = ast.parse(source)
    candidate = next(c for n, c in enumerate(candidates(tree)) if n == number)
    line, before = getattr(candidate.node, "lineno", 0), ast.unparse(candidate.shown)
    candidate.change()
    after = ast.unparse(ast.fix_missing_locations(candidate.shown))
    name = path.relative_to(THEORY).as_posix()
    return Mutant(name, number, line, candidate.function, candidate.kind, before, after)


def mutate(source: str, number: int) -> str:
    """The source with its candidate `number` applied."""
    tree = ast.parse(source)
    next(c for n, c in enumerate(candidates(tree)) if n == number).change()
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def subject_of(name: str) -> str:
    """The subject a file belongs to: tangent/_widths.py is tangent, _domain.py is domain."""
    return name.split("/")[0].removesuffix(".py").lstrip("_")


def tests_of(name: str) -> list[str]:
    """The test files that speak for a file; shared modules are tested by all subjects."""
    subject = subject_of(name)
    own = sorted(str(p.relative_to(ROOT)) for p in (HERE / "theory").glob(f"test_{subject}*.py"))
    known = [test for test in TESTS.get(subject, []) if (ROOT / test).exists()]
    everything = sorted(str(p.relative_to(ROOT)) for p in (HERE / "theory").glob("test_*.py"))
    return list(dict.fromkeys([*known, *own])) or everything


class ByDuration:
    """pytest plugin: the quickest tests first (durations as in the run without a mutation), and what failed."""

    def __init__(self, durations: dict[str, float]) -> None:
        self.known, self.measured, self.failed = durations, Counter[str](), ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.measured[report.nodeid] += report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid


def serve(copy: str) -> None:
    """A worker: imports what does not change once, then forks for every request (a JSON line) and answers.

    The editable install redirects imports ahead of sys.path, so it is taken out of the way first.
    """
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
    sys.path.insert(0, copy)
    for name in ("hypothesis", "pytest", "scipy.integrate", "scipy.optimize", "scipy.special", "scipy.stats"):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run_child(copy, request))
        print(_wait(child, request["timeout"]), flush=True)


def _run_child(copy: str, request: dict[str, Any]) -> int:
    import pytest

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    output = os.open(request["output"] + ".txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.dont_write_bytecode = request["mutated"]
    plugin = ByDuration(request["durations"])
    status = int(pytest.main(["-x", "-q", "--no-header", "--tb=line", *request["tests"]], plugins=[plugin]))
    loaded = sys.modules.get("prunus")
    if loaded is not None and not str(loaded.__file__).startswith(copy):
        status = STRANGER
    answer = {"failed": plugin.failed, "durations": plugin.measured}
    Path(request["output"]).write_text(json.dumps(answer), "utf8")
    return status


def _wait(child: int, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return TIMEOUT
        time.sleep(0.01)


class Worker:
    """One copy of the package and the process that runs tests on it."""

    def __init__(self, folder: Path) -> None:
        self.copy = copy_package(folder / "package")
        self.output = folder / "output"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        environment.pop("PRUNUS_PROVE", None)
        command = [sys.executable, str(HERE / "mutation.py"), "--serve", str(self.copy)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, tests: Sequence[str], durations: dict[str, float], timeout: float, mutated: bool) -> Outcome:
        """Run these tests, the quickest first; a crash or running out of time is a failure."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"tests": tests, "durations": durations, "timeout": timeout, "mutated": mutated}
        self.output.unlink(missing_ok=True)
        print(json.dumps({**request, "output": str(self.output)}), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        if status == STRANGER:
            raise SystemExit("The tests did not run on the copy of the package: the installed one was imported.")
        answer: dict[str, Any] = {"failed": "", "durations": {}}
        if self.output.exists():
            answer = json.loads(self.output.read_text("utf8"))
        by = "timeout" if status == TIMEOUT else answer["failed"] or f"status {status}"
        return Outcome(status == 0, by, answer["durations"])

    def judge(self, mutant: Mutant, durations: dict[str, float], timeout: float) -> Outcome:
        """Run the tests of a mutant. Another time of change keeps the original's bytecode from being taken for it."""
        target = self.copy / "prunus" / "theory" / mutant.file
        original, times = target.read_text("utf8"), (target.stat().st_atime, target.stat().st_mtime)
        target.write_text(mutate(original, mutant.number), "utf8")
        os.utime(target, (times[0], times[1] + 100.0))
        outcome = self.run(tests_of(mutant.file), durations, timeout, mutated=True)
        target.write_text(original, "utf8")
        os.utime(target, times)
        return outcome

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def copy_package(folder: Path) -> Path:
    """A fresh copy of the package's Python files in a folder of its own."""
    shutil.copytree(PACKAGE, folder / "prunus", ignore=shutil.ignore_patterns("__pycache__", "native", "*.so"))
    shutil.copytree(PACKAGE / "native", folder / "prunus" / "native", ignore=lambda _, names: _not_python(names))
    return folder


def _not_python(names: list[str]) -> set[str]:
    return {name for name in names if not name.endswith(".py")}


def measure(drawn: Sequence[Mutant], jobs: int, timeout: float) -> list[Mutant]:
    """Run every mutant against its subject's tests; returns the survivors."""
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="prunus-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        everyone = [Worker(Path(folder) / str(number)) for number in range(jobs)]
        needed = sorted({test for mutant in drawn for test in tests_of(mutant.file)})
        before = everyone[0].run(needed, {}, 10 * timeout, mutated=False)
        if not before.passed:
            raise SystemExit(f"The tests fail without any mutation: {before.by}")
        for worker in everyone:
            workers.put(worker)

        def judge(mutant: Mutant) -> Outcome:
            worker = workers.get()
            try:
                return worker.judge(mutant, before.durations, timeout)
            finally:
                workers.put(worker)

        for done, (mutant, outcome) in enumerate(zip(drawn, pool.map(judge, drawn)), 1):
            where = f"{mutant.file}:{mutant.line} {mutant.before!r} -> {mutant.after!r}"
            if outcome.passed:
                survivors.append(mutant)
            print(f"{'SURVIVED' if outcome.passed else 'killed'} {where}: {outcome.by}", flush=True)
            if done % 10 == 0 or done == len(drawn):
                print(f"{done} of {len(drawn)} mutants, {len(survivors)} survived", flush=True)
        for worker in everyone:
            worker.close()
    return survivors


def explanation(mutant: Mutant, entries: Sequence[dict[str, str]]) -> str:
    """The recorded reason why a mutant may survive: same file and function, `code` occurs in what it changes."""
    for entry in entries:
        same_place = entry["file"] == mutant.file and entry["function"] == mutant.function
        if same_place and entry.get("code", "") in mutant.before:
            return entry["why"]
    return ""


def report(drawn: Sequence[Mutant], survivors: Sequence[Mutant], seed: int) -> float:
    """Write the evidence; returns the killed share."""
    from support.evidence import record

    entries = tomllib.loads(SURVIVORS.read_text("utf8"))["survivor"] if SURVIVORS.exists() else []
    share = 1 - len(survivors) / len(drawn)
    by_file, lost = Counter(subject_of(m.file) for m in drawn), Counter(subject_of(m.file) for m in survivors)
    subjects = ", ".join(f"{name} {count - lost[name]}/{count}" for name, count in sorted(by_file.items()))
    note = (
        f"{len(drawn)} mutants drawn with seed {seed}: {len(drawn) - len(survivors)} killed ({share:.1%}), "
        f"{len(survivors)} survived. Killed by subject: {subjects}. Survivors:"
    )
    rows = [
        {
            "file": f"src/prunus/theory/{m.file}",
            "line": m.line,
            "function": m.function,
            "before": m.before,
            "after": m.after,
            "explanation": explanation(m, entries),
        }
        for m in survivors
    ]
    record("mutation", rows=rows, note=note)
    return share


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of the theory modules.")
    parser.add_argument("--count", type=int, default=240, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one mutant's tests")
    parser.add_argument("--only", default="", help="subjects, separated by commas: tangent,tickets")
    parser.add_argument("--trial", action="store_true", help="print only, write no evidence")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    wanted = set(filter(None, options.only.split(",")))
    files = [p for p in sorted(THEORY.rglob("*.py")) if "checks" not in p.relative_to(THEORY).parts]
    files = [p for p in files if not wanted or subject_of(p.relative_to(THEORY).as_posix()) in wanted]
    drawn, possible = draw(files, options.count, options.seed)
    print(f"{len(drawn)} of {possible} possible mutants in {len(files)} files, seed {options.seed}", flush=True)
    if options.list:
        for m in drawn:
            print(f"{m.file}:{m.line} [{m.kind}] {m.before!r} -> {m.after!r}")
        return 0
    survivors = measure(drawn, options.jobs, options.timeout)
    if options.trial:
        share = 1 - len(survivors) / len(drawn)
    else:
        share = report(drawn, survivors, options.seed)
    print(f"killed {share:.1%} of {len(drawn)}")
    return 0 if share >= WANTED_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
