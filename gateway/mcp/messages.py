"""JSON-RPC messages as they pass, read as far as anybody needs them.

What cannot be read passes all the same. A body that cannot be read, or that is too large to be, may be a call
of a tool, and is taken for one where that is the careful thing to do.
"""

from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.string_enums import Word
from gateway.wire.body import UNREADABLE

# Of a larger message nothing is read.
MAX_READ_BYTES: Final = 4 << 20

RequestId = str | int


class Kind(Word):
    REQUEST = "request"
    NOTIFICATION = "notification"
    ANSWER = "answer"
    """A result or an error."""
    UNREAD = "unread"


class Message(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    method: str = ""
    id: RequestId | None = None
    params: bytes = b""
    """As they stand there; empty if there are none."""
    result: bytes = b""
    """Of an answer; empty if it is an error."""

    @property
    def may_call(self) -> bool:
        return self.kind is Kind.UNREAD or (self.kind is Kind.REQUEST and self.method == TOOLS_CALL)

    @property
    def may_repeat(self) -> bool:
        """A server that got it twice does no more than if it got it once."""
        return self.kind is Kind.REQUEST and self.method in _REPEATABLE


TOOLS_CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
_REPEATABLE: Final = frozenset(
    (
        "ping",
        "server/discover",
        "tools/list",
        "prompts/list",
        "prompts/get",
        "resources/list",
        "resources/templates/list",
        "resources/read",
    )
)
UNREAD: Final = Message(Kind.UNREAD)


class _Wire(msgspec.Struct):
    method: str | None = None
    id: str | int | None = None
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()


_DECODER: Final = msgspec.json.Decoder(_Wire)


def read_message(data: bytes) -> Message:
    """Never raises. Several messages in one body, as revision 2025-03-26 had them, are not read."""
    if len(data) > MAX_READ_BYTES:
        return UNREAD
    try:
        wire = _DECODER.decode(data)
    except UNREADABLE:
        return UNREAD
    if wire.method is not None:
        kind = Kind.REQUEST if wire.id is not None else Kind.NOTIFICATION
        return Message(kind, wire.method, wire.id, bytes(wire.params))
    if wire.id is None and not wire.error:
        return UNREAD
    return Message(Kind.ANSWER, "", wire.id, result=bytes(wire.result))


class _Cancelled(msgspec.Struct):
    request_id: RequestId = msgspec.field(name="requestId")


_CANCELLED: Final = msgspec.json.Decoder(_Cancelled)


def cancelled_request(message: Message) -> RequestId | None:
    if message.kind is not Kind.NOTIFICATION or message.method != CANCELLED:
        return None
    try:
        return _CANCELLED.decode(message.params).request_id
    except UNREADABLE:
        return None


def cancelled_answer(request_id: RequestId | None) -> bytes:
    """To a call that its client cancelled before the server got it. Clients ignore it."""
    error = {"code": _CANCELLED_CODE, "message": "The call was cancelled."}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


_CANCELLED_CODE: Final = -32000
