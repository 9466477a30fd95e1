import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import marks as module
from gateway.wire.hashing import text_hash
from gateway.wire.marks import MAX_MARKS, leave_marks, probe

LONG = "The quick brown fox jumps over the lazy dog, and then it goes home to sleep for a while."


def holds(text: str, quote: str) -> bool:
    marks = leave_marks(quote)
    return bool(marks) and set(marks) <= probe([text])


def test_white_space_does_not_matter():
    assert text_hash(" a\n b ") == text_hash("a b") != text_hash("a c")
    assert text_hash(" \n") == text_hash("") == 0


@pytest.mark.parametrize(
    "around", ["{}", "<q>{}</q>", "Answer: {} (end)", "> {}\n", '"{}"', "ASSISTANT: {}\nUSER: hm"]
)
def test_a_long_text_is_found_wherever_it_is_quoted(around):
    assert holds(around.format(LONG), LONG)


def test_a_short_text_is_found_at_the_end_of_a_line():
    assert holds("Combine:\nSUB mock task\nnow", "mock task")
    assert holds("1. Mock answer: short title\n2.", "Mock answer: short title")
    assert not holds("the mock task is done", "mock task")


def test_other_texts_are_not_found():
    assert not holds(LONG, "The slow brown fox jumps over the lazy cat")
    assert not holds("", LONG)


def test_what_is_too_short_leaves_no_mark():
    assert leave_marks("ok") == leave_marks("") == leave_marks("a b c") == leave_marks("unmistakable") == ()
    assert len(leave_marks("mock task")) == 1
    assert len(leave_marks("one two three four five")) == 1
    assert len(leave_marks("word " * 3 + LONG * 9)) <= MAX_MARKS


def test_long_texts_are_looked_at_from_both_ends(monkeypatch):
    monkeypatch.setattr(module, "MAX_CHARS", 4000)
    middle = " ".join(f"w{at}" for at in range(2000))
    text = f"{LONG} {middle} {LONG.upper()}"
    assert holds(text, "The quick brown fox jumps") and holds(text, "TO SLEEP FOR A WHILE")
    assert not holds(text, "w1000 w1001 w1002 w1003 w1004")


def test_probes_are_bounded():
    texts = [" ".join(f"{name}{at}" for at in range(100)) for name in "abcdefgh"]
    assert len(probe(texts, max_chars=450)) < 200
    assert len(probe(["\n".join("ab" * 3 for _ in range(10**4))])) < 3000


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text(text, other):
    assert isinstance(holds(text, other), bool)
    assert leave_marks(text) == leave_marks(text)


words = st.lists(st.text("abcdefghij", min_size=2, max_size=6), min_size=5, max_size=60)


@given(words, words, words)
def test_long_quotes_are_always_found(before, quote, after):
    assert holds(" ".join(before) + "\n" + " ".join(quote) + " " + " ".join(after), " ".join(quote))
