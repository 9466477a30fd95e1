"""One side: the crowd on the engines, behind a load balancer or behind Turnpike, and what was counted.

It begins with empty prefix caches. What engines did, they say themselves (`/metrics`); times are clients'.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from benchmarks.processes import Strangers
from benchmarks.stock_engines import empty, metrics, total
from demo.errors import DemoError
from demo.progress import Say
from demo.replay import Played, Replay, play_on
from demo.runs import AgentRun, Place, Plan, run_agents


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Of all engines together, since they started."""

    prompt_tokens: float
    cached_tokens: float
    """Of these, those that prefix caches held."""
    queued_s: float
    """That requests waited in the engines, all together."""
    preemptions: float

    @classmethod
    def read(cls, texts: Sequence[str]) -> "Counts":
        return cls(
            prompt_tokens=total(texts, "vllm:prefix_cache_queries_total"),
            cached_tokens=total(texts, "vllm:prefix_cache_hits_total"),
            queued_s=total(texts, "vllm:request_queue_time_seconds_sum"),
            preemptions=total(texts, "vllm:num_preemptions_total"),
        )

    def since(self, before: "Counts") -> "Counts":
        now, then = msgspec.structs.asdict(self), msgspec.structs.asdict(before)
        return Counts(**{name: now[name] - then[name] for name in now})


class Side(msgspec.Struct, frozen=True, kw_only=True):
    took_s: float
    """Until the last of the crowd was done."""
    agents: list[AgentRun]
    played: Played
    counts: Counts
    strangers: float
    """Share of the machine that others took meanwhile."""

    @property
    def is_done(self) -> bool:
        """Everybody got what they asked for."""
        return not self.played.seen.failed and all(run.is_done for run in self.agents)


async def run_side(
    place: Place, engines: Sequence[str], planned: Sequence[Plan], replay: Replay, say: Say
) -> Side:
    """`place`: also where the replayed conversations go."""
    place.directory.mkdir()
    await asyncio.to_thread(empty, engines)
    before, others, began = await _counts(engines), Strangers(), time.monotonic()
    async with asyncio.TaskGroup() as crowd:
        agents = crowd.create_task(run_agents(place, planned, say))
        played = crowd.create_task(play_on(replay, place.gateway_url, place.model, say))
    if not played.result().seen.turns:
        raise DemoError(f"no replayed conversation was answered: see the logs beside {place.directory}")
    return Side(
        took_s=time.monotonic() - began,
        agents=agents.result(),
        played=played.result(),
        counts=(await _counts(engines)).since(before),
        strangers=others.share,
    )


async def _counts(engines: Sequence[str]) -> Counts:
    return Counts.read(await asyncio.to_thread(metrics, engines))
