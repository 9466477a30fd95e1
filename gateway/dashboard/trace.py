"""A session as a trace for Perfetto (pure): JSON in the trace-event format, which needs no code of ours to be
read; https://ui.perfetto.dev and chrome://tracing open it.

Source: Trace Event Format (docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).

Deviations: a process is a session, a thread a conversation of it; turns of a conversation that run at the
same time have tracks of their own, because slices of one track must not overlap.

Invariants: times are Unix microseconds; every slice ends at or after its begin; slices within a turn lie
within it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.dashboard.sentences import PLACEMENTS, REFUSALS, WAITS

Event = dict[str, Any]
_US: Final = 1e6
_ARGUMENTS: Final = {
    "turn_arrive": "source confidence edge parent model body_bytes message_count guess".split(),
    "gpu_submit": "replica attempt expected engine_class".split(),
    "gpu_end": "outcome status usage finish_reason".split(),
}


def trace_of(pages: Iterable[Mapping[str, Any]]) -> Event:
    events: list[Event] = []
    for process, page in enumerate(pages, 1):
        turns = sorted(page["turns"], key=lambda turn: float(turn["records"][0]["at_s"]))
        session = page["session"] or {}
        name = session.get("session") or (turns[0]["records"][0].get("session") if turns else None)
        events.append(_named("process_name", process, 0, f"session {name or '?'}"))
        events += _of_session(process, turns)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _of_session(process: int, turns: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    tracks: dict[tuple[str, int], int] = {}
    free_s: dict[tuple[str, int], float] = {}
    open_calls: dict[str, Mapping[str, Any]] = {}
    for turn in turns:
        records = turn["records"]
        arrived = next((each for each in records if each["type"] == "turn_arrive"), records[0])
        own = [each for each in records if each["type"] != "prefill_ahead"]
        begin_s, end_s = arrived["at_s"], max(each["at_s"] for each in own)
        conversation = arrived.get("thread") or "no conversation"
        track = _track(conversation, begin_s, end_s, free_s)
        if track not in tracks:
            tracks[track] = len(tracks) + 1
            beside = f" ({track[1] + 1})" if track[1] else ""
            yield _named("thread_name", process, tracks[track], f"{conversation}{beside}")
        at = {"pid": process, "tid": tracks[track], "cat": "turn"}
        yield _slice(turn["turn"], begin_s, end_s, at, _arguments(turn["turn"], records))
        yield from _phases(records, begin_s, end_s, at)
        for record in records:
            if record["type"] == "tool_end" and (parent := arrived.get("parent")) in open_calls:
                start = open_calls.pop(parent)
                yield from _tools(process, tracks, start, record["at_s"])
            if record["type"] == "tool_start":
                open_calls[turn["turn"]] = record
    for start in open_calls.values():
        name = f"{_names(start)}: no result was seen"
        at = {**_tool_track(process, tracks), "ph": "i", "s": "t"}
        yield {**at, "name": name, "ts": start["at_s"] * _US}
    if ("tools", 0) in tracks:
        yield _named("thread_name", process, tracks["tools", 0], "tools")


def _phases(
    records: Sequence[Mapping[str, Any]], begin_s: float, end_s: float, at: Mapping[str, Any]
) -> Iterator[Event]:
    since_s, phase = begin_s, "queue"
    why: dict[str, Any] = {}
    is_streamed = all(each.get("is_streamed", True) for each in records if each["type"] == "turn_arrive")
    after = _AFTER if is_streamed else _UNSTREAMED
    for record in records:
        kind, at_s = record["type"], min(max(record["at_s"], since_s), end_s)
        if kind == "turn_wait":
            why.setdefault("waits", []).append(WAITS.get(record["reason"], record["reason"]))
        elif kind == "routing":
            why["there"] = PLACEMENTS.get(record["reason"], record["reason"])
        elif kind == "refusal":
            name = f"refused: {REFUSALS.get(record['reason'], record['reason'])}"
            yield {**at, "ph": "i", "s": "t", "name": name, "ts": at_s * _US}
        if (next_phase := after.get(kind)) is not None:
            if phase and at_s > since_s:
                yield _slice(phase, since_s, at_s, at, why if phase == "queue" else {})
            since_s, phase = at_s, next_phase


# The phase that begins with a record; none behind the end of an attempt.
_AFTER: Final = {
    "gpu_submit": "prefill",
    "gpu_1st_token": "decode",
    "gpu_end": "",
    "refusal": "",
    "turn_left": "",
    "turn_arrive": "queue",
}
_UNSTREAMED: Final = {
    **{kind: phase for kind, phase in _AFTER.items() if kind != "gpu_1st_token"},
    "gpu_submit": "generating (not streamed)",
}


def _tools(
    process: int, tracks: dict[tuple[str, int], int], start: Mapping[str, Any], end_s: float
) -> Iterator[Event]:
    arguments = {"names": start["names"], "turn": start.get("turn")}
    begin_s = min(start["at_s"] - start.get("late_s", 0.0), end_s)
    # Tools of several conversations may run at the same time: as asynchronous slices they may overlap.
    at = {**_tool_track(process, tracks), "id": f"{process}.{start.get('turn')}", "name": _names(start)}
    yield {**at, "ph": "b", "ts": begin_s * _US, "args": arguments}
    yield {**at, "ph": "e", "ts": end_s * _US}


def _tool_track(process: int, tracks: dict[tuple[str, int], int]) -> Event:
    return {"pid": process, "tid": tracks.setdefault(("tools", 0), len(tracks) + 1), "cat": "tool"}


def _names(start: Mapping[str, Any]) -> str:
    return ", ".join(start["names"]) or "tools"


def _track(
    conversation: str, begin_s: float, end_s: float, free_s: dict[tuple[str, int], float]
) -> tuple[str, int]:
    lane = 0
    while free_s.get((conversation, lane), begin_s) > begin_s:
        lane += 1
    free_s[conversation, lane] = end_s
    return conversation, lane


def _arguments(turn: str, records: Sequence[Mapping[str, Any]]) -> Event:
    arguments: Event = {"turn": turn}
    for record in records:
        for name in _ARGUMENTS.get(record["type"], ()):
            if record.get(name) is not None:
                arguments[name] = record[name]
    return arguments


def _slice(name: str, begin_s: float, end_s: float, at: Mapping[str, Any], arguments: Event) -> Event:
    times = {"ts": begin_s * _US, "dur": (end_s - begin_s) * _US}
    return {**at, "ph": "X", "name": name, **times, "args": arguments}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
