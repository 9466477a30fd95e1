"""What stands between clients and engines: nothing, Turnpike, and routers that others would pick."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import peers
from benchmarks.gateway import gateway
from benchmarks.processes import ROOT, Pinning
from benchmarks.rivals import aiperf
from lab.simulator.live.chat_agents import NAMED_BY

MODEL: Final = "scripted"
NONE: Final = "none"
OURS: Final = "turnpike"
FOR_VLLM_ROUTER: Final = ("--enable-scale-out",)
"""Of the engines: `cache_aware` of vllm-router asks a server to render each prompt. vLLM refuses that by
default, and then it finds no prefix at all."""

Start = Callable[[Sequence[str], Path], AbstractContextManager[Sequence[str]]]
"""In front of servers at these URLs, with a new folder for its files; yields the URLs that clients take."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    start: Start
    headers: tuple[str, ...] = ()
    """That name the session of a request, where clients name it."""
    aiperf: Mapping[str, str] = {}
    """More of AIPerf's environment."""
    is_router: bool = False
    """One that has to be installed."""


@contextmanager
def _nothing(backends: Sequence[str], _: Path) -> Iterator[Sequence[str]]:
    yield backends


def _turnpike(tree: Path, settings: str = "") -> Start:
    @contextmanager
    def start(backends: Sequence[str], at: Path) -> Iterator[Sequence[str]]:
        with gateway(backends, at, settings, tree=tree) as url:
            yield [url]

    return start


def _router(package: str, *flags: str, is_told: bool = False) -> Arm:
    """`is_told`: requests name their session, as its makers recommend."""

    @contextmanager
    def start(backends: Sequence[str], at: Path) -> Iterator[Sequence[str]]:
        at.mkdir(parents=True)
        everywhere = Pinning.of_this_machine().lifted()
        with peers.rust_peer(package, backends, everywhere, at, flags=flags, model=MODEL) as running:
            yield [f"http://127.0.0.1:{running.port}"]

    environment = aiperf.SESSION_ID if is_told else {}
    return Arm(start=start, headers=NAMED_BY if is_told else (), aiperf=environment, is_router=True)


def arms(tree: Path = ROOT) -> dict[str, Arm]:
    """`tree`: the checkout that Turnpike runs from."""
    caps = {
        f"turnpike_cap_{cap}": Arm(
            start=_turnpike(tree, f'[admission]\npolicy = "session-cap"\nsession_cap = {cap}\n')
        )
        for cap in (2, 4, 8)
    }
    return {
        NONE: Arm(start=_nothing),
        OURS: Arm(start=_turnpike(tree)),
        "turnpike_shadow": Arm(start=_turnpike(tree, "[admission]\nshadow = true\n")),
        "turnpike_unnamed": Arm(start=_turnpike(tree), aiperf=aiperf.NAMELESS),
        **caps,
        "smg": _router("smg"),
        "smg_round_robin": _router("smg", "--policy", "round_robin"),
        "smg_sticky": _router("smg", "--sticky-sessions", is_told=True),
        "vllm_router": _router("vllm-router"),
        "vllm_router_hash": _router("vllm-router", "--policy", "consistent_hash", is_told=True),
        "vllm_router_sticky": _router("vllm-router", "--policy", "sticky_least_loaded", is_told=True),
    }


ROUTERS: Final = (
    "smg",
    "vllm_router",
    "smg_round_robin",
    "smg_sticky",
    "vllm_router_hash",
    "vllm_router_sticky",
)
ROUTED: Final = (OURS, *ROUTERS)
"""Turnpike and all routers."""
