"""Tool boundaries against the recording: which turns brought results, of which tools, after how long.

The truth is read from the recorded bodies alone: a call of a recorded answer ended with the first request of
its session that carries its result (by id; for text, the first whose messages begin with those of the
call's).
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from lab.evaluation.metrics import Score, true_parents
from lab.evaluation.recording import Exchange

_RESULTS: Final = ("tool_call_id", "tool_use_id")


class Ended(msgspec.Struct, frozen=True):
    """One turn that brought results."""

    number: int
    """Of the exchange."""
    names: tuple[str, ...]
    duration_s: float


class BoundaryScores(msgspec.Struct):
    ends: Score = msgspec.field(default_factory=Score)
    errors_s: list[float] = []
    """Of the durations of those that were found."""


def true_ends(exchanges: Sequence[Exchange]) -> list[Ended]:
    open_calls: dict[tuple[str, str], tuple[str, float]] = {}
    in_text: dict[int, tuple[tuple[str, ...], float]] = {}
    parents, _ = true_parents(exchanges)
    found: list[Ended] = []
    for number, exchange in enumerate(exchanges):
        if not exchange.is_turn:
            continue
        session = exchange.truth.session
        closed = [
            open_calls.pop((session, call_id))
            for call_id in dict.fromkeys(_result_ids(exchange.body))
            if (session, call_id) in open_calls
        ]
        text = in_text.pop(parents.get(number, -1), None)
        if text is not None and not closed:
            closed = [(name, text[1]) for name in text[0]]
        if closed:
            began_s = min(at_s for _, at_s in closed)
            found.append(Ended(number, tuple(sorted(name for name, _ in closed)), exchange.t - began_s))
        answer = exchange.answer()
        if answer.status >= 400:
            continue
        ended_s = exchange.t_end if exchange.t_end is not None else exchange.t
        for call in answer.tool_calls:
            if not call.is_at_engine:
                open_calls.setdefault((session, call.id), (call.name, ended_s))
        body = exchange.body if isinstance(exchange.body, dict) else {}
        names = answer.utterance.tool_call_style.names
        if names and not answer.tool_calls and not body.get("tools") and not exchange.is_broken:
            in_text[number] = (names, ended_s)
    return found


def score_boundaries(true: Sequence[Ended], found: Sequence[Ended]) -> BoundaryScores:
    scores = BoundaryScores(Score(found=len(found), true=len(true)))
    known = {each.number: each for each in true}
    for each in found:
        match = known.get(each.number)
        if match is not None and match.names == tuple(sorted(each.names)):
            scores.ends.right += 1
            scores.errors_s.append(abs(match.duration_s - each.duration_s))
    return scores


def _result_ids(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        return
    items = body.get("messages", body.get("input"))
    called: list[str] = []
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict):
            continue
        kind, content = item.get("type"), item.get("content")
        if item.get("role") == "tool" and item.get("tool_call_id"):
            yield item["tool_call_id"]
        elif isinstance(kind, str) and kind.endswith("_output"):
            yield item.get("call_id", "")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and str(part.get("type")).endswith("tool_result"):
                yield part.get("tool_use_id", "")
        text = _text(content)
        if item.get("role") == "assistant" and "Calling tools:" in text:
            called += [piece.split("'")[0] for piece in text.split("{'id': '")[1:]]
        elif text.startswith("Observation:"):
            yield from called
            called = []


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
