"""The states of a connection to a replica.

Theory of operation. A connection is *new* until its transport is there, then *ready* for a request. A request
was *sent*; when the response's head has come it is *answering*, and *paused* while its client does not read.
A response that switches protocols is the last one: the connection is *switched*, and no HTTP any more. After
any other it is *ready* again, or *spent*: the replica will close it, or sent more than one response. We
abort it in any state; then it is *closing* until the transport reports it as *closed*, which may also
happen by itself. An interim response (1xx) changes nothing.
"""

from gateway.domain.string_enums import Word


class State(Word):
    NEW = "new"
    READY = "ready"
    SENT = "sent"
    ANSWERING = "answering"
    PAUSED = "paused"
    NOT_REUSABLE = "spent"
    SWITCHED = "switched"
    CLOSING = "closing"
    CLOSED = "closed"


UNANSWERED_STATES = frozenset({State.SENT, State.ANSWERING, State.PAUSED})
