"""Agents in miniature: real bodies through the real wire code into the real brain, without sockets.

    world = World()
    turn = world.ask([user("Fix it")])             # a request arrives
    world.answer(turn, "Step.", call("a", x=1))    # its answer ends
    assert world.ask([...]).session == turn.session

`ask` returns the record of the arrival: session, thread, edge, parent, source, confidence. In a
`GuessingWorld` it returns that as if every guess were right, and `acts_as` tells what was acted upon.
Every turn is a second after the one before, unless a test says otherwise. Ids of calls are as random as those
of real backends, unless they are counters.
"""

import json
from typing import Any

from gateway.core import events as ev
from gateway.domain.ids import RequestId, TenantId
from gateway.domain.records import TurnArrived
from gateway.domain.request import Answer, Protocol, Work
from gateway.requests.facts import read_facts
from gateway.responses.observer import observe
from gateway.wire.endpoints import classify
from lab.evaluation.guesses import Guesses
from tests.core.playbook import Playbook
from tests.given_ids import given

TOOLS = [{"type": "function", "function": {"name": "bash"}}]
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(call_id: str, name: str = "bash", **arguments: Any) -> dict[str, Any]:
    return {
        "id": known_as(call_id),
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def said(text: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {**message, "tool_calls": list(calls)} if calls else message


def result(call_id: str, text: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": known_as(call_id), "content": text}


def known_as(name: str) -> str:
    """The id of a call that a test names so. Counters stay what they are."""
    return given(name) if name.startswith("call_") and len(name) > 12 else name


class World:
    def __init__(self, **settings: Any) -> None:
        self.play = Playbook(sessions=settings)
        self.count = 0

    @property
    def sessions(self) -> Any:
        return self.play.brain.sessions.sessions

    def ask(
        self,
        messages: Any,
        *,
        tools: Any = TOOLS,
        system: str = "You are helpful.",
        path: str = "chat",
        tenant: str = "t",
        after: float = 1.0,
        agent: str = "agent/1",
        body: dict[str, Any] | None = None,
        **headers: str,
    ) -> TurnArrived:
        """A request arrives, `after` seconds later. `headers` in Python's spelling."""
        self.play.now += after
        self.count += 1
        head = {"role": "system", "content": system}
        key = "input" if path == "responses" else "messages"
        items = messages if isinstance(messages, str) else [head, *messages] if system else messages
        content = {"model": "m", key: items, **({"tools": tools} if tools else {}), **(body or {})}
        lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        lines.append((b"user-agent", agent.encode()))
        facts = read_facts(classify("POST", PATHS[path]), lines, json.dumps(content).encode())
        request = RequestId(str(self.count))
        _ = self.play >> ev.RequestArrived(request, TenantId(tenant), facts)
        self.play.take()
        turn = self.play.seen(TurnArrived)[-1]
        assert turn.turn == request
        return turn

    def answer(
        self,
        turn: TurnArrived,
        text: str | None = None,
        *calls: dict[str, Any],
        after: float = 0.0,
        cut: bool = False,
        state: str | None = None,
        is_whole: bool = True,
        usage: tuple[int, int | None] | None = None,
    ) -> None:
        """Its answer ends; or breaks off, with what it had said. `usage`: tokens of its prompt, and of these
        those that were cached, if the engine says."""
        self.play.now += after
        if state is not None:
            items = [
                {
                    "type": "message",
                    "id": f"msg_of_{state}",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": text}],
                }
            ]
            body: dict[str, Any] = {"id": state, "status": "completed", "output": items}
            observer = observe(Protocol.RESPONSES, Work.GENERATE, "application/json", None)
        else:
            body = {"choices": [{"message": said(text, *calls), "finish_reason": "stop"}]}
            if usage is not None:
                cached = {"cached_tokens": usage[1]} if usage[1] is not None else None
                counts = {"prompt_tokens": usage[0], "completion_tokens": 5}
                body["usage"] = {**counts, "prompt_tokens_details": cached}
            observer = observe(Protocol.CHAT, Work.GENERATE, "application/json", None)
        observer.feed(json.dumps(body).encode())
        seen = observer.answer(200)
        _ = self.play >> ev.ResponseStarted(turn.turn, 200)
        for minted in seen.state_ids:
            _ = self.play >> ev.StateMinted(turn.turn, minted)
        if cut:
            _ = self.play >> ev.ResponseCut(turn.turn, _without_end(seen), "reset")
        else:
            _ = self.play >> ev.ResponseFinished(turn.turn, seen if is_whole else _without_end(seen))

    def answered(self, messages: Any, text: str | None, *calls: dict[str, Any], **how: Any) -> TurnArrived:
        turn = self.ask(messages, **how)
        self.answer(turn, text, *calls)
        return turn

    def refuse(self, turn: TurnArrived, status: int = 503, retry_after_s: float | None = None) -> None:
        _ = self.play >> ev.ResponseStarted(turn.turn, status)
        _ = self.play >> ev.ResponseFinished(turn.turn, Answer(status=status, retry_after_s=retry_after_s))

    def leave(self, turn: TurnArrived) -> None:
        _ = self.play >> ev.ClientLeft(turn.turn, None)

    def talk(
        self, messages: list[Any], *answers: tuple[Any, ...], **how: Any
    ) -> tuple[list[Any], TurnArrived]:
        """Asks, is answered with calls, brings their results, and so on; returns the conversation so far."""
        turn = self.ask(messages, **how)
        for text, *calls in answers:
            self.answer(turn, text, *calls)
            messages = [*messages, said(text, *calls), *(result(c["id"]) for c in calls)]
            if calls:
                turn = self.ask(messages, **how)
        return messages, turn


class GuessingWorld(World):
    """For tests of what is found, whether it is acted upon or not."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._guesses = Guesses()
        self._acts_as: dict[RequestId, TurnArrived] = {}

    def ask(self, *asked: Any, **how: Any) -> TurnArrived:
        turn = super().ask(*asked, **how)
        self._acts_as[turn.turn] = turn
        return self._guesses.follow(turn)

    def acts_as(self, turn: TurnArrived) -> TurnArrived:
        """The record as it is: of a new session, where another one is only guessed."""
        return self._acts_as[turn.turn]


def _without_end(seen: Answer) -> Answer:
    return Answer(
        status=seen.status,
        tool_calls=seen.tool_calls,
        utterance=seen.utterance,
        state_ids=seen.state_ids,
    )
