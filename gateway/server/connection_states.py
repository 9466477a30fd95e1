"""The life of a client's connection, as a table.

Theory of operation. An *idle* connection waits for a request, or for the rest of one. A whole request is
handed to a handler, and the connection is *serving*. The handler begins a response (*answering*) and
completes it (*answered*); when the handler has ended, the connection is idle again, or closes. A request
that is refused before it is whole gets its answer, and the connection is *lingering*: what still comes is
thrown away for a while, so that the answer is not lost to a reset. A handler may also change the protocol:
the connection is *switched*, and no HTTP any more. A *closing* connection sends what is left to be sent, or
resets at once (cut). What a handler writes to a connection that is closing or *closed*
is dropped: the handler cannot know yet that its client is gone.

Whether the client reads is not a state of this table, because it is independent of all of them: see
`ClientConnection.is_paused`. Any pair that is not in the table is a bug on our side, and raises
`ConnectionStateError`.
"""

from typing import Final

from gateway.domain.state_table import StateError, StateTable
from gateway.domain.words import Word


class State(Word):
    IDLE = "idle"
    SERVING = "serving"
    ANSWERING = "answering"
    ANSWERED = "answered"
    SWITCHED = "switched"
    LINGERING = "lingering"
    CLOSING = "closing"
    CLOSED = "closed"


class Step(Word):
    SERVE = "serve"
    """A whole request goes to its handler."""
    BEGIN = "begin"
    """The handler begins its response."""
    COMPLETE = "complete"
    """The last byte of the response was written."""
    SWITCH = "switch"
    """The handler has agreed to another protocol, and goes on with that."""
    REST = "rest"
    """The handler has ended, and the connection is kept."""
    REFUSE = "refuse"
    """What came is refused; nothing more is read of it."""
    CLOSE = "close"
    """What was written is sent, then the connection ends."""
    CUT = "cut"
    """The connection is reset."""
    LOSE = "lose"
    """The transport says that the connection has ended."""


_ALWAYS: Final = {Step.CUT: State.CLOSING, Step.LOSE: State.CLOSED}

TRANSITIONS: dict[State, dict[Step, State]] = {
    State.IDLE: {
        Step.SERVE: State.SERVING,
        Step.REFUSE: State.LINGERING,
        Step.CLOSE: State.CLOSING,
        **_ALWAYS,
    },
    State.SERVING: {Step.BEGIN: State.ANSWERING, Step.SWITCH: State.SWITCHED, **_ALWAYS},
    State.ANSWERING: {Step.COMPLETE: State.ANSWERED, **_ALWAYS},
    State.ANSWERED: {Step.REST: State.IDLE, Step.CLOSE: State.CLOSING, **_ALWAYS},
    State.SWITCHED: {Step.CLOSE: State.CLOSING, **_ALWAYS},
    State.LINGERING: {Step.CLOSE: State.CLOSING, **_ALWAYS},
    State.CLOSING: {
        Step.BEGIN: State.CLOSING,
        Step.COMPLETE: State.CLOSING,
        Step.SWITCH: State.CLOSING,
        Step.CLOSE: State.CLOSING,
        **_ALWAYS,
    },
    State.CLOSED: {
        Step.BEGIN: State.CLOSED,
        Step.COMPLETE: State.CLOSED,
        Step.SWITCH: State.CLOSED,
        Step.CLOSE: State.CLOSED,
        Step.CUT: State.CLOSED,
    },
}


class ConnectionStateError(StateError):
    """A step that the table does not allow. Always a bug on our side, never a client's fault."""


_TABLE: Final = StateTable("a connection", TRANSITIONS, ConnectionStateError)
advance: Final = _TABLE.advance
as_mermaid: Final = _TABLE.as_mermaid
