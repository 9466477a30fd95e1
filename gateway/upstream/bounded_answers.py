"""Bodies that are read up to a bound."""

import aiohttp


async def read_at_most(content: aiohttp.StreamReader, most_bytes: int) -> bytes | None:
    body = bytearray()
    async for some in content.iter_any():
        body += some
        if len(body) > most_bytes:
            return None
    return bytes(body)
