"""Digests of every decision in fourteen simulations: what must not change when code is only moved or removed.

Each line is a workload, a policy and a digest over the commands of the brain in their order (dispatches with
replica, time and hint; refusals; hints; prefills) and over what came of them.

    python -m benchmarks.decisions --json > before.json
    python -m benchmarks.decisions --json --against before.json

Exit status 1 if a digest differs.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.simulations.workloads import MIXES, composed, load
from gateway.config.profiles import load_profile
from gateway.core.commands import Command, Dispatch, Prefill, Refuse, RemotePrefill, SendHint, StopPrefill
from gateway.core.events import Event
from gateway.domain.ids import ReplicaId, RequestId
from lab.simulator.baselines.spec import parse_policies
from lab.simulator.brain import Brain
from lab.simulator.driver import ClientConfig
from lab.simulator.experiment.draw import Arrivals, draw
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.isolated import IsolatedTimes
from lab.simulator.run import simulate

_PROFILE = "qwen3-coder-30b-a3b@h100"
_SESSIONS = {"saga-tenants": 12, "mars-ilr3": 120, "sutradhara-fan-out": 120}
"""As many as are played within a minute or two."""
_PER_H = 900.0
"""Well above what one replica of this kind can serve."""
_POLICIES = ("turnpike", "turnpike+plugin", "turnpike+offload", "turnpike+plugin+offload")
_MORE = (("saga-tenants", "turnpike:ahead=on+plugin"), ("mars-ilr3", "turnpike:prefill=1"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, metavar="FILE", help="digests to compare with")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--jobs", type=int, default=2, help="simulations at a time (default 2)")
    arguments = parser.parse_args()
    tasks = [(mix, policy) for mix in MIXES for policy in _POLICIES] + list(_MORE)
    with tempfile.TemporaryDirectory() as folder:
        files = {mix: composed(mix, Path(folder), count=_SESSIONS[mix]) for mix in MIXES}
        with get_context("fork").Pool(arguments.jobs) as pool:
            digests = pool.starmap(digest_of, [(files[mix], policy, _SESSIONS[mix]) for mix, policy in tasks])
    found = {f"{mix} {policy}": digest for (mix, policy), digest in zip(tasks, digests, strict=True)}
    wanted = found
    if arguments.against is not None:
        before = json.loads(arguments.against.read_text())
        wanted = {name: each["value"] for name, each in before.items()}
    report = {
        name: {"value": digest, "target": wanted.get(name), "ok": digest == wanted.get(name)}
        for name, digest in found.items()
    }
    if not arguments.json:
        for name, each in report.items():
            print(f"{name:44} {each['value']}  {'' if each['ok'] else 'differs'}")
    print(json.dumps(report))
    return 0 if all(each["ok"] for each in report.values()) else 1


def digest_of(path: Path, policy: str, count: int) -> str:
    # A simulated engine has one connector: to its host's memory, or to the other engines.
    offload_gb, network_gbit_s = (0.0, 100.0) if "prefill=" in policy else (16.0, 0.0)
    fleet = FleetSpec(
        replicas=(
            ReplicaGroup(profile=_PROFILE, count=2, offload_gb=offload_gb, network_gbit_s=network_gbit_s),
        )
    )
    workload = load(path, fleet)
    sessions = draw(workload.sessions, arrivals=Arrivals.POISSON, per_h=_PER_H, count=count, seed=1009)
    plan = parse_policies(policy)[0].variants[0].plan(fleet, None)
    digest = blake2b(digest_size=12)
    profile, options = load_profile(_PROFILE), plan.options
    totals = simulate(
        sessions,
        plan.fleet,
        lambda each: Watched(plan.make_brain(each), digest),
        options=options,
        client=ClientConfig(max_retries=1_000_000),
        seed=1009,
        isolated=IsolatedTimes(
            profile,
            kv_blocks=profile.kv_tokens // options.block_size,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
        ),
    )
    digest.update(f"{totals.end_s!r} {totals.computed_tokens} {totals.cached_tokens}".encode())
    return digest.hexdigest()


class Watched:
    """A brain whose commands go into a digest."""

    def __init__(self, brain: Brain, digest: blake2b) -> None:
        self._brain, self._digest = brain, digest

    @property
    def live(self) -> Mapping[RequestId, Any]:
        return self._brain.live

    def handle(self, event: Event, *, now: float) -> list[Command]:
        commands = self._brain.handle(event, now=now)
        for line in decided(commands):
            self._digest.update(f"{now!r} {line}\n".encode())
        return commands

    def next_deadline_s(self) -> float | None:
        return self._brain.next_deadline_s()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._brain, name)


def decided(commands: list[Command]) -> Iterator[str]:
    for each in commands:
        if isinstance(each, Dispatch):
            known_as = each.session.session if each.session is not None else None
            where: ReplicaId = each.placement.replica
            yield f"dispatch {each.request} {known_as} {where} {each.waited_s!r} {each.hint}"
        elif isinstance(each, Refuse):
            yield f"refuse {each.request} {each.refusal.reason} {each.refusal.retry_after_s!r}"
        elif isinstance(each, SendHint):
            yield f"hint {each.replica} {each.hint}"
        elif isinstance(each, Prefill):
            yield f"prefill {each.session} {each.replica} {each.hint}"
        elif isinstance(each, RemotePrefill):
            yield f"leg {each.request} {each.replica} {each.limit_s!r}"
        elif isinstance(each, StopPrefill):
            yield f"stop {each.turn}"


if __name__ == "__main__":
    sys.exit(main())
