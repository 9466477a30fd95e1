"""What a client or an engine sends is read in time that grows as its size, whatever it says.

Two proofs together. Expressions cannot backtrack over a text more than once: that is read off their
structure. And all else is counted, line by line, on texts made of every word that any rule looks for.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

import pytest

from gateway.domain.request import Protocol, Work
from gateway.identity.transcript import TranscriptReader
from gateway.requests.facts import read_facts
from gateway.responses.observer import observe
from gateway.wire.endpoints import classify
from tests.wire.adversarial import answers, patterns, requests, texts, tokens

SHORT = 300
"""A repeat of at most so many characters costs a constant."""
BOUNDED = {
    "gateway.telemetry.vllm_metrics._LABEL": "anything: an unclosed text holds no second beginning of one",
    "gateway.wire.endpoints._AMBIGUOUS": "a path; its repeat ends at the next slash, where another may begin",
    "gateway.identity.agent_type._TEXT": "3,000 bytes of a part (_HEAD)",
    "gateway.identity.tool_call_style._SKIPPED": "4,096 characters (_MAX_SKIPPED), from the start alone",
    "gateway.identity.tool_call_style._VALUE": "200 characters (_NEAR), from their beginning alone",
    "gateway.responses.usage_of_unread._TEXT": "4,096 bytes of the beginning, and of the end (_KEPT_BYTES)",
    "gateway.responses.usage_of_unread._USAGE": "4,096 bytes of the beginning, and of the end (_KEPT_BYTES)",
}
"""Expressions whose structure does not prove it, and how much they ever see."""
ANY = frozenset(range(0x180))


def characters(parsed: Any, flags: int) -> frozenset[int] | None:
    """What a pattern of one character may be; None if it is another pattern."""
    if len(parsed) != 1:
        return None
    operator, value = parsed[0]
    if operator is constants.SUBPATTERN:
        return characters(value[3], flags)
    if operator not in (constants.IN, constants.LITERAL, constants.NOT_LITERAL, constants.ANY):
        return None
    one = re.compile(
        {
            constants.LITERAL: lambda: re.escape(chr(value)),
            constants.NOT_LITERAL: lambda: f"[^{re.escape(chr(value))}]",
            constants.ANY: lambda: ".",
            constants.IN: lambda: _class_of(value),
        }[operator](),
        flags & (re.IGNORECASE | re.DOTALL | re.ASCII),
    )
    return frozenset(each for each in ANY if one.fullmatch(chr(each)))


def _class_of(items: Any) -> str:
    categories = {
        constants.CATEGORY_WORD: r"\w", constants.CATEGORY_NOT_WORD: r"\W", constants.CATEGORY_SPACE: r"\s",
        constants.CATEGORY_NOT_SPACE: r"\S", constants.CATEGORY_DIGIT: r"\d",
        constants.CATEGORY_NOT_DIGIT: r"\D",
    }  # fmt: skip
    out = ""
    for operator, value in items:
        if operator is constants.NEGATE:
            out = "^" + out
        elif operator is constants.LITERAL:
            out += re.escape(chr(value))
        elif operator is constants.RANGE:
            out += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        else:
            out += categories[value]
    return f"[{out}]"


def firsts(parsed: Any, flags: int) -> frozenset[int] | None:
    """What the pattern may begin with; None if it may be empty."""
    found: frozenset[int] = frozenset()
    for operator, value in parsed:
        if operator is constants.AT:
            if value is constants.AT_END:
                return found | {ord("\n")}
            continue
        if operator in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            least, _, inner = value
            some = firsts(inner, flags)
            if some is None:
                return ANY
            found |= some
            if least == 0:
                continue
            return found
        if operator is constants.SUBPATTERN:
            some = firsts(value[3], flags)
            if some is None:
                continue
            return found | some
        if operator is constants.BRANCH:
            each = [firsts(branch, flags) for branch in value[1]]
            return ANY if None in each else found.union(*each)  # type: ignore[arg-type]
        some = characters([(operator, value)], flags)
        return ANY if some is None else found | some
    return None


def why_not_linear(pattern: re.Pattern[Any]) -> str | None:
    """None if no text makes a search take more than a constant for each of its characters."""
    flags = pattern.flags
    parsed = parser.parse(pattern.pattern, flags)
    text = list(parsed)
    is_anchored = bool(text) and text[0] in (
        (constants.AT, constants.AT_BEGINNING_STRING),
        (constants.AT, constants.AT_BEGINNING),
    )
    starts = firsts([each for each in text if each[0] is not constants.AT], flags) or ANY

    def look(parts: list[Any], behind: frozenset[int] | None) -> str | None:
        for at, (operator, value) in enumerate(parts):
            rest = firsts(parts[at + 1 :], flags)
            follows = behind if rest is None else rest
            if operator in (constants.MAX_REPEAT, constants.MIN_REPEAT):
                _, most, inner = value
                if most is not constants.MAXREPEAT and most <= SHORT:
                    if (found := look(list(inner), follows)) is not None:
                        return found
                    continue
                some = characters(inner, flags)
                if some is None:
                    return "a repeat of more than a character"
                if follows is not None and some & follows:
                    return "a repeat, and what follows it, may both take a character"
                is_first = at == 0 and parts is text
                if not is_anchored and not is_first and some & starts and follows is not None:
                    return "it may begin again within its own repeat"
                if is_anchored and ord("\n") in some and follows is not None:
                    return "it may begin again within its own repeat"
            elif operator is constants.SUBPATTERN:
                if (found := look(list(value[3]), follows)) is not None:
                    return found
            elif operator is constants.BRANCH:
                for branch in value[1]:
                    if (found := look(list(branch), follows)) is not None:
                        return found
        return None

    return look(text, None)


SLOW = r"<think>.*?</think> (?:a+)+b a\s*\s*b \w+\d+x x[^y]*y".split()


@pytest.mark.parametrize("expression", [r"^ *a:[ ]*[b ]*$", *SLOW])
def test_the_proof_finds_what_is_slow(expression):
    assert why_not_linear(re.compile(expression, re.DOTALL)) is not None


@pytest.mark.parametrize(
    "expression", [r"</?think>", r"\w+", r"a{1,64}b", r"^[ \t>*]*Action:(.*)$", r"<[^<>]*>"]
)
def test_the_proof_passes_what_is_not(expression):
    assert why_not_linear(re.compile(expression, re.MULTILINE)) is None


@pytest.mark.parametrize("place", sorted(patterns()))
def test_an_expression_is_linear_or_sees_little(place):
    why = why_not_linear(patterns()[place])
    assert (why is None) != (place in BOUNDED), why


def steps(work: Callable[[], Any]) -> int:
    """Calls, lines and rounds of loops that it takes: a loop on one line counts once a round."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def read_request(path: str, protocol: Protocol, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the server reads it."""
    monkeypatch.setattr("gateway.requests.facts.TRANSCRIPTS", TranscriptReader())  # nothing is remembered
    facts = read_facts(classify("POST", path), [], body)
    assert facts.protocol is protocol


