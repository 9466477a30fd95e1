"""The page and the documentation say what the terminal says."""

from tools import reasons


def test_the_tables_are_those_of_the_sentences():
    assert reasons.PAGE.read_text() == reasons.page(), "run: python -m tools.reasons"
    assert reasons.TERMS.read_text() == reasons.terms(), "run: python -m tools.reasons"
