"""That Turnpike does no harm where nobody needs it, and what it gains where engines lack KV, with AIPerf.

    python -m benchmarks.harmless_live [--quick] [--json] [--rows 4,1.5,0.5,0.15] [--arms ...]
                                       [--turnpike-tree PATH]

Two plain vLLM servers on the CPU with a tiny model, each with 1000 KV blocks of 32 tokens, and AIPerf's
multi-turn chats (`aiperf.py`): 60 conversations of 10 turns, each turn 600 tokens more. A row is a pause
between turns and a number of conversations at a time; the shorter the pause, the more of them need KV at
once. Arms are what stands before the servers: nothing, Turnpike with its defaults, Turnpike without session
admission (`admission.shadow = true`), and vllm-router's `consistent_hash` where it can be installed.
Without a gateway AIPerf gives *conversations* to the servers in turn, all turns of one to the same server:
`round_robin` keeps sessions where their prefixes are.

In a row all arms get the same prompts, one arm after the other, from empty prefix caches and with a gateway
that has just started; each round and row begins with another arm. AIPerf names each conversation in
`X-Session-Affinity`, which Turnpike reads; for vllm-router it sends `X-Session-ID` too. The arm
`turnpike_unnamed` (not among the default ones) is Turnpike with requests that name none.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import aiperf, peers
from benchmarks.aiperf import Load, Profile
from benchmarks.command import judged
from benchmarks.gateway import gateway
from benchmarks.processes import ROOT, BenchmarkError, Pinning, Strangers
from benchmarks.stock_engines import MODEL, PrefixCache, empty, stock_engines
from benchmarks.verdict import Verdict

REPLICAS: Final = 2
ROWS: Final = {4.0: 40, 1.5: 40, 0.5: 20, 0.15: 40}
"""Pause between turns in seconds → conversations at a time."""
QUICK_ROWS: Final = (4.0, 0.15)
QUICK_CONVERSATIONS: Final = 40
SHORT_OF_KV_S: Final = 0.3
"""With shorter pauses than this, Turnpike should be faster than nothing; with longer ones, no slower."""
NONE: Final = "round_robin"
OURS: Final = "turnpike"
DURATION: Final = 1.03
TTFT: Final = 1.05
GAIN: Final = 1.15
TTFT_P99_MS: Final = 10_000.0
LONGEST_PAUSE_S: Final = 4.0
TTFT_P99: Final = 1.2
"""Times no gateway's, at the longest pause."""

Start = Callable[[Sequence[str], Path], AbstractContextManager[Sequence[str]]]
"""Before servers at these URLs, with a new folder for its files; yields the URLs that clients take."""


class Arm(msgspec.Struct, frozen=True):
    start: Start
    aiperf: Mapping[str, str] = {}
    """More of AIPerf's environment."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an arm, or the medians of several."""

    duration_s: float
    requests_per_s: float
    ttft_mean_ms: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    hit_rate: float
    """Of all prompt tokens that the engines looked up, those that their prefix caches held."""
    failed: int
    """Requests that did not succeed, of those that the load consists of; of several runs the sum."""
    strangers: float = 0.0
    """Their share of the machine meanwhile; of several runs the largest."""

    @classmethod
    def of(cls, seen: Profile, load: Load, hit_rate: float, strangers: float = 0.0) -> "Measured":
        figures = msgspec.structs.asdict(seen)
        failed = load.requests - figures.pop("answered")
        return cls(**figures, hit_rate=hit_rate, failed=failed, strangers=strangers)

    @classmethod
    def median(cls, runs: Sequence["Measured"]) -> "Measured":
        medians = {
            name: statistics.median(getattr(run, name) for run in runs)
            for name in cls.__struct_fields__
            if name not in ("failed", "strangers")
        }
        return cls(
            **medians,
            failed=sum(run.failed for run in runs),
            strangers=max(run.strangers for run in runs),
        )


@contextmanager
def _nothing(backends: Sequence[str], _: Path) -> Iterator[Sequence[str]]:
    yield backends


def _turnpike(tree: Path, settings: str = "") -> Start:
    @contextmanager
    def start(backends: Sequence[str], at: Path) -> Iterator[Sequence[str]]:
        with gateway(backends, at, settings, tree=tree) as url:
            yield [url]

    return start


