"""The rest of the crowd: conversations with tool calls and pauses that together need more KV than there is.

Drawn once, from a seed, and played on both sides: the same requests at the same times, the same answers
(scripted), the same pauses. Each names its session, as OpenCode does, so that a load balancer can keep it
where its KV cache is.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from benchmarks.live import Completions, Kind, drawn
from demo.balancer import Choose
from demo.progress import Say
from demo.runs import SAY_EVERY_S
from lab.simulator.live.chat_agents import ChatAgents, Talk, Turned, scripts, talk, vocabulary
from lab.simulator.live.endpoint import Endpoint, Question, Reply
from lab.simulator.live.player import play
from lab.workload.trace.format import Session

NAMED_BY = "x-session-affinity"
CONVERSATIONS = 24
"""Of `KIND`: 160,000 tokens at last, where two engines' KV caches hold 128,000, for the agents too."""
KIND = Kind(
    name="replayed",
    seed=7,
    turns=(4, 6),
    first_tokens=(4_500, 6_500),
    grows_by=(100, 400),
    output_tokens=(20, 50),
    tool_s=1.0,
    apart_s=0.15,
)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is played."""

    sessions: list[Session]
    talks: dict[str, Talk]

    @property
    def scripts(self) -> dict[str, Any]:
        """What the model says in them."""
        found: dict[str, Any] = scripts(self.talks)["scripts"]
        return found

    @property
    def peak_tokens(self) -> int:
        """Of all together, each at its longest."""
        return sum(session.peak_tokens for session in self.sessions)


@dataclass(frozen=True, kw_only=True)
class Played:
    """What became of it on one side."""

    seen: Completions
    turned: list[Turned]


def replay(conversations: int = CONVERSATIONS) -> Replay:
    words = vocabulary()
    sessions = drawn(KIND, conversations)
    return Replay(sessions=sessions, talks={each.id: talk(each, words) for each in sessions})


async def play_on(replay: Replay, where: str | Choose, model: str, say: Say) -> Played:
    """All of it. `where`: a URL, or what chooses one for each session."""
    seen = Completions()
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=1 << 20) as client:
        agents = _Placed(client, where, model, replay.talks)
        async with _told(seen, len(replay.sessions), say):
            await play(replay.sessions, agents, seen)
    return Played(seen=seen, turned=list(agents.turned))


class _Placed(Endpoint):
    """Each question goes where its session is."""

    def __init__(
        self, client: aiohttp.ClientSession, where: str | Choose, model: str, talks: dict[str, Talk]
    ) -> None:
        self._choose: Choose = where if callable(where) else lambda _: where
        self._at: dict[str, ChatAgents] = {}
        self._new = partial(ChatAgents, client, model=model, talks=talks, headers=(NAMED_BY,))

    async def ask(self, question: Question) -> Reply:
        url = self._choose({NAMED_BY: question.session})
        if url not in self._at:
            self._at[url] = self._new(url)
        return await self._at[url].ask(question)

    @property
    def turned(self) -> Iterable[Turned]:
        return (turned for agents in self._at.values() for turned in agents.turns)


@asynccontextmanager
async def _told(seen: Completions, count: int, say: Say) -> AsyncIterator[None]:
    async def tell() -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            say(f"{len(seen.seconds)} of {count} replayed conversations done, {len(seen.turns)} turns so far")

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
    say(f"all {count} replayed conversations done")
