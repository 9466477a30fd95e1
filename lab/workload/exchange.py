"""One recorded HTTP exchange, as one line of JSON (docs/contribute/exchanges.md).

Invariants: `truth` says where an exchange belongs and is for judges alone; nothing else in a line does unless
the client said so on the wire. No line holds a credential.
"""

from typing import Any, Final

import msgspec

SECRET_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie", "set-cookie"}
)
REDACTED: Final = "<redacted>"


class Truth(msgspec.Struct, kw_only=True):
    """Where an exchange belongs."""

    client: str
    session: str
    thread: str | None = None
    """The sub-agent within the session, where the recording tells."""
    run: str | None = None
    source: str | None = None
    """Where the exchange comes from: the corpus, and the file or record in it."""


class Exchange(msgspec.Struct, kw_only=True):
    """A request, and what came of it. Times in seconds, on any one clock."""

    t: float
    t_first_byte: float | None = None
    t_end: float | None = None
    method: str = "POST"
    path: str
    headers: dict[str, str] | list[tuple[str, str]] = {}
    body: Any = None
    status: int = 200
    """0 where the client never got a status."""
    response: Any = None
    """The assistant message, the `output` list or the content blocks."""
    finish: str | None = None
    response_id: str | None = None
    fault: Any = None
    """What was done to this exchange on purpose."""
    cut_after: Any = None
    """How much of the answer came before the connection broke."""
    client_disconnected: bool | None = None
    truth: Truth


_LINE: Final = msgspec.json.Decoder(Exchange)


def read_exchange(line: bytes) -> Exchange:
    """Raises ValueError that says what is wrong."""
    exchange = _LINE.decode(line)
    if exchange.t_end is not None and exchange.t_end < exchange.t:
        raise ValueError(f"t_end {exchange.t_end} is before t {exchange.t}")
    if not exchange.path.startswith("/"):
        raise ValueError(f"path {exchange.path!r} does not begin with a slash")
    return exchange


def write_exchange(exchange: Exchange) -> bytes:
    """The line, with its end."""
    return msgspec.json.encode(exchange) + b"\n"


def without_secrets(
    headers: dict[str, str] | list[tuple[str, str]],
) -> dict[str, str] | list[tuple[str, str]]:
    """The headers in their own form, credentials replaced."""
    if isinstance(headers, dict):
        return {name: _open(name, value) for name, value in headers.items()}
    return [(name, _open(name, value)) for name, value in headers]


def _open(name: str, value: str) -> str:
    return REDACTED if name.lower() in SECRET_HEADERS else value
