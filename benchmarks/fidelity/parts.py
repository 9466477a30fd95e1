"""The arms that are compared: policies of admission, the engine plugin, prompts computed ahead."""

import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.fidelity.chats import APPENDING, SWITCHING, Chats
from benchmarks.fidelity.compare import SEED, Arm, compare
from benchmarks.gateway import Settings
from benchmarks.live import Completions, Engines, Kind, drawn, followed
from benchmarks.simulations.workloads import with_tools
from benchmarks.verdict import Verdict, percentile

CALIBRATION: Final = Kind(
    name="calibration",
    seed=SEED,
    turns=(3, 6),
    first_tokens=(1_000, 16_000),
    grows_by=(100, 1_500),
    output_tokens=(10, 150),
    tool_s=0.4,
    apart_s=0.6,
)
TEST: Final = Kind(
    name="test",
    seed=SEED + 1,
    turns=(5, 9),
    first_tokens=(9_000, 14_000),
    grows_by=(300, 1_400),
    output_tokens=(10, 60),
    tool_s=0.8,
    apart_s=0.3,
)
POLICIES: Final[dict[str, Settings]] = {
    "affinity": {"admission": {"shadow": True}},
    "affinity, cap of 2": {"admission": {"policy": "session-cap", "session_cap": 2}},
    "one turn a replica": {"admission": {"shadow": True, "max_running_per_replica": 1}},
}
PLUGIN: Final = ("--scheduler-cls", "lab.engine.logging_plugin.LoggingTurnpikeScheduler")
PLUGIN_ENV: Final = {"VLLM_PLUGINS": "turnpike"}
AHEAD: Final[dict[str, Settings]] = {"as it comes": {}, "ahead": {"prefill_ahead": {"enabled": True}}}
TOOL_S: Final = 2.5
"""Longer than a prompt takes."""
_USED: Final = 0.9
_SKIPPED: Final = 0.4
"""The part of the sessions, from the first on, by which the gateway learns."""


