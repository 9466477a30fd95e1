"""A request for a prompt alone: one that was sent before, for one token that nobody reads.

Whatever shapes the prompt stays as its client wrote it; what shapes the answer goes where it would make one
token an error.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.request import Protocol
from gateway.wire.body import UNREADABLE

_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
_NOT_FOR_ONE_TOKEN: Final = frozenset(
    ("max_completion_tokens", "min_tokens", "n", "best_of", "stream_options", "prompt_logprobs", "echo")
)
_PROTOCOLS: Final = (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.MESSAGES)
"""Not of those whose answers may be stored, or may run tools on the server."""
_body: Final = msgspec.json.Decoder(dict[str, Raw])


def may_be_prefilled(protocol: Protocol) -> bool:
    return protocol in _PROTOCOLS


def prefill_body(body: bytes) -> bytes | None:
    """Of a request in one of those protocols; None if it cannot be read."""
    try:
        fields = _body.decode(body)
    except UNREADABLE:
        return None
    return msgspec.json.encode(for_one_token(fields))


def for_one_token(fields: Mapping[str, Raw]) -> dict[str, Raw]:
    """The fields of a body, of a request for its prompt."""
    kept = {name: value for name, value in fields.items() if name not in _NOT_FOR_ONE_TOKEN}
    return {**kept, "max_tokens": _ONE, "stream": _FALSE}
