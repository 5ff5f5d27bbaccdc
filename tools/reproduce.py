"""Run reproductions and keep their rows in docs/evidence.

python -m tools.reproduce finetune-resnet20 ...
python -m tools.reproduce --runs FOLDER ticket-conv6-cifar    # goes on where it stopped
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tools.evidence import record

from prunus.cli.reproduce import run_one
from prunus.papers.reproducing import collect


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=Path, help="keep checkpoints of long runs here, and go on from them")
    given = parser.parse_args(arguments)
    names, known = given.names, collect()
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        print(f"Name some of: {', '.join(known)}.", file=sys.stderr)
        return 2
    for name in names:
        began = time.monotonic()
        rows = run_one(known[name], None, 0, quiet=False, runs=given.runs)
        minutes = (time.monotonic() - began) / 60
        entry = known[name]
        record(f"reproduce-{name}", rows, f"prunus reproduce {name}: {entry.title}. {entry.source}. {minutes:.1f} min.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
