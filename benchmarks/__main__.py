"""`python -m benchmarks [names] [--quick]`: run the benchmarks and keep their tables in docs/evidence."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import benchmarks

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


def found() -> list[str]:
    """Every module here that has a `run`."""
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__)]
    return sorted(name for name in names if name not in ("harness", "peers") and not name.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help="all of them unless named: " + ", ".join(found()))
    parser.add_argument("--quick", action="store_true", help="fewer repeats and shapes; nothing is recorded")
    parser.add_argument("--part", action="append", help="one part of a long table, whose other parts are kept")
    parser.add_argument("--beside", metavar="WORD", help="keep the table as bench-NAME-WORD, for another processor")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(found()))
    if unknown:
        print(f"There is no benchmark named {unknown[0]!r}. Known: {', '.join(found())}.", file=sys.stderr)
        return 2
    from tools.evidence import keep_parts, record

    for name in options.names or found():
        module = importlib.import_module(f"benchmarks.{name}")
        parts = tuple(options.part or ())
        known = getattr(module, "PARTS", ())
        if set(parts) - set(known):
            print(f"{name} has no part {parts[0]!r}. Its parts: {', '.join(known) or 'none'}.", file=sys.stderr)
            return 2
        rows = module.run(options.quick, parts) if parts else module.run(options.quick)
        note = (module.__doc__ or "").strip()
        print(f"\n{name}: {note.splitlines()[0] if note else ''}")
        for row in rows:
            print("  " + "  ".join(f"{key}={value}" for key, value in row.items()))
        if not options.quick:
            title = "-".join(filter(None, ("bench", name.replace("_", "-"), options.beside)))
            record(title, keep_parts(title, rows, module.PART, parts, known) if parts else rows, note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
