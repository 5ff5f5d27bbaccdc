"""`prunus theory`: the results of the papers, listed, evaluated beside their printed form, and checked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from prunus.cli.options import Json, Seed


def theory(
    *words: Annotated[
        str, Parameter(help="An id, then arguments as `name=value`; or words to search for; ids with `--check`.")
    ],
    check: Annotated[
        bool, Parameter(negative="", help="Recompute all reference values and run all independent checks.")
    ] = False,
    vacuity: Annotated[
        bool, Parameter(negative="", help="Print what theorems 1, 2, 3 and 1' of the closeness paper allow.")
    ] = False,
    prune: Annotated[
        bool, Parameter(negative="", help="Print how many weights of each layer may be pruned: proved, and expected.")
    ] = False,
    width: Annotated[str, Parameter(help="Widths for --vacuity and --prune, separated by commas.")] = "256,1024,4096",
    layers: Annotated[
        str, Parameter(help="Numbers of layers for --vacuity and --prune, separated by commas.")
    ] = "3,4,5",
    error: Annotated[float, Parameter(help="Output error for --vacuity and --prune.")] = 0.1,
    failure: Annotated[float, Parameter(help="Failure probability for --vacuity and --prune.")] = 0.05,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Evaluate and check the results of the papers.

    Without words it lists all claims. With an id it explains one claim; with an id and arguments it evaluates it and
    shows the corrected value beside the published one. Anything else is searched for: a letter (P closeness, B balanced
    sparsity, N noisy top-k, K tangent kernels, I tickets), an author, a theorem, a word. Values are numbers, yes or no,
    lists separated by commas, or JSON. `--seed` is for claims that draw; checks have fixed seeds of their own.

    Example: `prunus theory`

    Example: `prunus theory "Theorem 3.5"`

    Example: `prunus theory B-3 n=4 r=2`

    Example: `prunus theory K-10b layer=1 widths=1024,1024,1 density=0.5 error=0.1 delta=0.05 --json`

    Example: `prunus theory --check K-2a I-9a`

    Example: `prunus theory --vacuity --width 256,4096 --layers 3`

    Example: `prunus theory --prune --width 1024 --layers 3,5 --error 0.1`
    """
    from prunus.errors import BadInput
    from prunus.theory import claims

    if vacuity:
        return _vacuity(_whole_numbers("--width", width), _whole_numbers("--layers", layers), error, failure, json)
    if prune:
        return _prune(_whole_numbers("--width", width), _whole_numbers("--layers", layers), error, failure, json)
    if check:
        return _check(words, json)
    if not words:
        return _list(list(claims.values()), json, letters=True)
    if _is_id(words[0]):
        return (
            _evaluate(claims[words[0]], words[1:], seed, json) if len(words) > 1 else _describe(claims[words[0]], json)
        )
    found = claims.search(*words)
    if not found:
        raise BadInput(
            f"No claim mentions {' '.join(words)!r}: search for a paper, a theorem or a word, or give an id."
        )
    return _list(found, json)


def _is_id(word: str) -> bool:
    """Whether a word has the form of an id, as in B-3 or k-10b."""
    import re

    return re.fullmatch(r"[A-Za-z]-?\d+[a-z]?", word.strip()) is not None


def parse_value(text: str) -> Any:
    """A value of the command line: whole number, number, true or false, JSON, comma-separated list, or a word."""
    import json

    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            from prunus.errors import BadInput

            raise BadInput(f"The value {text!r} is not valid JSON: {error.msg} at position {error.pos}.") from None
    if "," in text:
        return [parse_value(part.strip()) for part in text.split(",") if part.strip()]
    return text


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    from prunus.errors import BadInput

    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise BadInput(f"The argument {word!r} must have the form name=value, as in n=4.")
        if name in arguments:
            raise BadInput(f"The argument {name!r} is given twice.")
        arguments[name] = parse_value(value)
    return arguments


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    from prunus.errors import BadInput

    value = parse_value(text)
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise BadInput(f"{option} takes whole numbers separated by commas, as in 256,1024, got {text!r}.")
    return tuple(numbers)


