"""What Turnpike costs, beside the gateways that a user would otherwise pick.

    python benchmarks/overhead.py [--quick] [--json]

Starts one fast upstream; in front of it Turnpike with all inference on and every record written, the Rust
routers `smg` and `vllm-router`, and nginx as the limit; and sends each the same traffic in interleaved
rounds: 2 KB requests on 1 and on 32 connections, growing conversations of 400 KB, streams of 64 events. A
gateway has one core to itself, the load and the upstream have another. Then 1,000 streams at once through
Turnpike alone.

Targets are ratios to the fastest Rust router as it comes, round by round, and the median of those. What is
faster than Turnpike is named, with by how much. The last line is one JSON object, name → {value, target,
ok}. Exit status: 0 if all targets hold, 1 if not, 2 if it could not be measured. `--quick` takes at most
two minutes, after the first time; the streams stay open for 20 s instead of five minutes. Needs Linux.
"""

import argparse
import contextlib
import os
import random
import resource
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks import peers
from benchmarks.open_streams import STREAMS, measure_open_streams
from benchmarks.peers import Gateway
from benchmarks.processes import (
    ROOT,
    BenchmarkError,
    Pinning,
    interpreter,
    machine,
    on_cpus,
    revision,
    upstream,
)
from benchmarks.shapes import SHAPES, conversations, measure
from benchmarks.tables import Results, disturbed, judge, print_shape
from benchmarks.verdict import Verdict

MISSING = 2


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    seconds: float
    """Of one measurement."""
    stream_s: float
    with_all_cores: bool
    """Also the Rust routers with every core of the machine, for information."""


FULL = Plan(rounds=7, seconds=2.0, stream_s=300.0, with_all_cores=True)
QUICK = Plan(rounds=3, seconds=0.5, stream_s=20.0, with_all_cores=False)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: two minutes")
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON object")
    parser.add_argument("--seed", type=int, default=1, help="of the conversations (default: 1)")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all that runs is ended
    quiet = open(os.devnull, "w") if options.json else contextlib.nullcontext(sys.stdout)  # noqa: SIM115
    try:
        with quiet as out, contextlib.redirect_stdout(out):
            verdict = run(QUICK if options.quick else FULL, options.seed)
    except BenchmarkError as error:
        print(f"overhead: {error}", file=sys.stderr)
        return MISSING
    print(verdict.as_json())
    return verdict.exit_status


def run(plan: Plan, seed: int) -> Verdict:
    _allow_many_connections()
    peers.install_rust_peers()
    pinning = Pinning.of_this_machine()
    _print_circumstances(plan, seed, pinning)
    verdict = Verdict()
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="overhead-") as name:
        results = _all_rounds(plan, seed, pinning, Path(name), verdict)
        for shape in SHAPES:
            print_shape(shape, results[shape.name], judge(shape, results[shape.name], verdict))
        times, of = disturbed(results)
        verdict.tell("disturbed_share", times / of)
        if times:
            print(f"\nNOT QUIET: in {times} of {of} measurements, others used the gateway's core noticeably")
        _open_streams(plan, seed, pinning, Path(name), verdict)
    print(f"load average at the end: {_load()}")
    print(f"missed: {', '.join(verdict.missed) or 'nothing'}")
    return verdict


def _all_rounds(plan: Plan, seed: int, pinning: Pinning, directory: Path, verdict: Verdict) -> Results:
    """Shape → gateway → one measurement for each round."""
    rng = random.Random(seed)
    agents = {shape.name: conversations(shape, rng) for shape in SHAPES}
    with contextlib.ExitStack() as stack:
        [backend] = stack.enter_context(upstream(pinning))
        gateways = _start_all(plan, backend, pinning, directory, stack)
        stack.enter_context(on_cpus(pinning.others))
        results: Results = {shape.name: {gateway.name: [] for gateway in gateways} for shape in SHAPES}
        for _ in range(plan.rounds):
            for shape in SHAPES:
                for gateway in gateways:
                    seen = measure(gateway, shape, agents[shape.name], pinning, seconds=plan.seconds)
                    results[shape.name][gateway.name].append(seen)
        ours = [seen for shape in SHAPES for seen in results[shape.name]["turnpike"]]
        verdict.at_most("failures", sum(seen.failures for seen in ours), 0)
        verdict.at_least("recognised_share", peers.recognised_share(gateways[0]), 0.9)
    return results


