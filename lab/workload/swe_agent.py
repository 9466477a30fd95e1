"""SWE-agent's trajectories (`.traj`): a software engineer's shell session, mostly as text.

**Source**: SWE-agent/SWE-agent (MIT), `trajectories` and `tests/test_data/trajectories`: one JSON object a
file, with the message `history` and the `trajectory` of steps. Some were played back from a person's demo.

**Taken**: every assistant message of the history that is no demonstration is one exchange; its request is the
history before it. Calls and the ids in them as recorded, most files have none. A step's `execution_time`,
where given, is the tool's time.

**Composed**: all other times (`pacing`). The model's name is `unknown`.

**Lost**: what history processors did to a request before it was sent (windows, elided observations); tool
schemas.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, Final

import msgspec

from lab.workload.pacing import answer_s, gap_s
from lab.workload.problems import Problems
from lab.workload.records import Member, whole_as
from lab.workload.sessions import Session, Turn, chat_turn, rng_of

CLIENT: Final = "swe-agent"


class _Message(msgspec.Struct):
    role: str
    content: Any = None
    tool_calls: list[Any] | None = None
    tool_call_ids: list[str] | None = None
    is_demo: bool = False

    def sent(self) -> dict[str, Any]:
        """The message as a request holds it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        if self.tool_call_ids:
            message["tool_call_id"] = self.tool_call_ids[0]
        return message


class _Step(msgspec.Struct):
    execution_time: float | None = None


class _Trajectory(msgspec.Struct):
    history: list[_Message]
    trajectory: list[_Step] = []


def swe_agent(members: Iterable[Member], problems: Problems, seed: int) -> Iterator[Session]:
    for member in members:
        record = whole_as(_Trajectory, member, problems)
        if record is not None:
            turns = _turns(record, rng_of(seed, member.name))
            yield Session(client=CLIENT, name=member.name, source=member.name, turns=turns)


def _turns(record: _Trajectory, rng: Random) -> Iterator[Turn]:
    steps = iter(record.trajectory)
    history: list[dict[str, Any]] = []
    now_s = 0.0
    for message in record.history:
        sent = message.sent()
        if message.role == "assistant" and not message.is_demo and history:
            lasts_s = answer_s(rng, sent)
            yield chat_turn(history, sent, at_s=now_s, lasts_s=lasts_s)
            tool_s = next(steps, _Step()).execution_time
            now_s += lasts_s + (tool_s if tool_s is not None else gap_s(rng, "tool"))
        history.append(sent)
