"""What is known of the next prompt of a conversation: the last request, and the answer as its client will
send it back, under the head that the next request will have.

Behind the answer stand results that nobody has yet, one for each call, or a user's words, of one character: a
conversation that ends with the model's own words is no request to every engine, and chat templates write the
last message otherwise than one in the middle. So the prompt is the next one's up to where the first result
begins, and what stands behind that is less than a block or two.

Invariants: items of the conversation go as they came, byte for byte; nothing here raises.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from gateway.domain.request import Protocol
from gateway.prefill_ahead.history_rewrite import EchoManner, echo, is_same_message, read_manner
from gateway.requests.prefill import for_one_token
from gateway.responses.content import Kind, ResponseContent
from gateway.wire.body import ROLE, UNREADABLE, read_as

_PROTOCOLS: Final = (Protocol.CHAT, Protocol.MESSAGES)
# Fields that shape what stands before a conversation.
_OF_HEADS: Final = frozenset(
    (
        *("model", "system", "tools", "tool_choice", "parallel_tool_calls", "functions", "documents"),
        *("chat_template", "chat_template_kwargs", "reasoning_effort", "thinking", "output_config"),
        *("response_format", "add_special_tokens"),
    )
)
_NOT_YET: Final = "."
_LEADS: Final = frozenset(("system", "developer"))
# Items of a conversation that were rewritten with the same contents.
_MAX_DIFFERING: Final = 32


_ITEM: Final = msgspec.json.Decoder(dict[str, Any])
_BODY: Final = msgspec.json.Decoder(dict[str, Raw])
_ITEMS: Final = msgspec.json.Decoder(list[Raw])


class Head(msgspec.Struct, frozen=True):
    """What stands before a conversation: system prompt, tools, and what else shapes it."""

    fields: dict[str, Raw]
    leads: tuple[Raw, ...]
    """Messages that a conversation begins with, and that are no part of it."""

    @property
    def size(self) -> int:
        return sum(len(memoryview(each)) for each in (*self.fields.values(), *self.leads))


class _Parted(msgspec.Struct):
    """A body, taken apart."""

    fields: dict[str, Raw]
    leads: list[Raw]
    items: list[Raw]


def may_be_foreseen(protocol: Protocol) -> bool:
    return protocol in _PROTOCOLS


def read_head(body: bytes) -> Head | None:
    """None if the body cannot be read. Keeps nothing of the rest of the body."""
    parted = _part(body)
    if parted is None:
        return None
    fields = {name: Raw(bytes(value)) for name, value in parted.fields.items() if name in _OF_HEADS}
    return Head(fields, tuple(Raw(bytes(each)) for each in parted.leads))


def next_prompt(
    protocol: Protocol, body: bytes, response: ResponseContent, manner: EchoManner, head: Head | None
) -> bytes | None:
    """The body of a request for it, for one token that nobody reads. `head`: None if it stays as it is."""
    parted = _part(body)
    if parted is None or not response.is_whole:
        return None
    fields, leads = parted.fields, parted.leads
    if head is not None:
        fields = {name: value for name, value in fields.items() if name not in _OF_HEADS} | head.fields
        leads = list(head.leads)
    try:
        answer = _written(echo(protocol, response, manner))
    except UNREADABLE:
        return None
    items = [*leads, *parted.items, answer, *map(_written, _not_yet(protocol, response, manner))]
    messages = Raw(b"[%s]" % b",".join(map(bytes, items)))
    return msgspec.json.encode(for_one_token({**fields, "messages": messages}))


class Foreseen(msgspec.Struct, frozen=True):
    """What became of an answer in the next request."""

    was_right: bool
    """The prompt went on as `next_prompt` predicted, but for its head."""
    manner: EchoManner | None
    """In which the answer was sent back; None if in none that is known here."""


def compare(
    protocol: Protocol, body: bytes, response: ResponseContent, manner: EchoManner, after: bytes
) -> Foreseen | None:
    """`after`: the next body; None if it does not go on with that answer."""
    before, now = _part(body), _part(after)
    if before is None or now is None or not response.is_whole or len(now.items) <= len(before.items):
        return None
    echoed = read_as(_ITEM, now.items[len(before.items)])
    if echoed is None or echoed.get("role") != "assistant":
        return None
    try:
        is_same = is_same_message(protocol, echo(protocol, response, manner), echoed)
    except UNREADABLE:
        return None
    goes_on = is_same and _are_same(protocol, before.items, now.items)
    return Foreseen(goes_on, read_manner(protocol, response, echoed, manner))


def _part(body: bytes) -> _Parted | None:
    try:
        fields = _BODY.decode(body)
        items = _ITEMS.decode(fields.pop("messages", Raw()))
        count = 0
        while count < len(items) and ROLE.decode(items[count]).role in _LEADS:
            count += 1
    except UNREADABLE:
        return None
    return _Parted(fields, items[:count], items[count:])


def _not_yet(protocol: Protocol, response: ResponseContent, manner: EchoManner) -> list[dict[str, Any]]:
    calls = [part for part in response.parts if part.kind is Kind.CALL]
    if not calls or manner.are_calls_text:
        return [{"role": "user", "content": _NOT_YET}]
    if protocol is Protocol.MESSAGES:
        results = [{"type": "tool_result", "tool_use_id": part.id, "content": _NOT_YET} for part in calls]
        return [{"role": "user", "content": results}]
    return [{"role": "tool", "tool_call_id": part.id, "content": _NOT_YET} for part in calls]


def _are_same(protocol: Protocol, before: Sequence[Raw], now: Sequence[Raw]) -> bool:
    differing = 0
    for one, other in zip(before, now, strict=False):
        if memoryview(one) == memoryview(other):
            continue
        differing += 1
        read, read_later = read_as(_ITEM, one), read_as(_ITEM, other)
        if differing > _MAX_DIFFERING or read is None or read_later is None:
            return False
        if not is_same_message(protocol, read, read_later):
            return False
    return True


def _written(message: dict[str, Any]) -> Raw:
    # In ASCII: a lone surrogate, which arguments may spell, would not be UTF-8.
    return Raw(json.dumps(message).encode())