def _list(chosen: Sequence[Any], json: bool, letters: bool = False) -> int:
    from prunus.cli.output import console, print_json, print_table
    from prunus.papers import LETTERS

    if json:
        fields = ("id", "title", "status", "source", "erratum", "paper", "name")
        print_json([{field: getattr(claim, field) for field in fields} for claim in chosen])
        return 0
    print_table(["id", "title", "status"], [[c.id, c.title, c.status] for c in chosen], left=(0, 1, 2))
    if letters:
        for letter, meaning in LETTERS.items():
            console().print(f"{letter}  {meaning}", markup=False)
    count = f"{len(chosen)} claim{'s' * (len(chosen) != 1)}"
    console().print(f"{count}. Explain one: prunus theory {chosen[0].id}", markup=False)
    return 0


def _example(claim: Any) -> str:
    """A command that evaluates the claim at its first reference case."""
    import json

    case = next((case for case in claim.cases if not case.printed), None)
    given = {} if case is None else case.given
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    words = (f"'{name}={text}'" if " " in text else f"{name}={text}" for name, text in texts.items())
    return " ".join(["prunus theory", claim.id, *words])


def _describe(claim: Any, json: bool) -> int:
    from prunus.cli.output import console, print_json, print_table

    record = {
        **{
            name: getattr(claim, name)
            for name in ("id", "title", "status", "source", "erratum", "published", "paper", "name")
        },
        "arguments": dict(claim.arguments),
        "returns": dict(claim.returns),
        "printed": dict(claim.printed_returns),
        "example": _example(claim),
    }
    if json:
        print_json(record)
        return 0
    out = console()
    out.print(f"{claim.id}  {claim.title}", markup=False)
    rows = [["takes", name, meaning] for name, meaning in claim.arguments.items()]
    rows += [["gives", name, meaning] for name, meaning in claim.returns.items()]
    rows += [["printed", name, meaning] for name, meaning in claim.printed_returns.items()]
    print_table(["", "name", "meaning"], rows, left=(0, 1, 2))
    _print_origin(claim)
    out.print(f"code: {claim.function.__module__}.{claim.name}", markup=False)
    out.print(f"example: {record['example']}", markup=False)
    return 0


def _evaluate(claim: Any, words: Sequence[str], seed: int, json: bool) -> int:
    from prunus.cli.output import console, print_json, print_table
    from prunus.errors import BadInput

    arguments = _arguments(words)
    if "seed" in claim.arguments:
        arguments.setdefault("seed", seed)
    for name, value in arguments.items():
        if claim.arguments.get(name, "").startswith("bool") and value in ("yes", "no"):
            arguments[name] = value == "yes"
    corrected, printed, silent = claim(**arguments), None, ""
    try:
        printed = claim.printed(**arguments)
    except BadInput as error:  # the published formula covers less: the corrected value comes all the same
        silent = str(error)
    if json:
        record = {"id": claim.id, "title": claim.title, "status": claim.status, "arguments": arguments}
        print_json(
            {**record, "corrected": corrected, "printed": printed, "erratum": claim.erratum, "source": claim.source}
            | ({"printed_fails": silent} if silent else {})
        )
        return 0
    console().print(f"{claim.id}  {claim.title}", markup=False)
    columns = ["value", "corrected", *(["printed"] if printed else []), "meaning"]
    rows = []
    for name, value in corrected.items():
        beside = [_shown(printed.get(name))] if printed else []
        rows.append([name, _shown(value), *beside, claim.returns.get(name, "")])
    print_table(columns, rows, left=(0, len(columns) - 1))
    if silent:
        console().print(f"The published formula has no value here: {silent}", markup=False)
    _print_origin(claim)
    return 0


def _shown(value: Any) -> str:
    """Numbers with enough digits to be compared with print; long lists cut."""
    if value is None:
        return "-"
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, (list, tuple)):
        parts = [_shown(item) for item in value[:8]] + (["..."] if len(value) > 8 else [])
        return f"[{', '.join(parts)}]"
    return str(value)


