"""What a running gateway saw its clients do, in sentences: what it costs, what would mend it (pure)."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, Final

from gateway.cli.findings import NO_CACHED, Finding
from gateway.domain.decision import PROMPT_CHANGES

# Of turns: what happens less often is no habit.
_MIN_SHARE: Final = 0.2
_MIN_TURNS: Final = 4
_MIN_LEFT: Final = 3
_SAME_S: Final = 1.0
# Who leaves sooner has no time-out, but changed its mind.
_FROM_S: Final = 5.0


def client_findings(snapshot: Mapping[str, Any], *, max_wait_s: float) -> list[Finding]:
    found = [each for client in snapshot.get("conduct", ()) for each in _of_client(client, max_wait_s)]
    turns = [turn for session in snapshot.get("sessions", ()) for turn in session["last_turns"]]
    cached = [turn["cached_tokens"] for turn in turns if turn["prompt_tokens"] is not None]
    if len(cached) >= _MIN_TURNS and not any(each is not None for each in cached):
        found.insert(0, NO_CACHED)
    faults = [*(f"failing: {each}" for each in snapshot.get("failing", ())), *_out(snapshot)]
    found = [Finding(level="bad", what=each) for each in faults] + found
    return found or [Finding(level="ok", what="no problem found")]


def _out(snapshot: Mapping[str, Any]) -> Iterator[str]:
    for replica in snapshot.get("replicas", ()):
        if not replica["is_up"]:
            yield f"{replica['id']} is down: {replica['cause']}"
        elif replica.get("is_draining"):
            yield f"{replica['id']} is drained by an operator, and gets no new sessions"
        elif replica.get("ejected"):
            yield f"{replica['id']} is up and gets no turns: {replica['ejected']}"
        elif failing := replica.get("failing"):
            yield f"{replica['id']} is up and {failing}; it stays, as too few others were left"


def _of_client(of: Mapping[str, Any], max_wait_s: float) -> Iterator[Finding]:
    name, turns, left = of["client"] or "a client without a name", of["turns"], of["left_after_s"]
    if _is_habit(of["changed"], turns):
        tokens = of["again_tokens"] // max(1, of["measured"])
        again = f"about {tokens} tokens a turn are" if of["measured"] else "it is"
        where = PROMPT_CHANGES[of["part"]].format(at=of["at"])
        yield Finding(
            level="off",
            what=f"{name}: {where} in {of['changed']} of {turns} turns",
            gain=f"a cache could hold what stands behind it: {again} computed again",
            do="put what changes (a clock, a counter) into the newest message; keep tools in one order",
        )
    if _is_habit(of["unlinked"], turns):
        yield Finding(
            level="off",
            what=f"{name}: nothing proves whose {of['unlinked']} of {turns} later turns are",
            gain="they would be turns of their session, and run where its cache is",
            do="send X-Session-ID; or send answers and the ids of their calls back as they came",
        )
    same = [each for each in left if abs(each - median(left)) <= _SAME_S]
    if len(same) >= _MIN_LEFT and median(left) >= _FROM_S:
        yield Finding(
            level="off",
            what=f"{name}: left {len(same)} times after {median(left):.0f} s without an answer",
            gain=f"a time-out that bears the longest wait (core.max_wait_s, {max_wait_s:g} s) loses no turn",
            do="a longer time-out in the client; or stream = true: it then gets keep-alives while it waits",
        )


def _is_habit(times: int, of: int) -> bool:
    return times >= max(_MIN_TURNS, _MIN_SHARE * of)
