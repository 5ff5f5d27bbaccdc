"""The process that runs cells: one JSON message in, one JSON message out, until its input ends.

A message names what to do ("base" or "cell"), the cell, and the files. `perform` is the work itself and is the same for
every engine; `main` answers the local engine. When the process that started it dies, however that happens, the system
ends the worker at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def perform(message: dict[str, Any], weights: bytes | None = None) -> tuple[dict[str, Any], bytes | None]:
    """Do what a message asks for: (reply, weights of a dense network where one was trained).

    The reply holds "record" and "seconds", or "error": one line that says what went wrong.
    """
    from prunus.errors import PrunusError
    from prunus.study.grid import Cell
    from prunus.study.store import plain

    started = time.perf_counter()
    try:
        from prunus.study import own_scores
        from prunus.study.measure import run_cell, train_base

        own_scores.fetch(message.get("own_score"))
        cell = Cell.from_dict(message["cell"], message.get("data_dir", ""))
        body = None
        if message["kind"] == "base":
            body, record = train_base(cell, message.get("weights_hash", ""))
        else:
            assert weights is not None
            record = run_cell(cell, weights, message["base"], message.get("network"))
    except PrunusError as error:
        return {"error": str(error), "seconds": time.perf_counter() - started}, None
    except Exception as error:  # a cell that fails is a result; the others go on
        return {"error": _line(error), "seconds": time.perf_counter() - started}, None
    return {"record": plain(record), "seconds": time.perf_counter() - started}, body


def _line(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}, line {place.lineno})"


def main() -> None:
    """Read messages from standard input and write replies to what was standard output."""
    from prunus.errors import PrunusError
    from prunus.storage import write

    sys.path += [path for path in json.loads(sys.argv[2]) if path not in sys.path]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine decides what a Ctrl-C means
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a model or a data set prints must not end up between the replies
    import prunus.study.measure  # noqa: F401 - most of the time it takes to start

    replies.write('{"ready": true}\n')
    replies.flush()
    for line in sys.stdin:
        message = json.loads(line)
        path = Path(message["weights"])
        try:
            weights = path.read_bytes() if message["kind"] == "cell" else None
            reply, body = perform(message, weights)
            if body is not None:
                write(path, body)
        except PrunusError as error:
            reply = {"error": str(error)}
        except OSError as error:
            reply = {"error": f"The weights {path} cannot be read: {error.strerror or error}."}
        try:
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
        except BrokenPipeError:  # the process that started this one is gone
            os._exit(1)