@contextmanager
def _vllm_router(backends: Sequence[str], at: Path) -> Iterator[Sequence[str]]:
    at.mkdir(parents=True)
    everywhere, flags = Pinning.of_this_machine().lifted(), ("--policy", "consistent_hash")
    with peers.rust_peer("vllm-router", backends, everywhere, at, flags=flags, model=MODEL) as running:
        yield [f"http://127.0.0.1:{running.port}"]


def arms(tree: Path = ROOT) -> dict[str, Arm]:
    """`tree`: the checkout that Turnpike runs from."""
    return {
        NONE: Arm(_nothing),
        OURS: Arm(_turnpike(tree)),
        "turnpike_shadow": Arm(_turnpike(tree, "[admission]\nshadow = true\n")),
        "vllm_router": Arm(_vllm_router, aiperf.SESSION_ID),
        "turnpike_unnamed": Arm(_turnpike(tree), aiperf.NAMELESS),
    }


DEFAULT_ARMS: Final = (NONE, OURS, "turnpike_shadow", "vllm_router")


def run_arm(arm: Arm, load: Load, engines: Sequence[str], tokenizer: Path, at: Path) -> Measured:
    """One run. `engines`: their URLs; `at`: a folder for files, which this makes."""
    with arm.start(engines, at / "gateway") as urls:
        empty(engines)
        before, others = PrefixCache.of(engines), Strangers()
        seen = aiperf.profile(
            load, urls, at / "aiperf", model=MODEL, tokenizer=tokenizer, environment=arm.aiperf
        )
        return Measured.of(seen, load, PrefixCache.of(engines).hit_rate_since(before), others.share)


def run_row(
    chosen: Mapping[str, Arm],
    load: Load,
    engines: Sequence[str],
    tokenizer: Path,
    *,
    rounds: int = 1,
    first: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Measured]:
    """Each arm's medians. `first`: which arm begins (each round another); `say`: hears of each run."""
    found: dict[str, list[Measured]] = {name: [] for name in chosen}
    names = list(chosen)
    with tempfile.TemporaryDirectory(prefix="harmless-live-") as folder:
        for number in range(rounds):
            at = (first + number) % len(names)
            for name in names[at:] + names[:at]:
                run = run_arm(chosen[name], load, engines, tokenizer, Path(folder) / f"{number}-{name}")
                found[name].append(run)
                say(
                    f"{name}: {run.duration_s:.1f} s, {run.requests_per_s:.2f} requests/s, first token after "
                    f"{run.ttft_mean_ms:.0f} ms (p99 {run.ttft_p99_ms:.0f}), hits {run.hit_rate:.3f}, "
                    f"{run.failed} failed, {run.strangers:.0%} of the machine to others"
                )
    return {name: Measured.median(runs) for name, runs in found.items()}


def judge(pause_s: float, found: Mapping[str, Measured], verdict: Verdict) -> None:
    """One row's figures, and what Turnpike's must be beside the others'."""
    row = f"{pause_s:g}s"
    for arm, each in found.items():
        for name, value in msgspec.structs.asdict(each).items():
            if (arm, name) == (OURS, "ttft_p99_ms"):
                verdict.at_most(f"{row}.{arm}.{name}", value, TTFT_P99_MS)
            else:
                verdict.tell(f"{row}.{arm}.{name}", value)
    verdict.at_most(f"{row}.failed", sum(each.failed for each in found.values()), 0)
    ours, none = found.get(OURS), found.get(NONE)
    others = [each for name, each in found.items() if name != OURS]
    if ours is None or not others:
        return
    to_best = {
        "duration_to_best": ours.duration_s / min(each.duration_s for each in others),
        "ttft_mean_to_best": ours.ttft_mean_ms / min(each.ttft_mean_ms for each in others),
    }
    for (name, value), bound in zip(to_best.items(), (DURATION, TTFT), strict=True):
        if pause_s > SHORT_OF_KV_S:
            verdict.at_most(f"{row}.{name}", value, bound)
        else:
            verdict.tell(f"{row}.{name}", value)
    if none is not None:
        gain, p99 = ours.requests_per_s / none.requests_per_s, ours.ttft_p99_ms / none.ttft_p99_ms
        if pause_s > SHORT_OF_KV_S:
            verdict.tell(f"{row}.throughput_to_none", gain)
        else:
            verdict.at_least(f"{row}.throughput_to_none", gain, GAIN)
        if pause_s >= LONGEST_PAUSE_S:
            verdict.at_most(f"{row}.ttft_p99_to_none", p99, TTFT_P99)
        else:
            verdict.tell(f"{row}.ttft_p99_to_none", p99)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    rows: Mapping[float, int] | None
    arms: tuple[str, ...]
    tree: Path
    rounds: int
    conversations: int | None
    turns: int


