"""Run reproductions and keep their rows in docs/evidence: `python -m tools.reproduce finetune-resnet20 ...`."""

from __future__ import annotations

import sys
import time

from tools.evidence import record

from prunus.cli.reproduce import run_one
from prunus.papers.reproducing import collect


def main(names: list[str]) -> int:
    known = collect()
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        print(f"Name some of: {', '.join(known)}.", file=sys.stderr)
        return 2
    for name in names:
        began = time.monotonic()
        rows = run_one(known[name], None, 0, quiet=False)
        minutes = (time.monotonic() - began) / 60
        entry = known[name]
        record(f"reproduce-{name}", rows, f"prunus reproduce {name}: {entry.title}. {entry.source}. {minutes:.1f} min.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
