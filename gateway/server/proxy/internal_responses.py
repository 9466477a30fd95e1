"""Answers that no client is shown: to a prompt that is computed ahead of its turn, or for another replica."""

from typing import Final

from gateway.domain.request import Usage
from gateway.responses.observer import observe
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut, AnswerMissing
from gateway.upstream.replica import Replica
from gateway.wire.endpoints import Endpoint
from gateway.wire.splice import Chunk

# One token, and perhaps where the blocks are: a block's number is a few bytes, a prompt has thousands.
_MAX_BYTES: Final = 4 << 20


async def ask_unseen(replica: Replica, chunks: list[Chunk]) -> tuple[UpstreamConnection, bytes]:
    """The body, and the connection, which has its head and is given back. Raises UpstreamError."""
    upstream = await replica.exchange(chunks, is_head_request=False, may_repeat=True)
    is_whole = False
    try:
        body = await read_whole(upstream)
        is_whole = True
    finally:
        replica.release(upstream, reuse=is_whole)
    return upstream, body


async def read_whole(upstream: UpstreamConnection) -> bytes:
    """The body, which `take_complete_body` has then, too. Raises AnswerMissing if it breaks off, or is too
    large."""
    if upstream.take_complete_body() is None:
        whole = bytearray()

        def see(parts: list[bytes], is_last: bool) -> None:
            whole.extend(b"".join(parts))
            if len(whole) > _MAX_BYTES:
                upstream.give_up_on_rest()

        upstream.set_sink(see)
        try:
            await upstream.done
        except AnswerCut as cut:
            raise AnswerMissing(str(cut)) from cut
        upstream.put_back(bytes(whole))
    return b"".join(upstream.take_complete_body() or ())


def usage_of(upstream: UpstreamConnection, endpoint: Endpoint, body: bytes) -> Usage | None:
    head = upstream.head
    assert head is not None
    observer = observe(endpoint.protocol, endpoint.work, head.content_type, head.content_encoding)
    observer.feed(body)
    usage = observer.answer(head.status).usage
    return usage if usage.prompt_tokens is not None else None