def installed(options: Options) -> dict[str, Arm]:
    """Those arms that can be had. Raises BenchmarkError without AIPerf."""
    aiperf.install()
    known = arms(options.tree)
    chosen = {name: known[name] for name in options.arms}
    if "vllm_router" in chosen:
        try:
            peers.install_rust_peers()
        except BenchmarkError as error:
            print(f"without vllm_router: {error}", file=sys.stderr, flush=True)
            del chosen["vllm_router"]
    return chosen


def measure(options: Options, is_quick: bool, verdict: Verdict) -> None:
    chosen = installed(options)
    rows = options.rows or {pause: ROWS[pause] for pause in (QUICK_ROWS if is_quick else ROWS)}
    conversations = options.conversations or (QUICK_CONVERSATIONS if is_quick else 60)
    with ExitStack() as stack:
        engines, model = stock_engines(stack, REPLICAS)
        for number, (pause_s, concurrency) in enumerate(rows.items()):
            load = Load(
                pause_s=pause_s, concurrency=concurrency, conversations=conversations, turns=options.turns
            )
            said = f"{pause_s:g} s, {concurrency} at a time"
            found = run_row(
                chosen,
                load,
                engines,
                model,
                rounds=options.rounds,
                first=number,
                say=lambda line, said=said: print(f"{said}: {line}", file=sys.stderr, flush=True),  # type: ignore[misc]
            )
            judge(pause_s, found, verdict)


def rows_of(text: str) -> dict[float, int]:
    """`4,0.15`, or with the number of conversations at a time: `4:40,2:30`."""
    rows = {}
    for each in text.split(","):
        pause, _, concurrency = each.partition(":")
        if not concurrency and float(pause) not in ROWS:
            raise argparse.ArgumentTypeError(f"{pause} is no row of its own; write {pause}:CONVERSATIONS")
        rows[float(pause)] = int(concurrency) if concurrency else ROWS[float(pause)]
    return rows


def arms_of(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in arms()]:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(arms())}")
    return names


def tree_of(text: str) -> Path:
    tree = Path(text).resolve()
    if not (tree / "gateway/__main__.py").is_file():
        raise argparse.ArgumentTypeError(f"{text} is no checkout of Turnpike")
    return tree


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--rows",
        type=rows_of,
        help="pauses in seconds, such as 4,0.15; or with conversations at a time, 2:30",
    )
    add("--arms", type=arms_of, default=DEFAULT_ARMS, help=f"of {', '.join(arms())}")
    add(
        "--turnpike-tree",
        type=tree_of,
        default=ROOT,
        metavar="PATH",
        help="the checkout that Turnpike runs from",
    )
    add("--rounds", type=int, default=1, help="runs of each arm in a row, of which the median counts")
    add("--conversations", type=int, help="instead of 60, or of 40 if it is quick")
    add("--turns", type=int, default=10, help="of each conversation")
    return parser


def main(argv: list[str] | None = None) -> int:
    own = _parser()
    said, _ = own.parse_known_args(argv)
    options = Options(
        rows=said.rows,
        arms=said.arms,
        tree=said.turnpike_tree,
        rounds=said.rounds,
        conversations=said.conversations,
        turns=said.turns,
    )
    return judged(
        __file__,
        __doc__,
        lambda is_quick, verdict, _: measure(options, is_quick, verdict),
        quick="the longest and the shortest pause alone, with 40 conversations",
        about=f"AIPerf {aiperf.VERSION}, {len(os.sched_getaffinity(0))} cores",
        own=own,
        argv=argv,
    )


if __name__ == "__main__":
    sys.exit(main())
