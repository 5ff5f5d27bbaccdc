"""Every numbered statement is covered by claims or code that exist, or says why not."""

from __future__ import annotations

import importlib
import re

import pytest

from prunus.papers import PAPERS
from prunus.papers.reproducing import collect
from prunus.papers.statements import Statement, statements
from prunus.theory import claims

ALL = [statement for paper in PAPERS for statement in statements(paper)]


@pytest.mark.parametrize("statement", ALL, ids=lambda s: f"{s.paper} {s.name}")
def test_a_statement_is_covered_or_says_why_not(statement: Statement) -> None:
    assert statement.claims or statement.code or statement.reproductions or statement.open
    assert set(statement.reproductions) <= set(collect())
    for identifier in statement.claims:
        assert claims[identifier].id == identifier
        assert claims[identifier].paper == statement.paper
    if statement.code:
        module, _, name = statement.code.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, name) or importlib.import_module(statement.code)


def test_every_run_that_is_named_after_a_table_or_figure_is_listed_there() -> None:
    listed = {name for statement in ALL for name in statement.reproductions}
    named = {name for name in collect() if re.search(r"-(table|figure)-\d", name)}
    assert named <= listed


@pytest.mark.parametrize("statement", ALL, ids=lambda s: f"{s.paper} {s.name}")
def test_a_search_for_a_statement_finds_what_covers_it(statement: Statement) -> None:
    assert set(statement.claims) <= {claim.id for claim in claims.search(statement.name)}


def test_no_statement_is_listed_twice() -> None:
    names = [(statement.paper, statement.name) for statement in ALL]
    assert len(names) == len(set(names))


def test_a_claim_that_names_a_statement_is_listed_there() -> None:
    for statement in ALL:
        for claim in claims.values():
            if claim.paper == statement.paper and claim.source.endswith(f", {statement.name}"):
                assert claim.id in statement.claims, f"{claim.id} is missing at {statement.name}"
