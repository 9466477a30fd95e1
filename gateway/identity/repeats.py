"""A conversation's newest step and its results, as hashes: a repeated step has equal ones.

Ids of calls are left out, as they are new each time; so is text beside calls. Where tools are called in the
text, the calling part counts: code blocks, or `Action:` and its input.

Invariants: never raises; too large an item counts by its bytes; no content is kept.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.identity.items import ASSISTANT, OBSERVED, TOOL, USER, is_large, understand, without_thought
from gateway.wire.body import UNREADABLE
from gateway.wire.hashing import digest, text_hash

_DECODER: Final = msgspec.json.Decoder()
_CANONICAL: Final = msgspec.json.Encoder(order="sorted")
_FENCE: Final = "```"
_ACTION: Final = "Action:"


def read_step(answer: Iterable[Raw], news: Iterable[Raw]) -> tuple[int, int]:
    """Hashes of an answer's action and of its results; 0 for none. `answer`: the model's newest items,
    `news`: those behind them, all in their order."""
    called: list[int] = []
    text_hashes: list[int] = []
    for raw in answer:
        kind, texts, calls = _read(raw)
        if kind == ASSISTANT:
            if calls:
                called.append(_digest(calls))
            else:
                actions = (_action_part(without_thought(text)) for text in texts)
                text_hashes += [hashed for action in actions if (hashed := text_hash(action))]
    brought: list[int] = []
    for raw in news:
        kind, texts, calls = _read(raw)
        if kind in (TOOL, USER):
            brought.append(_digest([calls, [text_hash(text) for text in texts]]))
    action = called or text_hashes
    return hash(tuple(action)) if action else 0, hash(tuple(brought)) if brought else 0


def _read(raw: Raw) -> tuple[int, list[str], list[Any]]:
    if is_large(raw):
        return TOOL, [], [digest(raw)]
    try:
        kind, texts, calls, _ = understand(_DECODER.decode(raw))
    except UNREADABLE:
        return TOOL, [], [digest(raw)]
    # A call is its id, name and arguments; a result its id and texts, or its id alone.
    bare = [each[1:] if type(each) is list else each if type(each) is dict else None for each in calls]
    return kind, texts, bare


def _digest(values: list[Any]) -> int:
    try:
        return digest(_CANONICAL.encode(values))
    except (*UNREADABLE, TypeError):
        return 0


def _action_part(text: str) -> str:
    blocks = text.split(_FENCE)[1::2]
    if blocks:
        return _FENCE.join(blocks)
    at = text.find(_ACTION)
    return text if at < 0 else text[at:].partition(OBSERVED)[0]
