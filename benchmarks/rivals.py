"""The same agents on the same engines, behind this gateway and behind those that a user would otherwise pick.

    python -m benchmarks.rivals [--quick] [--json]

Three real vLLM servers on the CPU with a tiny model, whose KV caches hold some four of the longest sessions
each, and sessions of agents that chat and call tools (`chat_agents.py`): the same requests for everybody.
Turnpike, smg and vllm-router as they come (for both that is `cache_aware`), and smg's round robin, get what
agents send who say nothing about sessions. To routers with what their makers recommend for sessions (smg's
sticky sessions; vllm-router's `consistent_hash`, and `sticky_least_loaded`) requests say in headers which
session they belong to.

Turnpike learns, so it plays twice: first just started (`turnpike_cold`), then sessions of the same shape;
this is what counts. Interleaved in rounds, each with sessions of its own, and engines' caches empty before
each run. Times are in units of the machine's pace (`speedometer.py`), as that varies; those that are told are
seconds at the pace of the median run. Ratios are to the best of the others, over all rounds.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from benchmarks import peers
from benchmarks.chat_agents import NAMED_BY, ChatAgents, Turned, scripts, talk, vocabulary
from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.live import MODEL, Completions, Engines, Kind, drawn, played
from benchmarks.processes import Pinning
from benchmarks.verdict import Verdict, percentile
from lab.workload.trace.format import Session

REPLICAS: Final = 3
KV_BLOCKS: Final = 2_000
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
FOR_VLLM_ROUTER: Final = ("--enable-scale-out",)
"""Its `cache_aware` asks a server to render each prompt. vLLM refuses that by default, and then it finds no
prefix at all."""
WORSE: Final = 1.05
"""More than this is a loss: two runs of the same differ by about as much."""
LESS: Final = 0.005
"""Of the hit rate: a block of each prompt."""
OURS: Final = "turnpike"
COLD: Final = "turnpike_cold"

Start = Callable[[Sequence[str], Path], AbstractContextManager[str]]
"""In front of servers at these URLs, with a new folder for its files; yields its own URL."""


def _router(package: str, *flags: str) -> Start:
    @contextmanager
    def start(backends: Sequence[str], at: Path) -> Iterator[str]:
        at.mkdir()
        everywhere = Pinning.of_this_machine().lifted()
        with peers.rust_peer(package, backends, everywhere, at, flags=flags, model=MODEL) as running:
            yield f"http://127.0.0.1:{running.port}"

    return start


class Rival(msgspec.Struct, frozen=True):
    start: Start
    headers: tuple[str, ...] = ()
    """That say which session a request belongs to."""


RIVALS: Final[Mapping[str, Rival]] = {
    OURS: Rival(gateway),
    "smg": Rival(_router("smg")),
    "vllm_router": Rival(_router("vllm-router")),
    "round_robin": Rival(_router("smg", "--policy", "round_robin")),
    "smg_sticky": Rival(_router("smg", "--sticky-sessions"), NAMED_BY),
    "vllm_router_hash": Rival(_router("vllm-router", "--policy", "consistent_hash"), NAMED_BY),
    "vllm_router_sticky": Rival(_router("vllm-router", "--policy", "sticky_least_loaded"), NAMED_BY),
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's, of one round."""

    seconds: list[float]
    """Of each session."""
    pace_s: float
    turns: list[Turned]
    failed: int
    strangers: float = 0.0
    """Their share of the machine meanwhile."""

    @classmethod
    def of(cls, seen: Completions, turns: list[Turned]) -> "Run":
        return cls(
            seconds=list(seen.seconds.values()),
            pace_s=seen.pace_s,
            turns=turns,
            failed=seen.failed,
            strangers=seen.strangers,
        )

    @property
    def paced(self) -> list[float]:
        return [each / self.pace_s for each in self.seconds]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's, of all rounds. Times in units of the machine's pace."""

    mean: float
    p90: float
    hit_rate: float
    """Of all prompts' tokens, those that were found."""
    reused: float
    """Of what the turn before left."""
    failed: int

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Seen":
        times = [each for run in runs for each in run.paced]
        turns = [turn for run in runs for turn in run.turns]
        reused = sum(min(turn.cached_tokens, turn.reusable_tokens) for turn in turns)
        return cls(
            mean=statistics.mean(times),
            p90=percentile(times, 90),
            hit_rate=sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns),
            reused=reused / sum(turn.reusable_tokens for turn in turns),
            failed=sum(run.failed for run in runs),
        )


