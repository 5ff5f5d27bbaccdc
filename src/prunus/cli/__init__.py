"""The command line: one file for each command, imported when it is asked for.

A command is a function in `prunus/cli/<command>.py`. Its docstring is the help; it prints through `prunus.cli.output`
and raises `PrunusError`. `main` turns what happened into the exit status: 0 done, 1 ran and failed, 2 bad input.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from collections.abc import Sequence

GROUPS = {
    "Prune and recover": {
        "prune": "Set the least important weights of a network to zero, and say what that costs.",
        "reconstruct": "Prune a network and adjust the weights that are kept, so that its outputs change little.",
        "distil": "Train a pruned network to answer as the original does.",
        "recipe": "Prune a network and win its quality back by a recipe, shipped or your own.",
        "shrink": "Remove channels, heads and neurons: a smaller ordinary network.",
        "train": "Train a network, plainly or with held, growing or rewound masks.",
    },
    "Prove": {
        "certify": "Bound how far a pruned network can be from the original.",
        "equivalent": "Decide whether two networks agree on a whole box of inputs.",
        "plan": "Find the largest pruning whose certified error stays within a budget.",
    },
    "Run": {
        "compress": "Make a pruned network fast and small, and save it.",
        "bench": "Time dense and sparse layers or a whole network, side by side.",
        "doctor": "Say which versions, instructions and kernels run here.",
    },
    "Study": {
        "study": "Run many prunings of a network and keep the results.",
        "report": "Turn a study into one page.",
    },
    "Research": {
        "ticket": "Find a subnetwork in random weights.",
        "tangent": "Compare the tangent kernels of dense and pruned networks.",
        "private": "Plan, simulate and audit private sparsification.",
        "theory": "Evaluate and check the results of the papers.",
        "reproduce": "Run the papers' tables and figures again, beside the published numbers.",
    },
}
"""The commands by what a person wants to do, each with the sentence that `prunus --help` shows."""
COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}


_ALWAYS = "Every command takes --quiet: nothing is printed but errors and JSON."
_COMPLETION = "Completion in your shell: prunus --completion bash (zsh, fish) prints the script to load."
_EXAMPLE = "Example: prunus prune fc:64-300-100-10 --data digits --sparsity 0.9 --pattern balanced:16"


QUIET = False
"""Whether --quiet was given: nothing is printed but errors and JSON."""

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with bytes that would steer a terminal, or cannot be written, shown as escapes."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status instead of leaving the process."""
    global QUIET

    from prunus.errors import BadInput, PrunusError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    QUIET = "--quiet" in arguments[:end]
    given = [one for number, one in enumerate(arguments) if one != "--quiet" or number >= end]
    if os.environ.get("PRUNUS_TRACEBACK") == "1":
        return _run(given)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return _run(given)
    except BadInput as error:
        return _say(str(error), 2)
    except PrunusError as error:
        return _say(str(error), 1)
    except KeyboardInterrupt:
        return _say("stopped. A run with a folder (-o) goes on with --resume.", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the last resort: one sentence, whatever went wrong
        return _say(_unexpected(error), 1)


def _say(sentence: str, status: int) -> int:
    print(f"prunus: {visible(sentence)}", file=sys.stderr)
    return status


def _warn(message: Warning | str, category: type[Warning], *place: object, **more: object) -> None:
    """A warning as a sentence; those of other libraries about their own future are left out."""
    if issubclass(category, UserWarning) and not QUIET:
        _say(" ".join(str(message).split()), 0)


def _unexpected(error: Exception) -> str:
    import errno
    import traceback

    said = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk is full: make room and run it again ({said})."
    if isinstance(error, MemoryError) or "can't allocate memory" in said:
        return f"Memory ran out: use a smaller batch, model or set of points ({said or 'MemoryError'})."
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
    said = said if len(said) <= 300 else f"{said[:300]}..."
    name = type(error).__name__
    return f"{name}: {said or 'no message'} ({place}). Set PRUNUS_TRACEBACK=1 to see where it comes from."


def _run(arguments: Sequence[str]) -> int:
    from cyclopts import CycloptsError

    from prunus.cli._outputs import check_outputs

    if arguments[:1] == ["--completion"]:
        return _complete(arguments[1:])
    app = _app(arguments[0] if arguments else "")
    try:
        if arguments and arguments[0] in COMMANDS:
            _, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
            check_outputs(arguments[0], bound.arguments)
        result = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        known = " ".join(word for word in arguments[:1] if word in COMMANDS)
        return _say(
            f"{_sentence(error)} See {' '.join(['prunus', known, '--help'] if known else ['prunus', '--help'])}.", 2
        )
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _app(wanted: str):  # type: ignore[no-untyped-def]
    """The application; only the command that is asked for is imported, the others are named."""
    import importlib

    from cyclopts import App, Group

    from prunus import __version__

    app = App(
        name="prunus",
        help="Prune neural networks, and know before and after what it costs.",
        help_epilogue="" if wanted in COMMANDS else f"{_EXAMPLE}\n\n{_ALWAYS}\n\n{_COMPLETION}",
        version=__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,
    )
    other = Group("Other", sort_key=len(GROUPS))
    for flag in ("--help", "--version"):
        app[flag].group = other
    for number, (title, commands) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=number)
        for name, text in commands.items():
            if name == wanted or wanted == "*":
                command = getattr(importlib.import_module(f"prunus.cli.{name}"), name)
                if isinstance(command, App):  # it has commands of its own
                    command.group = group
                    app.command(command, name=name)
                else:
                    app.command(command, name=name, group=group)
            else:
                app.command(_named(text), name=name, group=group)
    return app


def _complete(arguments: Sequence[str]) -> int:
    """Print the completion script of a shell."""
    from prunus.errors import BadInput

    shells = ("bash", "zsh", "fish")
    if len(arguments) != 1 or arguments[0] not in shells:
        raise BadInput(f"--completion takes the name of a shell: {', '.join(shells)}.")
    print(_app("*").generate_completion(shell=arguments[0]))
    return 0


def _named(text: str):  # type: ignore[no-untyped-def]
    def placeholder() -> None: ...

    placeholder.__doc__ = text
    return placeholder


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()).replace("?.", "?")
    return text if text.endswith((".", "?")) else f"{text}."
