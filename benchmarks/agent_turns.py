"""What a turn of an agent costs, beside the gateways that a user would otherwise pick.

    python -m benchmarks.agent_turns [--quick] [--json] [--only SHAPE,…] [--against CHECKOUT]

Starts a fast upstream; in front of it Turnpike with all inference on and every record written, the Rust
routers `smg` and `vllm-router` with what costs them least, Turnpike as a bare relay (`turnpike lean`: what
its HTTP, its event loop and the kernel take), and nginx, which reads nothing; and sends each the same
traffic, A-B-B-A. Sixteen agents hold conversations of 100 KB, and such as grow from 10 to 400 KB, written as
their SDKs write them. Every request has a new last item, and every answer streams 300 tokens with a tool
call. What counts is the processor time that the gateway takes for a turn. Then 2 KB requests on 32
connections, and streams at full speed, which say more of HTTP than of agents. A gateway has one core to
itself; load and upstream have another.

Targets are ratios to the better router, round by round, and the median of those. `--against` adds another
checkout of Turnpike to the same rounds, and the ratios of this one to it, with intervals. Needs Linux.
"""

import argparse
import contextlib
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import peers
from benchmarks.command import judged
from benchmarks.peers import Gateway
from benchmarks.processes import ROOT, Pinning, allow_many_connections, interpreter, on_cpus, upstream
from benchmarks.shapes import EVENTS, SHAPES, Shape, Stream, conversations, measure
from benchmarks.tables import OURS, OURS_LEAN, Results, disturbed, judge, print_shape, values
from benchmarks.verdict import Interval, Verdict

BEFORE: Final = "before"
DEFAULT: Final = (
    "json_2kb_c32",
    "sse_64_c64",
    "turns_100kb_chat",
    "turns_100kb_messages",
    "turns_growing_chat",
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    seconds: float
    """Of one measurement."""


FULL: Final = Plan(rounds=4, seconds=2.5)
QUICK: Final = Plan(rounds=2, seconds=1.5)


def run(plan: Plan, options: argparse.Namespace, verdict: Verdict, tell: Callable[..., None]) -> None:
    allow_many_connections()
    peers.install_rust_peers()
    theirs = ", ".join(each.replace("==", " ") for each in peers.PACKAGES)
    tell(f"peers: {theirs} (policy round_robin, requests not logged), nginx {peers.nginx_version()}")
    pinning = Pinning.of_this_machine()
    ours = ", ".join(f"{name} {version(name)}" for name in ("uvloop", "httptools", "msgspec"))
    tell(f"{interpreter()}, {ours}; {pinning}; {plan.rounds} rounds of {plan.seconds:g} s")
    chosen = options.only.split(",") if options.only else DEFAULT
    shapes = [each for each in SHAPES if each.name in chosen]
    cache = ROOT / ".cache"
    cache.mkdir(exist_ok=True)
    results: Results = {}
    with tempfile.TemporaryDirectory(dir=cache, prefix="agent-turns-") as name:
        for stream in dict.fromkeys(each.stream or Stream(EVENTS, 0.0) for each in shapes):
            alike = [each for each in shapes if (each.stream or Stream(EVENTS, 0.0)) == stream]
            seen = _rounds(plan, alike, stream, options, pinning, Path(name), verdict)
            for shape in alike:
                judge(shape, seen[shape.name], verdict)
                print_shape(shape, seen[shape.name], tell)
            results |= seen
    if options.against:
        _compare(results, verdict)
    times, of = disturbed(results)
    verdict.tell("disturbed_share", times / of)
    failures = [m.failures for each in results.values() for m in each[OURS]]
    verdict.at_most("failures", sum(failures), 0)


def _rounds(
    plan: Plan,
    shapes: Sequence[Shape],
    stream: Stream,
    options: argparse.Namespace,
    pinning: Pinning,
    directory: Path,
    verdict: Verdict,
) -> Results:
    """Shape → gateway → one measurement for each round."""
    with contextlib.ExitStack() as stack:
        engine = upstream(pinning, events=stream.tokens, interval_ms=stream.interval_ms)
        [backend] = stack.enter_context(engine)
        gateways = _start_all(backend, options, pinning, directory, stack)
        stack.enter_context(on_cpus(pinning.others))
        results: Results = {shape.name: {each.name: [] for each in gateways} for shape in shapes}
        for shape in shapes:
            # Each gateway has agents of its own, whose conversations go on from round to round.
            agents = {each.name: conversations(shape, random.Random(options.seed)) for each in gateways}
            for each in gateways:
                measure(each, shape, agents[each.name], pinning, seconds=plan.seconds / 4)
            for number in range(plan.rounds):
                for each in gateways if number % 2 else reversed(gateways):
                    seen = measure(each, shape, agents[each.name], pinning, seconds=plan.seconds)
                    results[shape.name][each.name].append(seen)
        kind = f"at_{stream.interval_ms:g}_ms"
        recognised = peers.recognised_share(gateways[0])
        if stream.interval_ms:
            verdict.at_least(f"recognised_share_{kind}", recognised, 0.9)
        else:  # of many sessions: a slow machine hardly gets to the second request of each
            verdict.tell(f"recognised_share_{kind}", recognised)
        verdict.at_most(f"waits_{kind}", peers.waits(gateways[0]), 0)
    return results


def _start_all(
    backend: int, options: argparse.Namespace, pinning: Pinning, directory: Path, stack: contextlib.ExitStack
) -> list[Gateway]:
    gateways = [stack.enter_context(peers.turnpike([backend], pinning, directory))]
    if options.against is not None:
        before = peers.turnpike([backend], pinning, directory, name=BEFORE, tree=options.against)
        gateways.append(stack.enter_context(before))
    lean_one = peers.turnpike([backend], pinning, directory, name=OURS_LEAN, is_relay=True)
    gateways.append(stack.enter_context(lean_one))
    for package, flags in peers.LEAN.items():
        url = f"http://127.0.0.1:{backend}"
        gateways.append(stack.enter_context(peers.rust_peer(package, [url], pinning, directory, flags=flags)))
    if peers.has_nginx():
        gateways.append(stack.enter_context(peers.nginx(backend, pinning, directory)))
    return [*gateways, Gateway(name="upstream itself", port=backend)]


def _compare(results: Results, verdict: Verdict) -> None:
    for name, rounds in results.items():
        for what, pairs in (
            ("", zip(values(rounds[OURS]), values(rounds[BEFORE]), strict=True)),
            ("_cpu", zip(*([m.cpu_us for m in rounds[each]] for each in (OURS, BEFORE)), strict=True)),
        ):
            interval = Interval.of([ours / theirs for ours, theirs in pairs])
            for kind in ("mean", "low", "high"):
                verdict.tell(f"{name}{what}.{kind}", getattr(interval, kind))


def main(argv: list[str] | None = None) -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument(
        "--only",
        default="",
        help=f"of {', '.join(each.name for each in SHAPES)}; default: {', '.join(DEFAULT)}",
    )
    own.add_argument("--against", type=Path, help="another checkout of Turnpike, in the same rounds")
    own.add_argument("--rounds", type=int, help="of each shape")
    own.add_argument("--seed", type=int, default=1, help="of the conversations (default: 1)")
    options, _ = own.parse_known_args(argv)

    def measured(is_quick: bool, verdict: Verdict, tell: Any) -> None:
        plan = QUICK if is_quick else FULL
        run(msgspec.structs.replace(plan, rounds=options.rounds or plan.rounds), options, verdict, tell)

    return judged(
        __file__, __doc__, measured, quick=f"{QUICK.rounds} rounds of {QUICK.seconds:g} s", own=own, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
