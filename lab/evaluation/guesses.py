"""Where turns belong if every guess is right: what inference found, acted upon or not."""

import msgspec

from gateway.domain.ids import SessionId, ThreadId
from gateway.domain.records import TurnArrived


class Guesses:
    """Follows guesses to the sessions that they name."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, SessionId] = {}
        self._threads: dict[ThreadId, ThreadId] = {}

    def follow(self, turn: TurnArrived) -> TurnArrived:
        """The turn, as a part of the session that it is guessed to belong to."""
        guess, session, thread = turn.guess, turn.session, turn.thread
        assert session is not None and thread is not None
        if guess is not None:
            self._sessions[session] = self.session(guess.session)
            if guess.thread is not None:
                self._threads[thread] = self.thread(guess.thread)
            turn = msgspec.structs.replace(
                turn,
                source=guess.source,
                confidence=guess.confidence,
                edge=guess.edge,
                parent=guess.parent,
            )
        return msgspec.structs.replace(turn, session=self.session(session), thread=self.thread(thread))

    def session(self, session: SessionId) -> SessionId:
        return self._sessions.get(session, session)

    def thread(self, thread: ThreadId) -> ThreadId:
        return self._threads.get(thread, thread)