def measure(rounds: int, verdict: Verdict) -> None:
    peers.install_rust_peers()
    words = vocabulary()
    kinds = [msgspec.structs.replace(KIND, name=f"round-{at}", seed=KIND.seed + at) for at in range(rounds)]
    workloads = [drawn(kind, SESSIONS) for kind in kinds]
    twins = [drawn(msgspec.structs.replace(kind, name=f"{kind.name}-cold"), SESSIONS) for kind in kinds]
    talks = {each.id: talk(each, words) for sessions in (*workloads, *twins) for each in sessions}
    found: dict[str, list[Run]] = {name: [] for name in (COLD, *RIVALS)}
    with ExitStack() as stack:
        at = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rivals-")))
        engines = Engines(
            stack,
            at,
            replicas=REPLICAS,
            kv_blocks=KV_BLOCKS,
            scripts=scripts(talks),
            flags=FOR_VLLM_ROUTER,
            are_pinned=False,
        )

        def ran(name: str, sessions: Sequence[Session], url: str, headers: Sequence[str]) -> None:
            agents: list[ChatAgents] = []

            def endpoint(client: aiohttp.ClientSession) -> ChatAgents:
                agents.append(ChatAgents(client, url, MODEL, talks, headers=headers))
                return agents[-1]

            seen = played(sessions, engines.urls, endpoint)
            found[name].append(Run.of(seen, agents[0].turns))
            told = f"{name}: {seen.mean:.2f} s at a pace of {seen.pace_s * 1e3:.2f} ms"
            print(f"{told}, {seen.strangers:.0%} of the machine to others", file=sys.stderr, flush=True)

        for number, sessions in enumerate(workloads):
            names = list(RIVALS)
            for name in names[number:] + names[:number]:  # each round begins with another
                rival = RIVALS[name]
                with rival.start(engines.urls, at / f"{number}-{name}") as url:
                    if name == OURS:
                        ran(COLD, twins[number], url, rival.headers)
                    ran(name, sessions, url, rival.headers)
    judge(found, verdict)


def judge(found: Mapping[str, Sequence[Run]], verdict: Verdict) -> None:
    pace_s = statistics.median(run.pace_s for runs in found.values() for run in runs)
    seen = {name: Seen.of(runs) for name, runs in found.items()}
    for name, each in seen.items():
        verdict.tell(f"{name}.mean_s", each.mean * pace_s)
        verdict.tell(f"{name}.p90_s", each.p90 * pace_s)
        verdict.tell(f"{name}.hit_rate", each.hit_rate)
        verdict.tell(f"{name}.reused", each.reused)
    others = [each for name, each in seen.items() if name not in (OURS, COLD)]
    best, ours = min(each.mean for each in others), seen[OURS]
    verdict.at_most("mean_to_best", ours.mean / best, WORSE)
    verdict.tell("mean_cold_to_best", seen[COLD].mean / best)
    verdict.at_most("p90_to_best", ours.p90 / min(each.p90 for each in others), WORSE)
    verdict.at_least("hit_rate_less_best", ours.hit_rate - max(each.hit_rate for each in others), -LESS)
    verdict.at_most("failed", sum(each.failed for each in seen.values()), 0)
    verdict.tell("strangers_most", max(run.strangers for runs in found.values() for run in runs))


def main(argv: list[str] | None = None) -> int:
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, _: measure(1 if is_quick else 2, verdict),
        quick="one round instead of two",
        about=", ".join(each.replace("==", " ") for each in peers.PACKAGES),
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
