"""Did sessions go on as what they were when a gateway was lost?

By what the store knew then and what engines saw, not by the clock: on a busy machine both take their time.
"""

from collections import Counter
from itertools import pairwise

import msgspec

from gateway.domain.turn_trace import TurnTrace
from gateway.shared_state.protocol import VERSION
from gateway.shared_state.redis_store import PREFIX
from gateway.workflow.turns import Outcome
from tests.several.fleet import Agent, Fleet, Turn

WRITTEN_WITHIN_S = 1.0
"""What a turn left is in the store so soon: the batch under way and its own take a deadline each at most."""
READ_WITHIN_S = 0.25
"""What came from a gateway before it was killed, its client has read, also on a busy machine."""


def answered_turns(fleet: Fleet) -> Counter[str]:
    """That the store knows now, by session. What a turn left is written in order, this last."""
    with fleet.redis.admin() as admin:
        values = admin.mget({*admin.scan_iter(match=PREFIX + b"e:t:*", count=1000)})
    traces = [
        msgspec.msgpack.decode(value.removeprefix(VERSION), type=TurnTrace) for value in values if value
    ]
    return Counter(each.session for each in traces if each.outcome == Outcome.ANSWERED.value)


def splits(fleet: Fleet, known: Counter[str], *, killed_s: float) -> list[str]:
    """Whose sessions went on under another name without need. `known`: what the store knew just before the
    kill, which has to be all but what ended lately."""
    wrong = []
    for agent in fleet.agents:
        had = [turn.session for turn in agent.turns if turn.ended_s < killed_s - WRITTEN_WITHIN_S]
        assert len(had) <= sum(known[each] for each in set(had)), (
            f"the turns of {agent.name} are not in the store"
        )
        count: Counter[str] = Counter()
        for last, turn in pairwise(agent.turns):
            count[last.session] += 1
            was_lost = count[last.session] > known[last.session] and last.asked_s < killed_s
            is_excused = was_lost and last.ended_s < killed_s + READ_WITHIN_S
            if turn.session != last.session and not is_excused and not asks_for_more(fleet, agent, turn):
                wrong.append(f"{agent.name}: {turn.step}")
    return wrong


def asks_for_more(fleet: Fleet, agent: Agent, turn: Turn) -> bool:
    """It states no id, left an answer that was on its way, and asks again: for a gateway that had passed the
    answer on, or that did not know yet that nobody waits for it, this is somebody who asks the same."""
    *left, _ = fleet.engines.of_step(agent.name, turn.step)
    return not agent.states_id and any(each.is_whole or each.ended_s > turn.asked_s for each in left)