class _Servers:
    """Of one part; they end with `stack`."""

    def __init__(self, stack: ExitStack, chats: Chats, **how: Any) -> None:
        self._stack, self._chats, self._how = stack, chats, how

    def folder(self) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="fidelity-")))

    def __call__(self, flags: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Engines:
        scripts, at = self._chats.scripts, self.folder()
        return Engines(self._stack, at, scripts=scripts, flags=flags, env=env, **self._how)


def policies(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    count, rounds = (14, 1) if is_quick else (40, 2)
    chats = Chats(drawn(CALIBRATION, count), drawn(TEST, count))
    with ExitStack() as stack:
        start = _Servers(stack, chats, replicas=2, kv_blocks=1_300)  # two or three sessions at their longest
        engines = start()
        arms = {name: Arm(engines=engines, policy=policy) for name, policy in POLICIES.items()}
        at, sessions = start.folder(), (chats.calibration, chats.test)
        compare(arms, *sessions, at, verdict, tell, rounds=rounds, ask=chats.ask)
    chats.judge(verdict)


def plugin(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    """Where nobody waits (`affinity`) the engine alone decides whose KV cache is kept."""
    count, rounds = (8, 1) if is_quick else (12, 8)
    replace = msgspec.structs.replace
    calibration = replace(CALIBRATION, first_tokens=(500, 8_000), grows_by=(100, 1_000))
    test = replace(TEST, first_tokens=(4_000, 7_000), grows_by=(150, 700), apart_s=1.2)
    chats = Chats(drawn(calibration, count), drawn(test, count))
    longest = ("--max-model-len", "16384")  # no longer than what the cache holds, or vLLM does not start
    with ExitStack() as stack:
        start = _Servers(stack, chats, replicas=1, kv_blocks=650)
        stock, with_plugin = start(longest), start((*longest, *PLUGIN), PLUGIN_ENV)
        arms = {}
        for name, policy in (("affinity", POLICIES["affinity"]), ("turnpike", Settings())):
            arms[name] = Arm(engines=stock, policy=policy)
            arms[f"{name}+plugin"] = Arm(engines=with_plugin, policy=policy, plugin={})
        at, sessions = start.folder(), (chats.calibration, chats.test)
        compare(arms, *sessions, at, verdict, tell, rounds=rounds, ask=chats.ask)
        verdict.at_least("hints_followed", sum(map(followed, with_plugin.urls)), 1)
    chats.judge(verdict)


def overlap(is_quick: bool, verdict: Verdict, tell: Any) -> None:
    """Sessions that switch system prompts are judged apart from the others; arms are ranked by them."""
    count, rounds = (12, 1) if is_quick else (18, 2)
    # Engines are about as busy as in the test: servers read requests on the cores that compute.
    calibration = msgspec.structs.replace(
        CALIBRATION, first_tokens=(600, 4_000), grows_by=(50, 500), apart_s=2.0
    )
    test = [
        with_tools(each, duration_s=lambda _: TOOL_S)
        for kind in (SWITCHING, APPENDING)
        for each in drawn(kind, count)
    ]
    test.sort(key=lambda each: each.arrival_s)
    chats = Chats(drawn(calibration, count), test)
    with ExitStack() as stack:
        start = _Servers(stack, chats, replicas=2, kv_blocks=20_000)
        stock, with_plugin = start(), start(PLUGIN, PLUGIN_ENV)
        arms = {name: Arm(engines=stock, policy=policy) for name, policy in AHEAD.items()}
        arms |= {
            f"plugin {name}": Arm(engines=with_plugin, policy=policy, plugin={})
            for name, policy in AHEAD.items()
        }
        at, sessions, groups = (
            start.folder(),
            (chats.calibration, chats.test),
            (SWITCHING.name, APPENDING.name),
        )
        lived = compare(arms, *sessions, at, verdict, tell, rounds=rounds, ask=chats.ask, groups=groups)
        skipped = frozenset(each.id for each in test[: int(_SKIPPED * len(test))])
        for prefix in ("", "plugin "):
            without, ahead = (lived[f"{prefix}{name}"] for name in AHEAD)
            judge_ahead(prefix.replace(" ", "_"), without, ahead, skipped, verdict)
    chats.judge(verdict)


def judge_ahead(
    kind: str,
    without: Sequence[Completions],
    ahead: Sequence[Completions],
    skipped: frozenset[str],
    verdict: Verdict,
) -> None:
    """`used`: of the prefills that came to their end, those of which the next turn found nine tenths;
    `computed`: tokens of a switched turn that were not cached; `others`: first tokens and whole turns of
    agents that append. All with prefill ahead to without."""
    found, outcomes = prefills(ahead)
    used = sum(each >= _USED for each in found) / len(found) if found else None
    verdict.at_least(f"{kind}used", used, 0.9)
    verdict.tell(f"{kind}prefills_ended", len(found))
    for outcome in sorted(outcomes):
        verdict.tell(f"{kind}outcome_{outcome}", outcomes[outcome])
    (plain_switched, plain_others), (switched, others) = (
        [
            [
                turn
                for run in runs
                for turn in run.of(group.name).turns
                if turn.session not in skipped and (turn.turn or group is APPENDING)
            ]
            for group in (SWITCHING, APPENDING)
        ]
        for runs in (without, ahead)
    )
    computed = [
        statistics.mean(turn.prompt_tokens - turn.cached_tokens for turn in turns)
        for turns in (switched, plain_switched)
    ]
    verdict.at_most(f"{kind}computed", computed[0] / computed[1], 0.5)
    verdict.tell(f"{kind}computed_tokens_without", computed[1])
    for name, ours, theirs in (("switched", switched, plain_switched), ("others", others, plain_others)):
        first_s = [[turn.first_token_s - turn.arrival_s for turn in turns] for turns in (ours, theirs)]
        median, p99 = (percentile(first_s[0], q) / percentile(first_s[1], q) for q in (50, 99))
        verdict.tell(f"{kind}{name}_first_token_p50", median)
        if name == "others":
            verdict.at_most(f"{kind}{name}_first_token_p99", p99, 1.05)
        else:
            verdict.tell(f"{kind}{name}_first_token_p99", p99)
    whole_s = [
        statistics.mean(turn.end_s - turn.arrival_s for turn in turns) for turns in (others, plain_others)
    ]
    verdict.tell(f"{kind}others_turn_mean", whole_s[0] / whole_s[1])


def prefills(runs: Sequence[Completions]) -> tuple[list[float], Counter[str]]:
    """Of those that came to their end, the part that the next turn found; and how all of them ended."""
    found, outcomes = list[float](), Counter[str]()
    for run in runs:
        assert run.stream is not None
        records = [msgspec.json.decode(line) for line in run.stream.read_bytes().splitlines()]
        turns: dict[str, list[dict[str, Any]]] = {}
        for each in records:
            if each["type"] == "gpu_end":
                turns.setdefault(each["session"], []).append(each)
        for each in records:
            if each["type"] != "prefill_ahead":
                continue
            outcomes[each["outcome"]] += 1
            names = [turn["turn"] for turn in turns[each["session"]]]
            later = turns[each["session"]][names.index(each["turn"]) + 1 :]
            if (computed := each["usage"]["prompt_tokens"]) and later:
                found.append((later[0]["usage"]["cached_tokens"] or 0) / computed)
    return found, outcomes
