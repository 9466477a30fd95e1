"""Agents that chat and call tools, the same requests for everybody, on three servers.

Their KV caches hold some four of the longest sessions each. To routers with what their makers recommend for
sessions, requests name their session in headers; all others get what agents send that name none. Turnpike
learns, so it plays twice: first just started (`turnpike_cold`), then sessions of the same shape; this is what
counts. Each round has sessions of its own, and caches are empty before each run. Times are in units of the
machine's pace (`speedometer.py`).
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from benchmarks.live import Completions, Engines, Kind, drawn, played
from benchmarks.rivals.arms import FOR_VLLM_ROUTER, MODEL, OURS, ROUTED, Arm
from benchmarks.rivals.judging import COLD, Bound, Figures
from lab.simulator.live.chat_agents import ChatAgents, Turned, scripts, talk, vocabulary
from lab.workload.trace.format import Session

SESSIONS: Final = 14
"""Of a round."""
KIND: Final = Kind(
    name="round",
    seed=23,
    turns=(5, 9),
    first_tokens=(6_000, 11_000),
    grows_by=(300, 1_400),
    output_tokens=(40, 120),
    tool_s=0.6,
    apart_s=0.8,
)
WORSE: Final = 1.05
"""More than this is a loss: two runs of the same differ by about as much."""
BOUNDS: Final = (
    Bound(figure="mean", at_most=WORSE),
    Bound(figure="p90", at_most=WORSE),
    Bound(figure="hit_rate", at_least=0.99, is_more_better=True),
)
ARMS: Final = ROUTED
ROUNDS: Final = 2


def figures(seen: Completions, turns: Sequence[Turned]) -> Figures:
    """`hit_rate`: of all prompts' tokens, those that were cached; `reused`: of what the turn before left."""
    reused = sum(min(turn.cached_tokens, turn.reusable_tokens) for turn in turns)
    return {
        "mean": seen.mean / seen.pace_s,
        "p90": seen.p90 / seen.pace_s,
        "mean_s": seen.mean,
        "hit_rate": sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns),
        "reused": reused / sum(turn.reusable_tokens for turn in turns),
        "failed": seen.failed,
        "strangers": seen.strangers,
    }


class Play:
    rows: Sequence[str] = ("",)

    def __init__(self, stack: ExitStack, at: Path, options: argparse.Namespace, *, rounds: int) -> None:
        replace, words = msgspec.structs.replace, vocabulary()
        kinds = [replace(KIND, name=f"round-{each}", seed=KIND.seed + each) for each in range(rounds)]
        self._workloads = [drawn(kind, SESSIONS) for kind in kinds]
        self._twins = [drawn(replace(kind, name=f"{kind.name}-cold"), SESSIONS) for kind in kinds]
        sessions = [each for workload in (*self._workloads, *self._twins) for each in workload]
        self._talks = {each.id: talk(each, words) for each in sessions}
        self._engines = Engines(
            stack,
            at,
            replicas=3,
            kv_blocks=2_000,
            scripts=scripts(self._talks),
            flags=FOR_VLLM_ROUTER,
            are_pinned=False,
        ).urls

    def bounds(self, _: str) -> Sequence[Bound]:
        return BOUNDS

    def run(self, name: str, arm: Arm, _: str, number: int, at: Path) -> dict[str, Figures]:
        with arm.start(self._engines, at / "gateway") as (url, *others):
            assert not others
            found = {COLD: self._ran(self._twins[number], url, arm)} if name == OURS else {}
            return {**found, name: self._ran(self._workloads[number], url, arm)}

    def _ran(self, sessions: Sequence[Session], url: str, arm: Arm) -> Figures:
        agents: list[ChatAgents] = []

        def endpoint(client: aiohttp.ClientSession) -> ChatAgents:
            agents.append(ChatAgents(client, url, MODEL, self._talks, headers=arm.headers))
            return agents[-1]

        seen = played(sessions, self._engines, endpoint)
        return figures(seen, agents[0].turns)
