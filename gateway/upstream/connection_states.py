"""The life of a connection to a replica, as a table.

Theory of operation. A connection is *new* until its transport is there, then *ready* for a request. A request
was *sent*; when the response's head has come it is *answering*, and *paused* while its client does not read.
A response that switches protocols is the last one: the connection is *switched*, and no HTTP any more. After
any other it is *ready* again, or *spent*: the replica will close it, or sent more than it was asked for. We
*abort* it in any state; then it is *closing* until the transport says that it is *closed*, which may also
happen by itself.

An interim response (1xx) is no step. Any pair that is not in the table is a bug on our side, and raises
`ConnectionStateError`.
"""

from typing import Final

from gateway.domain.state_table import StateError, StateTable
from gateway.domain.words import Word


class State(Word):
    NEW = "new"
    READY = "ready"
    SENT = "sent"
    ANSWERING = "answering"
    PAUSED = "paused"
    SPENT = "spent"
    SWITCHED = "switched"
    CLOSING = "closing"
    CLOSED = "closed"


class Step(Word):
    OPEN = "open"
    SEND = "send"
    HEAD = "head"
    SWITCH = "switch"
    PAUSE = "pause"
    RESUME = "resume"
    END = "end"
    """The response is whole, and the connection may serve another request."""
    SPEND = "spend"
    """The response is whole, or nobody asked for what came; the connection serves no other request."""
    ABORT = "abort"
    LOSE = "lose"


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.NEW: {Step.OPEN: State.READY},
    State.READY: {
        Step.SEND: State.SENT,
        Step.SPEND: State.SPENT,
        Step.ABORT: State.CLOSING,
        Step.LOSE: State.CLOSED,
    },
    State.SENT: {
        Step.HEAD: State.ANSWERING,
        Step.SWITCH: State.SWITCHED,
        Step.ABORT: State.CLOSING,
        Step.LOSE: State.CLOSED,
    },
    State.ANSWERING: {
        Step.PAUSE: State.PAUSED,
        Step.END: State.READY,
        Step.SPEND: State.SPENT,
        Step.ABORT: State.CLOSING,
        Step.LOSE: State.CLOSED,
    },
    State.PAUSED: {
        Step.RESUME: State.ANSWERING,
        Step.SPEND: State.SPENT,  # a body that ends with the connection; a lost one is told of while paused
        Step.ABORT: State.CLOSING,
        Step.LOSE: State.CLOSED,
    },
    State.SPENT: {Step.SPEND: State.SPENT, Step.ABORT: State.CLOSING, Step.LOSE: State.CLOSED},
    State.SWITCHED: {Step.ABORT: State.CLOSING, Step.LOSE: State.CLOSED},
    State.CLOSING: {Step.ABORT: State.CLOSING, Step.LOSE: State.CLOSED},
    State.CLOSED: {Step.ABORT: State.CLOSED},
}

UNANSWERED_STATES = frozenset({State.SENT, State.ANSWERING, State.PAUSED})
"""A response, or the rest of it, is awaited."""


class ConnectionStateError(StateError):
    """A step that the table does not allow. Always a bug on our side, never a replica's fault."""


_TABLE: Final = StateTable("a connection", TRANSITIONS, ConnectionStateError)
advance: Final = _TABLE.advance
as_mermaid: Final = _TABLE.as_mermaid
