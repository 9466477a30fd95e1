"""tau-bench's historical trajectories: customer service with tools, a model playing the customer.

**Source**: sierra-research/tau-bench (MIT), `historical_trajectories`, one JSON object a line: `task_id`,
`trial` and `traj`, the agent's whole message list.

**Taken**: every assistant message is one exchange; its request is the messages before it, as they stand.
Tool-call ids are the recorded ones, and in these files they repeat: 621 calls of the airline file share 117
ids, within conversations too.

**Composed**: all times (`pacing`). The model's name is `unknown`.

**Lost**: tool schemas and sampling settings, which the files leave out; the requests of the model that plays
the customer; what it says last, since nobody answers.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final

import msgspec

from lab.workload.pacing import answer_s, gap_s
from lab.workload.problems import Problems
from lab.workload.records import Member, lines_as
from lab.workload.sessions import Session, Turn, chat_turn, rng_of

CLIENT: Final = "tau-bench"


class _Conversation(msgspec.Struct):
    task_id: int | str
    traj: list[dict[str, Any]]
    trial: int = 0


def tau_bench(members: Iterable[Member], problems: Problems, seed: int) -> Iterator[Session]:
    for member in members:
        for number, conversation in lines_as(_Conversation, member, problems):
            name = f"task-{conversation.task_id}-trial-{conversation.trial}"
            yield Session(
                client=CLIENT,
                name=name,
                source=f"{member.name}:{number}",
                turns=conversation_turns(conversation.traj, rng_of(seed, name)),
            )


def conversation_turns(messages: list[dict[str, Any]], rng: Random) -> Iterator[Turn]:
    """A turn for every assistant message that answers something."""
    now_s = 0.0
    for at, message in enumerate(messages):
        if message.get("role") != "assistant" or at == 0:
            continue
        lasts_s = answer_s(rng, message)
        yield chat_turn(messages[:at], message, at_s=now_s, lasts_s=lasts_s)
        following = messages[at + 1].get("role", "user") if at + 1 < len(messages) else "user"
        now_s += lasts_s + gap_s(rng, following)
