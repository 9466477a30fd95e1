"""The page and the documentation say what the terminal says."""

import re

from tools import reasons


def test_the_tables_are_those_of_the_sentences():
    assert reasons.SCRIPT.read_text() == reasons.script(), "run: python -m tools.reasons"
    assert reasons.PAGE.read_text() == reasons.page(), "run: python -m tools.reasons"


def test_the_page_has_no_other_table_of_reasons():
    """One that stood beside it would diverge."""
    words = (reasons.SCRIPT.parent / "words.js").read_text()
    named = set(re.findall(r"\b(EDGES|MOVES|PLACES|REFUSALS|SOURCES|WAITS)\b", reasons.script()))
    assert len(named) == 6
    for file in reasons.SCRIPT.parent.glob("*.js"):
        if file != reasons.SCRIPT:
            assert not re.search(rf"const ({'|'.join(named)})\b", file.read_text()), file.name
    assert 'from "./reasons.js"' in words
