"""Overlap in whole simulations: prompts ahead while tools run, and tools that start while answers are
decoded."""

from collections import Counter
from random import Random

import msgspec
import pytest

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core.coordinator import Coordinator
from gateway.domain.records import PrefilledAhead
from gateway.domain.session_ids import numbered_ids
from lab.simulator.baselines.spec import PolicySpec
from lab.simulator.driver import ClientConfig
from lab.simulator.engine.options import EngineOptions
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.run import POOL
from lab.workload.trace.agents import AgentKind, ToolKind, session_of
from lab.workload.trace.format import Session, Thread, Tool, Turn
from lab.workload.trace.spread import Spread
from tests.lab.simulator.baselines.test_on_engines import foreseen
from tests.lab.simulator.test_run import OPTIONS, play
from tests.lab.simulator.worlds import IMPORTS_VLLM, Recorder

pytestmark = IMPORTS_VLLM
FLEET = FleetSpec(replicas=(ReplicaGroup(profile="little", kv_blocks=3000),), noise=0.05)
KIND = AgentKind(
    name="reader",
    turns=Spread(median=4, sigma=0.3, least=2, most=6),
    opening_tokens=300,
    reading_tokens=400,
    task_tokens=Spread(median=200, sigma=0.5),
    output_tokens=Spread(median=20),
    final_tokens=Spread(median=60),
    call_tokens=10,
    calls_behind=0.2,
    calls=Spread(median=2, sigma=0.5, most=5),
    result_share=Spread(median=0.3, sigma=0.2, most=0.5),
    tools=(
        ToolKind(name="find", lasts_s=Spread(median=2, sigma=0.7)),
        ToolKind(name="open", lasts_s=Spread(median=1, sigma=0.7)),
    ),
)


def orchestrated(count: int, *, every_s: float, seed: int) -> list[Session]:
    dice = Random(seed)
    made = [session_of(KIND, dice, id_=f"s{number}") for number in range(count)]
    times = sorted(dice.random() * count * every_s for _ in range(count))
    return [msgspec.structs.replace(each, arrival_s=at_s) for each, at_s in zip(made, times, strict=True)]


def brain(spec: FleetSpec) -> Coordinator:
    settings = {
        "pools": [{"name": POOL, "replicas": [{"url": f"http://{name}"} for name, _ in spec.each()]}],
        "prefill_ahead": {"enabled": True, "least_s": 0.0},
    }
    return assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())


@pytest.mark.parametrize(
    "options",
    [OPTIONS, msgspec.structs.replace(OPTIONS, plugin={})],
    ids=["stock", "plugin"],
)
@pytest.mark.parametrize("early", [False, True])
def test_what_went_ahead_is_found_and_nothing_is_lost(options: EngineOptions, early: bool):
    world, client = orchestrated(40, every_s=15.0, seed=1), ClientConfig(dispatches_early=early)
    totals, heard = play(world, FLEET, make_brain=brain, options=options, client=client)
    assert totals.sessions == 40 and not totals.failed_sessions
    ahead = [record for record in heard.records if isinstance(record, PrefilledAhead)]
    outcomes = Counter(record.outcome for record in ahead)
    assert outcomes["used"] + outcomes["late"] >= 20 and outcomes["used"] >= 5, outcomes
    assert not outcomes["failed"] and outcomes["lost"] <= 2, outcomes
    computed = sum((r.usage.prompt_tokens or 0) - (r.usage.cached_tokens or 0) for r in ahead)
    assert 0 < sum(record.used_tokens for record in ahead) <= computed <= totals.moved_tokens


def played(policy: str, world: list[Session]) -> Recorder:
    fleet = FleetSpec(replicas=(ReplicaGroup(profile="qwen3-14b@a100-80", kv_blocks=3000),))
    (variant,) = PolicySpec.parse(policy).variants
    plan = variant.plan(fleet, OPTIONS)
    told, client = foreseen(plan, world), ClientConfig(dispatches_early=plan.dispatches_early)
    return play(told, plan.fleet, make_brain=plan.make_brain, options=plan.options, client=client)[1]


def first_tokens_s(heard: Recorder) -> float:
    return sum(each.final_first_token_s - each.arrival_s for each in heard.sessions) / len(heard.sessions)


def test_both_mechanisms_shorten_the_way_to_the_final_answer_each_and_together():
    world = orchestrated(30, every_s=20.0, seed=2)
    names = ("oldest-first", "oldest-first+dispatch", "sutradhara", "sutradhara+dispatch")
    plain_s, dispatch_s, split_s, both_s = (first_tokens_s(played(name, world)) for name in names)
    assert both_s < dispatch_s < plain_s and both_s < split_s < plain_s


def with_tools(*tools: Tool) -> list[Session]:
    first = Turn(input_tokens=100, output_tokens=200, tools=tools)
    return [Session(id="s", threads=(Thread(turns=(first, Turn(input_tokens=320, output_tokens=5))),))]


def test_a_tool_starts_when_its_call_is_complete():
    world = with_tools(Tool(name="a", duration_s=30.0, called_at=0.25), Tool(name="b", duration_s=1.0))
    first, second = played("affinity+dispatch", world).turns
    step_s = (first.end_s - first.first_token_s) / 199
    assert second.arrival_s == pytest.approx(first.first_token_s + 49 * step_s + 30.0, abs=2 * step_s)
    first, second = played("affinity", world).turns
    assert second.arrival_s == pytest.approx(first.end_s + 30.0)


def test_an_answer_is_waited_for_though_its_tools_are_over():
    world = with_tools(Tool(name="a", duration_s=0.1, called_at=0.1))
    first, second = played("affinity+dispatch", world).turns
    assert second.arrival_s == first.end_s
