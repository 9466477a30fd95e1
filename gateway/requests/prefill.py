"""A request for a prompt alone: for one token, which is dropped.

Fields that shape the prompt stay as the client wrote them; those that shape the answer are removed where they
would make one token an error.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from gateway.domain.request import Protocol
from gateway.requests.client_kv_fields import KV_FIELDS
from gateway.wire.body import read_as

_ONE: Final = Raw(b"1")
_FALSE: Final = Raw(b"false")
_NULL: Final = b"null"
_NOT_FOR_ONE_TOKEN: Final = frozenset(
    ("max_completion_tokens", "min_tokens", "n", "best_of", "stream_options", "prompt_logprobs", "echo")
).union(KV_FIELDS)  # they hold for one request


class _Tool(msgspec.Struct):
    type: str = ""


_tools: Final = msgspec.json.Decoder(list[_Tool])
# Types of tools that the client runs.
_CLIENTS_TOOLS: Final = frozenset(("function", "custom", "namespace"))


def may_have_leg(protocol: Protocol) -> bool:
    return protocol in (Protocol.CHAT, Protocol.COMPLETIONS, Protocol.MESSAGES, Protocol.RESPONSES)


def needs_more_than_its_prompt(fields: Mapping[str, Raw], protocol: Protocol) -> bool:
    """Whether an engine may do something else before it computes the prompt, such as to open tools of its
    own."""
    if protocol is not Protocol.RESPONSES or bytes(fields.get("tools", _NULL)) == _NULL:
        return False
    tools = read_as(_tools, fields["tools"])
    return tools is None or any(each.type not in _CLIENTS_TOOLS for each in tools)


def for_one_token(fields: Mapping[str, Raw], protocol: Protocol = Protocol.CHAT) -> dict[str, Raw]:
    kept = {name: value for name, value in fields.items() if name not in _NOT_FOR_ONE_TOKEN}
    if protocol is Protocol.RESPONSES:
        return {**kept, "max_output_tokens": _ONE, "stream": _FALSE, "store": _FALSE, "background": _FALSE}
    return {**kept, "max_tokens": _ONE, "stream": _FALSE}