def read_answer(protocol: Protocol, kind: str, body: bytes) -> None:
    observer = observe(protocol, Work.GENERATE, kind, None)
    for at in range(0, len(body), 512):
        observer.feed(body[at : at + 512])
    _ = observer.answer(200).utterance.tool_call_style


SMALL, LARGE = 250, 1_000


def is_linear(small: int, large: int) -> bool:
    return large <= 1.25 * LARGE / SMALL * small + 300


TOKENS = tokens()


def test_the_words_are_found():
    one_word = "<think> </thinking> Action: <function= Observation:".split()
    assert {*one_word, "Action Input:", "Calling tools:"} <= set(TOKENS)


def test_rounds_on_one_line_count():
    def quadratic(text):
        return sum(1 for one in text for other in text if one == other)

    few, many = (steps(partial(quadratic, "ab" * size)) for size in (SMALL, LARGE))
    assert not is_linear(few, many) and is_linear(few, 4 * few)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(8))
def test_work_grows_as_the_size(part, monkeypatch):
    slow: list[str] = []
    for token in TOKENS[part::8]:
        for small, large in zip(texts(token, SMALL), texts(token, LARGE), strict=True):
            for one, other in zip(requests(small), requests(large), strict=True):
                few, many = (steps(partial(read_request, *each, monkeypatch)) for each in (one, other))
                if not is_linear(few, many):
                    slow.append(f"{token!r} in {one[0]}: {few} -> {many}")
            for said, more in zip(answers(small), answers(large), strict=True):
                few, many = (steps(partial(read_answer, *each)) for each in (said, more))
                if not is_linear(few, many):
                    slow.append(f"{token!r} answered by {said[0]}, {said[1]}: {few} -> {many}")
    assert not slow
