"""What somebody waits for beside background work, on fast devices and slow ones.

Source: Agent.xpu (arXiv 2506.24045) §6.1 for the requests (`mix.py`); devices and agents are ours.
"""

from random import Random
from typing import Final

import msgspec

from benchmarks.simulations.mix import BACKGROUND, NOISE, REACTIVE, Make, arrivals, requests
from lab.simulator.fleet import Change, FleetSpec, ReplicaGroup
from lab.workload.trace.agent_kinds import SEARCH
from lab.workload.trace.agents import AgentKind, ToolKind, session_of
from lab.workload.trace.format import Session
from lab.workload.trace.spread import Spread

_LONGEST: Final = 40_000
"""Tokens of an agent's conversation: on the slowest card several fit."""
DOCUMENTS: Final = AgentKind(
    name="documents",
    turns=Spread(median=2, sigma=0.5, least=1, most=6),
    opening_tokens=500,
    task_tokens=Spread(median=24_000, sigma=0.6, least=4_000, most=80_000),
    output_tokens=Spread(median=300, sigma=0.5, least=50, most=1_500),
    final_tokens=Spread(median=500, sigma=0.5, least=50, most=2_000),
    result_tokens=Spread(median=6_000, sigma=0.8, least=200, most=30_000),
    tools=(ToolKind(name="open", lasts_s=Spread(median=0.5, sigma=0.7, most=20)),),
)
"""Assumed throughout: agents that read long documents, and little of them twice."""


def agents(kind: AgentKind) -> Make:
    """Those whose conversations are not too long."""

    def make(dice: Random) -> Session:
        while (session := session_of(kind, dice, id_="")).peak_tokens > _LONGEST:
            pass
        return session

    return make


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """Fast devices and slow ones, the fast ones first, and the arrivals, in sessions a minute."""

    name: str
    replicas: tuple[ReplicaGroup, ...]
    slow: str
    """Numbers of the slow ones."""
    reactive: float
    background: float
    trace_s: float
    kinds: tuple[AgentKind, AgentKind] | None = None
    """Of reactive and of background sessions; None: the paper's requests."""
    joins: str | None = None
    """A replica that comes after a third of the time."""

    def sessions(self, seed: int) -> list[Session]:
        made = requests(REACTIVE), requests(BACKGROUND)
        if self.kinds is not None:
            made = agents(self.kinds[0]), agents(self.kinds[1])
        return arrivals(*made, (self.reactive, self.background), self.trace_s, seed)

    def fleet(self, *, is_pair: bool) -> FleetSpec:
        changes = (Change(at_s=self.trace_s / 3, joins=self.joins),) if self.joins else ()
        return FleetSpec(replicas=self.replicas, noise=NOISE, changes=changes)


_SMALL: Final = "benchmarks/simulations/"
DEVICES: Final = (
    Devices(
        name="requests",
        replicas=(
            ReplicaGroup(profile=f"{_SMALL}fast-8b.toml"),
            ReplicaGroup(profile=f"{_SMALL}soc-8b.toml", count=2),
        ),
        slow="1.2",
        reactive=15,
        background=30,
        trace_s=600.0,
    ),
    Devices(
        name="agents",
        replicas=(
            ReplicaGroup(profile="qwen3-14b@h200", count=2),
            ReplicaGroup(profile="qwen3-14b@l40s", count=2),
        ),
        slow="2.3",
        reactive=20,
        background=20,
        trace_s=120.0,
        kinds=(SEARCH, DOCUMENTS),
    ),
)
"""The paper's requests, at its highest rate of background work, on three small devices; and agents on four
cards: people who have something searched for, beside agents that read documents."""
_START: Final = msgspec.structs.replace(DEVICES[0], name="starts", trace_s=150.0)
UNSEEN: Final = (
    _START,
    msgspec.structs.replace(_START, name="slow_joins", joins="sim-2"),
    msgspec.structs.replace(_START, name="fast_joins", joins="sim-0"),
)
"""The requests, while little is known: a gateway has just started, or a device comes."""
