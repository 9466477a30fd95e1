"""What the engines' plugin did with the gateway's hints, as the engines tell it: `GET /turnpike/kv`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

LOOK_EVERY_S = 0.25


@dataclass(kw_only=True)
class EngineTelemetry:
    """Of all engines together."""

    latest: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The last snapshot of each engine."""
    most_retained: int = 0
    """KV blocks that were held, and used by no request, at one moment: the most that was seen."""

    @property
    def hints_followed(self) -> int:
        return self._count("hints", "followed")

    @property
    def turns_held(self) -> int:
        """Turns whose KV was held when they ended."""
        return self._count("holds", "held")

    @property
    def turns_returned(self) -> int:
        """Of those: the session's next turn found it."""
        return self._count("releases", "returned")

    @property
    def blocks(self) -> int:
        return sum(told["blocks"]["total"] for told in self.latest.values())

    def take(self, told: dict[str, dict[str, Any]]) -> None:
        """One snapshot of each engine that answered."""
        self.latest |= told
        retained = sum(told["blocks"]["retained"] for told in self.latest.values())
        self.most_retained = max(self.most_retained, retained)

    def _count(self, group: str, name: str) -> int:
        return sum(told["counters"][group].get(name, 0) for told in self.latest.values())


@asynccontextmanager
async def watched(engines: Sequence[str]) -> AsyncIterator[EngineTelemetry]:
    """Looks at the engines now and then, and once more at the end."""
    telemetry = EngineTelemetry()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as client:

        async def look() -> None:
            told = await asyncio.gather(*(_snapshot(client, url) for url in engines))
            telemetry.take({url: each for url, each in zip(engines, told, strict=True) if each is not None})

        async def watch() -> None:
            while True:
                await look()
                await asyncio.sleep(LOOK_EVERY_S)

        watching = asyncio.create_task(watch())
        try:
            yield telemetry
            await look()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _snapshot(client: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """None of an engine that is busy, or has no plugin in its scheduler."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with client.get(f"{url}/turnpike/kv") as answer:
            told: dict[str, Any] = await answer.json() if answer.status == 200 else {}
            return told if "blocks" in told else None
    return None
