"""What the control listener answers about what is over: one turn, one session, a stretch of time."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.dashboard.explain import Evidence, Explanation, Pace, explanation_of, held_when_it_waited
from gateway.domain import records as rec
from gateway.domain.ids import ReplicaId
from gateway.history.reader import StoredTurn, merge_sessions
from gateway.history.spread import buckets, percentile
from gateway.history.store import History

MAX_ROWS: Final = 500
_ROWS: Final = 100
_SAMPLE: Final = 10_000
"""Turns that percentiles are made of: p99 of so many is within about a tenth of itself."""
_DAY_S: Final = 86_400.0
_SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_MEASURES: Final = ("queue_ms", "first_token_ms", "run_ms")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, and what of it is wanted."""

    from_s: float
    to_s: float
    tenant: str | None = None
    model: str | None = None
    session: str | None = None
    """How its id begins."""
    trouble: bool = False
    """Only sessions in which a turn was refused, or did not come to its end."""
    limit: int = _ROWS

    @classmethod
    def of(cls, query: Mapping[str, str], *, now: float) -> "Look":
        """By default the last day. Raises ValueError."""
        given = {name: value for name, value in query.items() if name in cls.__struct_fields__ and value}
        told: dict[str, Any] = {"to_s": now, **given}
        if "from_s" not in told:
            told["from_s"] = float(told["to_s"]) - _DAY_S
        look = msgspec.convert(told, cls, strict=False)
        if not 1 <= look.limit <= MAX_ROWS:
            raise ValueError(f"limit: from 1 to {MAX_ROWS}")
        return look


def explained(stored: StoredTurn) -> Explanation | None:
    """As the stream would have it explained, but for how quick replicas were: that is told by turns that were
    over when this one was decided."""
    routed = next((each for each in reversed(stored.records) if isinstance(each, rec.Routed)), None)
    paces: dict[ReplicaId, Pace] = {}
    for submit in stored.before if routed is not None else ():
        if submit.replica not in paces and (pace := Pace.of(submit)) is not None:
            paces[submit.replica] = pace
    own = [each for each in stored.records if hasattr(each, "turn")]
    held = held_when_it_waited(stored.records)
    return explanation_of(Evidence(stored.turn, own, stored.loads, paces, stored.window, held))


async def look_back(history: History, look: Look) -> dict[str, Any]:
    """Sessions and figures of a stretch of time; percentiles are of a sample."""
    sessions, turns = "last_s >= ? AND started_s <= ?", "1"
    values: list[Any] = [look.from_s, look.to_s]
    of_turns: list[Any] = []
    for name in ("tenant", "model"):
        if (wanted := getattr(look, name)) is not None:
            sessions, values = f"{sessions} AND {name} = ?", [*values, wanted]
            turns, of_turns = f"{turns} AND turns.{name} = ?", [*of_turns, wanted]
    if look.session is not None:
        begins = [len(look.session), look.session]
        sessions, values = f"{sessions} AND substr(session, 1, ?) = ?", [*values, *begins]
        turns, of_turns = f"{turns} AND substr(turns.session, 1, ?) = ?", [*of_turns, *begins]
    if look.trouble:
        sessions = f"{sessions} AND troubles > 0"
        turns = f"{turns} AND turns.outcome IS NOT 'finished'"
    rows = await history.sessions(sessions, tuple(values), limit=look.limit)
    total, sample = await history.measures(
        turns, tuple(of_turns), from_s=look.from_s, to_s=look.to_s, sample=_SAMPLE
    )
    outcomes: dict[str, int] = {}
    for *_, outcome in sample:
        outcomes[outcome or "unseen"] = outcomes.get(outcome or "unseen", 0) + 1
    spreads = {
        name: buckets([row[at] for row in sample if row[at] is not None]) for at, name in enumerate(_MEASURES)
    }
    return {
        "from_s": look.from_s,
        "to_s": look.to_s,
        "since_s": await history.since_s(),
        "turns": total,
        "sample": len(sample),
        "outcomes": outcomes,
        "percentiles": _percentiles(spreads),
        "buckets": spreads,
        "sessions": rows,
    }


def merge_looks(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several gateways, as JSON has them. One that had more turns than it looked at weighs too little."""
    spreads: dict[str, dict[int, int]] = {name: {} for name in _MEASURES}
    outcomes: dict[str, int] = {}
    for answer in answers:
        for name, counts in answer["buckets"].items():
            for bucket, count in counts.items():
                spreads[name][int(bucket)] = spreads[name].get(int(bucket), 0) + count
        for outcome, count in answer["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    since = [answer["since_s"] for answer in answers if answer["since_s"] is not None]
    rows = merge_sessions([row for answer in answers for row in answer["sessions"]])
    return {
        **answers[0],
        "since_s": min(since, default=None),
        "turns": sum(answer["turns"] for answer in answers),
        "sample": sum(answer["sample"] for answer in answers),
        "outcomes": outcomes,
        "percentiles": _percentiles(spreads),
        "buckets": spreads,
        "sessions": sorted(rows, key=lambda row: -float(row["last_s"]))[:MAX_ROWS],
    }


def merge_session_pages(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Of gateways of which each had a part of a session's turns, as JSON has them."""
    own = [answer["session"] for answer in answers if answer["session"] is not None]
    turns = {turn["turn"]: turn for answer in answers for turn in answer["turns"]}
    return {
        "session": next(iter(merge_sessions(own)), None),
        "kin": merge_sessions([row for answer in answers for row in answer["kin"]]),
        "turns": sorted(turns.values(), key=lambda turn: float(turn["records"][0]["at_s"])),
        "is_cut": any(answer["is_cut"] for answer in answers),
    }


def row_of_view(view: Any) -> dict[str, Any]:
    """A session that only memory has, as the history tells sessions."""
    return {
        "session": view.id,
        "tenant": view.tenant,
        "parent": view.parent,
        "source": view.source.value,
        "confidence": view.confidence,
        "schema": view.schema,
        "model": view.last_turns[-1].model if view.last_turns else None,
        "started_s": view.started_s,
        "last_s": view.last_seen_s,
        "ended_s": None,
        "end_reason": None,
        "turns": view.turns,
        "troubles": 0,
        "prompt_tokens": view.prompt_tokens,
        "cached_tokens": view.cached_tokens,
        "output_tokens": view.output_tokens,
    }


def _percentiles(spreads: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, float | None]]:
    return {
        name: {share: percentile(counts, of) for share, of in _SHARES.items()}
        for name, counts in spreads.items()
    }
