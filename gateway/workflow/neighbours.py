"""The moment as evidence: who comes at once after the only program at work is its next step.

Source: ours. The weakest evidence there is, for steps that share no words: a plan and what is made of each of
its topics, a short answer and whoever goes on with it.

Invariants: nothing is changed here.
"""

from typing import Final

from gateway.domain.request import RequestFacts
from gateway.workflow.turns import Outcome, Session, Turn

ADJACENT_S: Final = 0.1
MAX_STEPS: Final = 4
"""A longer conversation is an agent's. When it is over, another one may start, but no next step."""
QUIET_S: Final = 2.0
"""A program is the only one at work if no other was seen for so long."""


def find_neighbour(sessions: list[Session], facts: RequestFacts, *, now: float) -> Turn | None:
    """The turn of the only program at work, if this request comes at once after its answer.

    Steps of one program follow each other within milliseconds, and no second program starts so fast. Only
    for conversations without tools on one side: two agents with tools are two runs until something says
    otherwise. A second conversation of the same kind is a second run.
    """
    if len(sessions) != 1 or has_asked_before(sessions[0], facts):
        return None
    turns = sessions[0].run_turns()
    if len({turn.thread.id for turn in turns}) == 1 and len(turns) > MAX_STEPS:
        return None
    for turn in reversed(turns):
        is_step = turn.outcome is Outcome.ANSWERED and 0 <= now - turn.ended_s <= ADJACENT_S
        is_other_kind = turn.agent != facts.transcript.agent and turn.client == facts.client
        have_tools = turn.offers_tools and facts.tool_count > 0
        if is_step and is_other_kind and not have_tools:
            return turn
    return None


def has_asked_before(session: Session, facts: RequestFacts) -> bool:
    """A run does not begin the same conversation twice; another one with the same prompt does."""
    return any(turn.body == facts.transcript.body and not turn.has_failed for turn in session.run_turns())
