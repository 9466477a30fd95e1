"""Did sessions go on as what they were when a gateway was lost?

By what the store knew then and what engines saw, not by the clock: on a busy machine both take their time.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from itertools import pairwise

import msgspec

from gateway.domain.turn_trace import TurnTrace
from gateway.shared_state.fleet_secret import SEAL_BYTES
from gateway.shared_state.protocol import VERSION
from gateway.shared_state.redis_store import PREFIX
from tests.several.fleet import Agent, Fleet, Turn

WRITTEN_WITHIN_S = 1.0
"""What a turn left is in the store so soon: the batch under way and its own take a deadline each at most."""


def turns_in_store(fleet: Fleet) -> dict[str, set[int]]:
    """The numbers of those that the store knows, by session. Of what a turn left, this is written last."""
    with fleet.redis.admin() as admin:
        values = admin.mget({*admin.scan_iter(match=PREFIX + b"e:*", count=1000)})
    known: dict[str, set[int]] = defaultdict(set)
    for value in filter(None, values):
        with contextlib.suppress(msgspec.MsgspecError):  # no trace
            trace = msgspec.msgpack.decode(value.removeprefix(VERSION)[SEAL_BYTES:], type=TurnTrace)
            known[trace.session].add(trace.turns)
    return known


def splits(fleet: Fleet, known: Mapping[str, Collection[int]], *, killed_s: float) -> list[str]:
    """Turns that began another session without need. `known`: what the store knew just before the kill, which
    has to be all but what ended lately."""
    wrong = []
    for agent in fleet.agents:
        count: Counter[str] = Counter()
        for last, turn in pairwise(agent.turns):
            count[last.session] += 1
            is_known = count[last.session] in known.get(last.session, ())
            assert is_known or last.ended_s > killed_s - WRITTEN_WITHIN_S, (
                f"{agent.name}: {last} is not known"
            )
            was_lost = not is_known and last.asked_s < killed_s and was_served(fleet, agent, last, killed_s)
            if turn.session != last.session and not was_lost and not asks_for_more(fleet, agent, turn):
                wrong.append(f"{agent.name}: {turn.step}")
    return wrong


def was_served(fleet: Fleet, agent: Agent, turn: Turn, until_s: float) -> bool:
    """Its answer had left the engine; when its client reads it is the machine's affair."""
    return any(
        each.is_whole and each.ended_s <= until_s for each in fleet.engines.of_step(agent.name, turn.step)
    )


def asks_for_more(fleet: Fleet, agent: Agent, turn: Turn) -> bool:
    """It states no id, left an answer that was on its way, and asks again: for a gateway that had passed the
    answer on, or that did not know yet that nobody waits for it, this is somebody who asks the same."""
    *left, _ = fleet.engines.of_step(agent.name, turn.step)
    return not agent.states_id and any(each.is_whole or each.ended_s > turn.asked_s for each in left)
