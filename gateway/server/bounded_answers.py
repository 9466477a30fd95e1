"""Answers to the gateway's own questions, read up to a bound."""

import aiohttp


async def read_at_most(response: aiohttp.ClientResponse, most_bytes: int) -> bytes | None:
    """The whole body; None if it is longer."""
    body = bytearray()
    async for some in response.content.iter_any():
        body += some
        if len(body) > most_bytes:
            return None
    return bytes(body)
