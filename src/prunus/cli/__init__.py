"""The command line: one file for each command, imported when it is asked for.

A command is a function in `prunus/cli/<command>.py`. Its docstring is the help; it prints through `prunus.cli.output`
and raises `PrunusError`. `main` turns what happened into the exit status: 0 done, 1 ran and failed, 2 bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "prune": "Set the least important weights of a network to zero, and say what that costs.",
    "reconstruct": "Prune a network and adjust what stays, so that its outputs stay.",
    "distil": "Train a pruned network to answer as the original does.",
    "shrink": "Remove channels, heads and neurons: a smaller ordinary network.",
    "certify": "Bound how far a pruned network can be from the original.",
    "equivalent": "Decide whether two networks agree on a whole box of inputs.",
    "plan": "Find the largest pruning whose certified error stays within a budget.",
    "compress": "Make a pruned network fast and small, and save it.",
    "bench": "Time dense and sparse layers or a whole network, side by side.",
    "train": "Train a network, plainly or with held, growing or rewound masks.",
    "ticket": "Find a subnetwork in random weights.",
    "tangent": "Compare the tangent kernels of dense and pruned networks.",
    "private": "Plan, simulate and audit private sparsification.",
    "theory": "Evaluate and check the results of the papers.",
    "study": "Run many prunings of a network and keep the results.",
    "report": "Turn a study into one page.",
    "reproduce": "Run the papers' tables and figures again, beside the published numbers.",
    "doctor": "Say which versions, instructions and kernels run here.",
}


_EXAMPLE = "Example: prunus prune fc:64-300-100-10 --data digits --sparsity 0.9 --pattern balanced:16"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status instead of leaving the process."""
    from prunus.errors import BadInput, PrunusError

    if os.environ.get("PRUNUS_TRACEBACK") == "1":
        return _run(arguments)
    try:
        return _run(arguments)
    except BadInput as error:
        print(f"prunus: {error}", file=sys.stderr)
        return 2
    except PrunusError as error:
        print(f"prunus: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prunus: stopped. A run with a folder (-o) goes on with --resume.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: Sequence[str]) -> int:
    from cyclopts import CycloptsError

    app = _app(arguments[0] if arguments else "")
    try:
        result = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        print(f"prunus: {_sentence(error)} See prunus {' '.join(arguments[:1])} --help.", file=sys.stderr)
        return 2
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _app(wanted: str):  # type: ignore[no-untyped-def]
    """The application; only the command that is asked for is imported, the others are named."""
    import importlib
    import importlib.util

    from cyclopts import App

    from prunus import __version__

    app = App(
        name="prunus",
        help="Prune neural networks, and know before and after what it costs.",
        help_epilogue="" if wanted in COMMANDS else _EXAMPLE,
        version=__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,
    )
    for name, text in COMMANDS.items():
        if importlib.util.find_spec(f"prunus.cli.{name}") is None:
            continue
        if name == wanted:
            app.command(getattr(importlib.import_module(f"prunus.cli.{name}"), name), name=name)
        else:
            app.command(_named(text), name=name)
    return app


def _named(text: str):  # type: ignore[no-untyped-def]
    def placeholder() -> None: ...

    placeholder.__doc__ = text
    return placeholder


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith(".") else f"{text}."