def _start_all(
    plan: Plan, backend: int, pinning: Pinning, directory: Path, stack: contextlib.ExitStack
) -> list[Gateway]:
    gateways = [stack.enter_context(peers.turnpike([backend], pinning, directory))]
    backends = [f"http://127.0.0.1:{backend}"]
    for package, lean in peers.LEAN.items():
        for flags, suffix in (((), ""), (lean, " lean")):
            peer = peers.rust_peer(package, backends, pinning, directory, flags=flags, suffix=suffix)
            gateways.append(stack.enter_context(peer))
        if plan.with_all_cores:
            peer = peers.rust_peer(package, backends, pinning.lifted(), directory, suffix=", all cores")
            gateways.append(stack.enter_context(peer))
    if peers.has_nginx():
        gateways.append(stack.enter_context(peers.nginx(backend, pinning, directory)))
    else:
        print("nginx is not installed, so the limit is not shown (Debian, Ubuntu: apt-get install nginx)")
    return [*gateways, Gateway(name="upstream itself", port=backend)]


def _open_streams(plan: Plan, seed: int, pinning: Pinning, directory: Path, verdict: Verdict) -> None:
    seen = measure_open_streams(seed, pinning, directory, seconds=plan.stream_s)
    print(f"\n{STREAMS} streams open for {plan.stream_s:.0f} s, 10 events/s each, through Turnpike")
    figures = {
        "memory, at most (MiB)": verdict.at_most("open_streams_rss_mib", seen.rss_mib, 250),
        "memory, growth (%)": verdict.at_most("open_streams_rss_growth_percent", seen.rss_growth_percent, 5),
        "event-loop lag, p99 (ms)": verdict.at_most("open_streams_lag_p99_ms", seen.lag_p99_ms, 50),
        "event-loop lag, max (ms)": verdict.tell("open_streams_lag_max_ms", seen.lag_max_ms),
        "gap between events, p99 (ms)": verdict.tell("open_streams_gap_p99_ms", seen.gap_p99_ms),
        "… of the worst stream": verdict.tell("open_streams_worst_gap_p99_ms", seen.worst_stream_gap_p99_ms),
        "gap between events, max (ms)": verdict.tell("open_streams_gap_max_ms", seen.gap_max_ms),
        "streams that were not whole": verdict.at_most("open_streams_failures", seen.failures, 0),
        "events": verdict.tell("open_streams_events", seen.events),
        "share of the core": verdict.tell("open_streams_core_share", seen.core_share),
        "… that strangers had": verdict.tell("open_streams_strangers_share", seen.strangers_share),
    }
    for what, figure in figures.items():
        held = (
            "" if figure.target is None else f"  target {figure.target}: {'holds' if figure.ok else 'MISSED'}"
        )
        print(f"  {what:<30}{figure.value:>12g}{held}")


def _print_circumstances(plan: Plan, seed: int, pinning: Pinning) -> None:
    ours = ", ".join(f"{name} {version(name)}" for name in ("uvloop", "httptools", "msgspec"))
    theirs = ", ".join(each.replace("==", " ") for each in peers.PACKAGES)
    print(f"turnpike {version('turnpike-gateway')} ({revision()}), {interpreter()}, {ours}")
    print(f"peers: {theirs}, nginx {peers.nginx_version()}; the Rust routers as they come (policy")
    print("cache_aware, log level info), and lean (policy round_robin, requests not logged)")
    print(f"machine: {machine()}; load average {_load()}")
    print(f"{pinning}; seed {seed}; {plan.rounds} rounds of {plan.seconds:g} s")


def _allow_many_connections() -> None:
    """For every process started from here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))


def _load() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
