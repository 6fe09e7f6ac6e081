"""The table of methods is what plans and short runs say."""

from __future__ import annotations

from pathlib import Path

from espalier.testing.matrix import facts, markdown

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_document_is_what_the_methods_are() -> None:
    told = DOCUMENT.read_text(encoding="utf-8")
    assert told == markdown(), "renew it: espalier methods --table > docs/methods.md"


def test_what_a_method_needs_is_what_it_refuses_to_do_without() -> None:
    assert [facts(name).needs for name in ("scaffold", "fednova", "ditto")] == ["plain SGD", "SGD", ""]


def test_losses_have_no_private_form() -> None:
    assert facts("qfedavg").private == "no" and facts("fedavg").private == "yes"
