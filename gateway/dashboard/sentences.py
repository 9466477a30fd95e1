"""Reasons as sentences for a person. A reason that is newer than this module is shown by its name.

These tables are the only ones: the dashboard's page reads them as `script`, and `python -m tools.reasons`
makes of them what the documentation shows.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.domain import records as rec
from gateway.domain.admission_records import SessionHeld, WindowUpdated
from gateway.domain.decision import PROMPT_CHANGES
from gateway.domain.ids import ReplicaId

WAITS: Final = {
    "concurrency_full": "all replicas that could run it were at `max_running_per_replica`",
    "window_full": "as many sessions were admitted as the limit allows",
    "tools_full": "the hosts of their tools had as many sessions as they can bear",
    "kv_full": "the admitted sessions are expected to need all of the KV cache",
    "behind_others": "other sessions waited already",
    "tenant_sessions": "its tenant had as many admitted sessions as its limit allows",
    "others_late": "its tenant's sessions had more than their share, and the others' turns were late",
    "no_replica": "no replica that could run it answered",
    "home_lost": "its replica was lost, and sessions move from there one by one",
}
PLACEMENTS: Final = {
    "least_loaded": "its session has no home yet, and this replica had the least load",
    "state_lives_there": "the stored state that it builds on lives there",
    "retried_elsewhere": "the previous replica gave no answer",
    "session_lives_there": "its session's earlier turns ran there, so its KV cache may still be there",
    "guess_lives_there": "what it probably goes on from ran there; nothing else follows that guess",
    "home_is_full": "its home has more sessions than fit, so they lose their KV cache",
    "home_is_busy": "its home ran far more than the others, or turns there were far later than elsewhere",
    "affinity_replica_down": "its home could not run it",
    "cheaper": "the time saved elsewhere is not worth the price",
}
# Why the window was moved.
MOVES: Final = {
    "capacity": "engines reported how much fits",
    "healthy": "no overload, little lost",
    "state_lost": "sessions returned, and their KV cache was gone",
    "kv_overflow": "with their next turns sessions would hold more than fits, so the smallest idle ones wait",
    "engines_have_time": "more sessions may enter than fit: engines have time to recompute",
    "engines_have_no_time": "only so many sessions may enter as fit: engines have no time to recompute",
    "preemptions": "engines preempted turns",
    "kv_full": "turns queued behind a full KV cache",
    "tools_slow": "tools slower than while fewer ran",
    "host_load": "the tools' hosts are loaded",
    "others_late": "turns of tenants within their share are late, so nobody may hold far more than its own",
    "others_in_time": "turns of tenants within their share are in time again",
}
# How a turn follows another one.
EDGES: Final = {
    "opens": "opens a conversation",
    "continues": "continues the conversation",
    "retries": "repeats an attempt that failed",
    "forks": "a second branch of the conversation",
    "rewinds": "takes the conversation back",
    "compacts": "goes on from a summary of the conversation",
    "serves": "a side request, such as a title",
    "spawned": "a sub-agent, started by a tool call",
}
# How it is known to which session a turn belongs.
SOURCES: Final = {
    "turnpike-header": "its client stated the session",
    "client-id": "an id of the client's own",
    "state-id": "stored state that it builds on",
    "call-id": "a tool call id that came back",
    "echo": "our own answer came back",
    "prefix": "the conversation is known",
    "retry": "the same request again",
    "connection": "its body could not be read; it joins the session of its connection",
    "new": "first turn of a new session",
}
_WITHOUT_LIMIT: Final = ("concurrency_full", "no_replica", "home_lost")
# What `SessionHeld.with_it` and `limit` count, by the reason.
_COUNTS: Final = {
    "window_full": "admitted sessions",
    "tools_full": "admitted sessions that bring work for tools",
    "kv_full": "KV tokens that admitted sessions are expected to hold",
    "tenant_sessions": "admitted sessions of its tenant",
    "others_late": "sessions that its tenant is charged for, now and lately",
}
BEHIND: Final = (
    "Its engine runs it as background work: its client wants that, or its session is beyond a bound."
)
REFUSALS: Final = {
    "malformed_http": "it was not valid HTTP",
    "headers_too_large": "its headers were too large",
    "body_too_large": "its body was too large",
    "unsupported_upgrade": "it requested another protocol",
    "unsupported_coding": "its body has an unknown compression",
    "request_timeout": "it was not sent in time",
    "unauthenticated": "it has no valid key",
    "forbidden": "its key may not do this",
    "kv_field": "it has fields for KV transfer, which its key may not use",
    "unknown_model": "no pool serves that model",
    "unknown_path": "no replica has that path, and one under /v1 was meant",
    "state_not_found": "it builds on unknown stored state",
    "memory_full": "the gateway is at its limit of bytes or connections",
    "queue_full": "the waiting room was full",
    "queue_timeout": "it reached the longest wait",
    "tenant_share": "the waiting room was full, and its tenant had the largest part of it",
    "tenant_quota": "its tenant has used up its quota",
    "bound_reached": "its session, agent type or tenant has reached a bound",
    "session_stopped": "an operator has stopped its session",
    "no_replica": "no replica that could run it answered",
    "draining": "the gateway is shutting down",
    "upstream_unreachable": "no replica could be reached",
    "upstream_timeout": "the replica did not answer in time",
    "upstream_broken": "the replica gave no readable answer",
    "upstream_broken_twice": "two attempts broke off, and a third might cost another replica",
    "local_fault": "the gateway could not open a connection",
    "internal": "the gateway failed",
}
_TABLES: Final = (WAITS, PLACEMENTS, REFUSALS, MOVES, EDGES, SOURCES)


def script() -> str:
    tables = zip(("WAITS", "PLACES", "REFUSALS", "MOVES", "EDGES", "SOURCES"), _TABLES, strict=True)
    return "".join(f"export const {name} = {json.dumps(table)};\n" for name, table in tables)


# Turns, or sessions, before a share of them is shown.
MIN_JUDGED: Final = 20


def why_waited(waits: Sequence[rec.TurnWaited], waited_ms: float | None, window: WindowUpdated | None) -> str:
    """`waited_ms`: None while it waits."""
    if not waits:
        if waited_ms is None:
            return "Nothing has been decided yet."
        return "It did not wait: its session was active or within the limit, and a replica had room."
    reasons = " Then ".join(
        f"{_reason(each)} ({f'{each.waiting - 1} more' if each.waiting > 1 else 'nobody else'} queued)."
        for each in waits
    )
    begin = "It waits: " if waited_ms is None else f"It waited {waited_ms:.0f} ms: "
    is_limited = any(each.reason.value not in _WITHOUT_LIMIT for each in waits)
    return f"{begin}{reasons}{_window(window) if window is not None and is_limited else ''}"


def _reason(wait: rec.TurnWaited) -> str:
    first = f"; the first of them: {_with_code(WAITS, wait.first.value)}" if wait.first is not None else ""
    return f"{_with_code(WAITS, wait.reason.value)}{first}"


def why_held(held: SessionHeld) -> str:
    if (counts := _COUNTS.get(held.reason.value)) is None:
        return f"Its session waits, and {held.ahead} before it."
    who = "whoever is next" if held.is_deprioritized else "it"
    before = f" When it came {held.ahead} waited already." if held.ahead else ""
    back = (
        f" It was active, and gave its slot back: {_with_code({}, held.gave_back)}." if held.gave_back else ""
    )
    return (
        f"Its session was over a limit: {held.with_it:,.0f} {counts} with {who}, and the limit is "
        f"{held.limit:,.0f}. It is let in as soon as there is room.{before}{back}"
    )


def why_there(routed: rec.Routed, loads: Mapping[ReplicaId, int]) -> str:
    load = f" {loads[routed.replica]} turns ran there then." if routed.replica in loads else ""
    return f"It went to {routed.replica}: {_with_code(PLACEMENTS, routed.reason.value)}.{load}"


def why_uncached(changed: tuple[str, int]) -> str:
    what = PROMPT_CHANGES[changed[0]].format(at=changed[1])
    return f"Its prompt differs from the previous turn's: {what}. What follows there was in no cache."


_ACTIONS: Final = {
    "warn": "its client got a warning",
    "deprioritize": "others went first",
    "refuse": "it was refused",
    "shadow": "nothing was done, as the bound only looks on",
}


def why_bound(record: rec.BoundReached) -> str:
    did, used = _ACTIONS.get(record.action, record.action), f"{record.used:g} {record.limit}"
    return f"It was beyond the bound {record.bound}: {used}, of {record.most:g}; {did}."


def why_refused(refused: rec.Refused) -> str:
    answer = f" Its answer: {refused.message}" if refused.message else ""
    reason = _with_code(REFUSALS, refused.reason.value)
    return f"It was refused after {refused.waited_ms:.0f} ms: {reason}.{answer}"


def outcome_lines(outcome: Mapping[str, Any] | None) -> Iterator[str]:
    if outcome is None:
        return
    if outcome["sessions"]:
        in_time, judged = outcome["in_time"], outcome["judged"]
        met = f"{in_time} of {judged} judged in time" if judged >= MIN_JUDGED else "too few to judge"
        yield f"{outcome['sessions']} sessions ended, {met}"
    if (judged := outcome["turns_judged"]) >= MIN_JUDGED:
        target = "`objective.slowdown_target` × alone"
        yield f"{outcome['turns_in_time']} of {judged} turns met the target ({target})"
    elif judged:
        yield f"turns in time: not enough data ({judged} judged, {MIN_JUDGED} needed)"
    if outcome["cached_tokens"]:
        yield f"{outcome['cached_tokens']} prompt tokens were cached, and not computed again"


def _window(window: WindowUpdated) -> str:
    sessions = "no session cap" if window.sessions is None else f"{window.sessions:.0f} sessions"
    kv = "" if window.kv_budget is None else f", {_short(window.kv_budget)} KV tokens"
    kv += ", and more that do not fit" if window.overcommit_sessions else ""
    kv += "" if window.level is None else f", no tenant far more than its share and {window.level:.0f}"
    return (
        f" Limit of pool {window.pool}: {sessions}{kv}; {window.admitted} active, {window.waiting} waiting; "
        f"last change: {_with_code(MOVES, window.reason)}; GPU pressure {window.gpu_pressure:.2f}, "
        f"tool pressure {window.cpu_pressure:.2f}."
    )


def _with_code(sentences: Mapping[str, str], reason: str) -> str:
    """With the code that metrics, records and the documentation have."""
    return f"{sentences[reason]} (`{reason}`)" if reason in sentences else reason.replace("_", " ")


def _short(number: float) -> str:
    return f"{number / 1e6:.2f}M" if number >= 1e6 else f"{number:,.0f}"
