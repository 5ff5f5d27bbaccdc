"""`prunus report`: a study on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prunus.cli.options import Json, Seed


def report(
    study: Annotated[Path, Parameter(help="Folder of a study, or its study.sqlite.")],
    *,
    output: Annotated[
        Path | None, Parameter(alias="-o", help="The page; report.html in the folder unless given.")
    ] = None,
    title: Annotated[str, Parameter(help="What stands at the top.")] = "",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Turn a study into one page that needs no network: words, pictures, every number, how to do it again.

    Example: `prunus study fc:64-32-10 --data digits --length 1ep --sparsity 0.5 -o runs/digits`, then
    `prunus report runs/digits -o digits.html`
    """
    from prunus.cli.output import console, print_json
    from prunus.report.facts import panels
    from prunus.report.page import write_report
    from prunus.report.words import headline
    from prunus.study import Store

    del seed  # nothing here is random; every command takes it
    with Store(study) as store:
        page = write_report(store, output or store.path.parent / "report.html", title)
        sentences = [headline(panel) for panel in panels(store.results(), store.bases())]
    if json:
        print_json({"page": str(page), "bytes": page.stat().st_size, "summary": sentences})
        return
    out = console()
    for sentence in sentences:
        out.print(sentence)
    out.print(f"page: {page.resolve()} ({page.stat().st_size / 2**20:.1f} MB)", soft_wrap=True)
