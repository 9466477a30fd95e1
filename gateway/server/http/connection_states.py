"""The states of a client's connection.

Theory of operation. An *idle* connection waits for a request, or for the rest of one. A whole request is
handed to a handler, and the connection is *serving*. The handler begins a response (*answering*) and
completes it (*answered*); when the handler has ended, the connection is idle again, or closes. A request
that is refused before it is whole gets its answer, and the connection is *lingering*: what still comes is
thrown away for a while, so that the answer is not lost to a reset. A handler may also change the protocol:
the connection is *switched*, and no HTTP any more. A *closing* connection sends what is left to be sent, or
resets at once. What a handler writes to a connection that is closing or *closed* is dropped: the handler
cannot know yet that its client is gone.

Whether the client reads is independent of all of these: see `ClientConnection.is_paused`.
"""

from gateway.domain.string_enums import Word


class State(Word):
    IDLE = "idle"
    SERVING = "serving"
    ANSWERING = "answering"
    ANSWERED = "answered"
    SWITCHED = "switched"
    LINGERING = "lingering"
    CLOSING = "closing"
    CLOSED = "closed"


class ConnectionStateError(RuntimeError):
    """A handler's step that its connection is not in the state for. Always a bug on our side."""