def _print_origin(claim: Any) -> None:
    from prunus.cli.output import console
    from prunus.papers import STATUS

    console().print(f"status: {claim.status}, {STATUS[claim.status]}", markup=False)
    if claim.published:
        console().print(f"published: {claim.published}", markup=False)
    if claim.erratum:
        label = "note" if claim.status in ("right", "added") else "erratum"
        console().print(f"{label}: {claim.erratum}", markup=False)
    console().print(f"source: {claim.source}", markup=False)


def _check(identifiers: Sequence[str], json: bool) -> int:
    from prunus.cli.output import console, print_json, progress
    from prunus.papers import verify

    chosen = verify.select(identifiers)
    checks = verify.select_checks(chosen)
    results, started = [], time.perf_counter()
    with progress("reference values", sum(len(claim.cases) for claim in chosen) + len(checks), json) as advance:
        for result in verify.verify_cases(chosen):
            results.append(result)
            advance()
        for result in verify.verify_checks(checks):
            results.append(result)
            advance(1, result.name)
    seconds = time.perf_counter() - started
    failures = [result for result in results if not result.passed]
    if json:
        counts = {"passed": len(results) - len(failures), "failed": len(failures), "seconds": seconds}
        print_json({**counts, "results": results})
        return 1 if failures else 0
    out, cases = console(), len(results) - len(checks)
    for result in results:
        if result.passed and result.method != "reference value":
            about = f"{result.method}, {' '.join(result.claims)}, {result.seconds:.2f} s"
            out.print(f"{result.name} ({about}): {result.message}", markup=False)
    for result in failures:
        out.print(f"FAILED {result.name} ({', '.join(result.claims)}): {result.message}", markup=False)
    told = f"{_count(cases, 'reference value')} and {_count(len(checks), 'check')} of {_count(len(chosen), 'claim')}"
    out.print(f"{told} in {seconds:.1f} s:", end=" ")
    out.print(f"{len(failures)} failed." if failures else "all hold.")
    return 1 if failures else 0


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _vacuity(widths: tuple[int, ...], layers: tuple[int, ...], error: float, failure: float, json: bool) -> int:
    from prunus.cli.output import console, print_json, print_table
    from prunus.papers.closeness.vacuity import vacuity

    rows = vacuity(widths=widths, layers=layers, error=error, failure=failure)
    if json:
        print_json(rows)
        return 0
    table = [
        [row.theorem, row.law, row.width, row.layers, row.verdict, f"10^{row.log10_required_width:.1f}", row.reason]
        for row in rows
    ]
    columns = ["theorem", "weights", "width", "layers", "verdict", "needs width", "why"]
    print_table(columns, table, left=(0, 1, 4, 6))
    asked = f"output error {error:g} with probability {1 - failure:g}"
    console().print(
        f"Asked: {asked}. Theorems 1 to 3 run on calibrated constants; only 1' has proved ones.", markup=False
    )
    return 0


def _prune(widths: tuple[int, ...], layers: tuple[int, ...], error: float, failure: float, json: bool) -> int:
    from prunus.cli.output import console, print_json, print_table
    from prunus.papers.closeness.calculator import what_can_i_prune

    rows = [row for width in widths for count in layers for row in what_can_i_prune(width, count, error, failure)]
    if json:
        print_json(rows)
        return 0
    table = [
        [
            r.width,
            r.layers,
            r.method,
            f"{r.pruned:,}",
            f"{r.sparsity:.2%}",
            r.basis,
            "proved" if r.guaranteed else "estimate",
        ]
        for r in rows
    ]
    print_table(["width", "layers", "pruning", "weights", "sparsity", "by", ""], table, left=(2, 5, 6))
    console().print(
        f"Each inner layer of independent uniform weights may lose so many while outputs stay within {error:g} on the "
        f"unit ball; proved with probability {1 - failure:g}. For your own weights: prunus plan.",
        markup=False,
    )
    return 0
