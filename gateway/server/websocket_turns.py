"""The turns that run on one WebSocket: which events are whose, and what the brain hears of them.

Of each stream the events are those of its first turn that is not over: a backend runs them one after the
other.
"""

from collections import deque
from collections.abc import Callable

from gateway.domain.request import Answer
from gateway.server.driver import Ticket
from gateway.server.milestones import Milestones
from gateway.wire.observer import EventObserver
from gateway.wire.response_frames import status_of, stream_of
from gateway.wire.responses_answers import ResponsesReader
from gateway.wire.said import Said
from gateway.wire.sighting import ERROR_FINISH


class _Turn:
    """One response that was asked for, and what came of it so far."""

    def __init__(self, ticket: Ticket, failed: Callable[[int], None], said: Said | None) -> None:
        """`failed` is told the status of an error; `said`, what the answer says; None if nobody asks."""
        self._ticket = ticket
        self._failed = failed
        self._observer = EventObserver(ResponsesReader())
        if said is not None:
            self._observer.tell(said)
        self._milestones = Milestones(ticket, self._observer)
        ticket.seen = self._answer
        ticket.response_started(200)

    def see(self, event: bytes) -> bool:
        """Whether it was the last one."""
        observer = self._observer
        observer.feed(event)
        self._milestones.tell()
        if not observer.has_terminal:
            return False
        answer = observer.answer(200)
        if answer.finish_reason == ERROR_FINISH:
            answer = observer.answer(status_of(event))
            self._failed(answer.status)
        self._ticket.finished(answer)
        self.leave()
        return True

    def cut(self, why: str) -> None:
        self._ticket.cut(self._answer(), why)
        self.leave()

    def leave(self) -> None:
        """If it is not over, the client left it."""
        self._ticket.__exit__(None, None, None)

    def _answer(self) -> Answer:
        return self._observer.answer(200)


class Turns:
    """Invariant: every turn that was begun ends exactly once."""

    def __init__(self) -> None:
        self._by_stream: dict[str | None, deque[_Turn]] = {}
        self.running = 0

    def begin(
        self,
        ticket: Ticket,
        stream: str | None,
        failed: Callable[[int], None],
        said: Said | None = None,
    ) -> None:
        """Its message is about to be sent. The ticket is closed here, when it is over; `failed` is told the
        status of an error; `said`, what its answer says, if somebody wants to know."""
        self._by_stream.setdefault(stream, deque()).append(_Turn(ticket, failed, said))
        self.running += 1

    def see(self, event: bytes) -> None:
        stream = stream_of(event)
        turns = self._by_stream.get(stream)
        if turns is not None and turns[0].see(event):
            turns.popleft()
            self.running -= 1
            if not turns:
                del self._by_stream[stream]

    def cut(self, why: str) -> list[str | None]:
        """The replica left them; the stream of each."""
        streams = [stream for stream, turns in self._by_stream.items() for _ in turns]
        for turn in self._take():
            turn.cut(why)
        return streams

    def leave(self) -> None:
        """The client left them."""
        for turn in self._take():
            turn.leave()

    def _take(self) -> list[_Turn]:
        taken = [turn for turns in self._by_stream.values() for turn in turns]
        self._by_stream.clear()
        self.running = 0
        return taken
