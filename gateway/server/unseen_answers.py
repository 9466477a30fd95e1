"""Answers that no client is shown: to a prompt that is computed ahead of its turn, or for another replica."""

from typing import Final

from gateway.domain.request import Usage
from gateway.upstream.connection import UpstreamConnection
from gateway.wire.endpoints import Endpoint
from gateway.wire.observer import observe

_MAX_BYTES: Final = 4 << 20
"""One token, and perhaps where the blocks are: a block's number is a few bytes, a prompt has thousands."""


async def read_whole(upstream: UpstreamConnection) -> bytes:
    """The body. Raises UpstreamError if it breaks off, or is too large."""
    whole = upstream.take_whole()
    if whole is None:
        whole = []
        size = 0

        def see(parts: list[bytes], is_last: bool) -> None:
            nonlocal size
            size += sum(map(len, parts))
            if size > _MAX_BYTES:
                upstream.give_up_on_rest()
            else:
                whole.extend(parts)

        upstream.set_sink(see)
        await upstream.done
    return b"".join(whole)


def usage_of(upstream: UpstreamConnection, endpoint: Endpoint, body: bytes) -> Usage | None:
    """None if it does not say how long the prompt was."""
    head = upstream.head
    assert head is not None
    observer = observe(endpoint.protocol, endpoint.work, head.content_type, head.content_encoding)
    observer.feed(body)
    usage = observer.answer(head.status).usage
    return usage if usage.prompt_tokens is not None else None
