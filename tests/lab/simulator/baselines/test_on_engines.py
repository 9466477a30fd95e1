"""Every baseline on a tiny engine, against times that were worked out by hand.

A step takes one second and computes at most 64 tokens, blocks have 16 tokens, and an answer is one token
unless it says more: a prompt of 64 new tokens takes one step, one of 65 to 128 takes two, and each further
token of an answer one more.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from lab.simulator.baselines.by_order import OldestFirst
from lab.simulator.baselines.plan import Plan
from lab.simulator.baselines.spec import PolicySpec
from lab.simulator.engine.options import EngineOptions
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.run import simulate
from lab.workload.trace.format import ServiceClass, Session
from tests.lab.simulator.worlds import IMPORTS_VLLM, Recorder
from tests.lab.workload.trace.made import session as chat

pytestmark = [pytest.mark.engine, *IMPORTS_VLLM]

PROFILE = str(Path(__file__).parent / "clock.toml")


def play(
    policy: str, *world: Session, blocks: int = 64, replicas: int = 1, at_once: int = 64
) -> dict[str, tuple[float, float]]:
    """When each turn first ran and when it ended, by `session/turn`. `blocks`: those that can be used."""
    # vLLM keeps a block for itself.
    group = ReplicaGroup(profile=PROFILE, count=replicas, kv_blocks=blocks + 1)
    fleet = FleetSpec(replicas=(group,))
    (variant,) = PolicySpec.parse(policy).variants
    options = EngineOptions(block_size=16, max_model_len=1024, max_num_seqs=at_once)
    return play_plan(variant.plan(fleet, options), *world)


def play_plan(plan: Plan, *world: Session) -> dict[str, tuple[float, float]]:
    recorder = Recorder()
    simulate(foreseen(plan, world), plan.fleet, plan.make_brain, options=plan.options, sink=recorder)
    return {
        f"{turn.session}/{turn.turn}": (round(turn.began_s, 6), round(turn.end_s, 6))
        for turn in recorder.turns
    }


def foreseen(plan: Plan, world: Iterable[Session]) -> Iterator[Session]:
    for session in sorted(world, key=lambda session: session.arrival_s):
        if plan.foresee is not None:
            plan.foresee(session)
        yield session


def talk(name: str, *prompts: int, at_s: float = 0.0, tool_s: float = 1.0, output: int = 1) -> Session:
    return chat(name, *prompts, arrival_s=at_s, tool_s=tool_s, output=output)


# --- the gateway's side ----------------------------------------------------------------------------------


def test_affinity_finds_what_round_robin_does_not():
    session = talk("a", 64, 128)
    # The second turn, at 2 s, finds 64 tokens where the first one ran, and none on the other replica.
    assert play("affinity", session, replicas=2) == {"a/0": (0, 1), "a/1": (2, 3)}
    assert play("stock", session, replicas=2) == {"a/0": (0, 1), "a/1": (2, 4)}


def test_a_session_cap_makes_the_next_wait_for_the_whole_session():
    world = talk("a", 64, 128, tool_s=10.0), talk("b", 64, at_s=0.5)
    assert play("affinity", *world)["b/0"] == (1, 2)
    assert play("session-cap:n=1", *world) == {"a/0": (0, 1), "a/1": (11, 12), "b/0": (12, 13)}


def test_a_request_cap_makes_the_next_wait_for_the_turn_alone():
    world = talk("a", 64, 128, tool_s=10.0, output=4), talk("b", 64, at_s=0.5)
    # Without a cap 63 tokens of b join the second step of a, and the last one its third.
    assert play("affinity", *world)["b/0"] == (1, 3)
    assert play("request-cap:n=1", *world)["b/0"] == (4, 5)


def test_a_footprint_lets_in_what_fits():
    # 12 blocks are 192 tokens, 0.75 of them 144. At 2 s a holds 65 tokens and b 64; c would make it more.
    world = [
        talk(name, 64, 80, tool_s=10.0, at_s=at_s) for name, at_s in (("a", 0.0), ("b", 1.0), ("c", 2.0))
    ]
    found = play("footprint:f=0.75", *world, blocks=12)
    # When a is over, at 12, c enters and fills a step; b comes back at the same time and gets the next one.
    assert found == {
        "a/0": (0, 1),
        "b/0": (1, 2),
        "a/1": (11, 12),
        "c/0": (12, 13),
        "b/1": (13, 14),
        "c/1": (23, 24),
    }
    # At their peaks they take 81 each: b does not fit beside a.
    assert play("footprint-peak:f=0.75", *world, blocks=12)["b/0"] == (12, 13)
    assert play("affinity", *world, blocks=12)["c/0"] == (2, 3)


# --- order in the engine ---------------------------------------------------------------------------------


def test_order_by_age_by_size_and_by_service():
    """One at a time. A long answer runs from 1 to 7 s; meanwhile others come to wait."""
    long = talk("long", 64, at_s=0.5, output=6)
    old = talk("old", 64, 128)  # its second turn, of 64 new tokens, comes at 2 s
    young = talk("young", 80, at_s=1.5)  # two steps, comes before it

    def order(policy, *world):
        found = play(policy, *world, at_once=1)
        assert found["old/0"] == (0, 1) and found["long/0"] == (1, 7)
        return found["old/1"], found["young/0"]

    assert order("affinity", old, long, young) == ((9, 10), (7, 9))
    assert order("oldest-first", old, long, young) == ((7, 8), (8, 10))
    assert order("smallest-first", old, long, young) == ((9, 10), (7, 9))  # 80 against 128
    late = msgspec.structs.replace(young, arrival_s=2.5)
    assert order("affinity", old, long, late) == ((7, 8), (8, 10))
    assert order("plas:levels=0", old, long, late) == ((9, 10), (7, 9))  # served for 1 s, and not at all
    assert order("plas:levels=2:first_s=2", old, long, late) == ((7, 8), (8, 10))  # both in the first queue
    assert order("smallest-first", old, long, late) == ((9, 10), (7, 9))
    background = msgspec.structs.replace(old, service_class=ServiceClass.PROACTIVE)
    assert order("reactive-first", background, long, late) == ((9, 10), (7, 9))
    assert order("reactive-first", old, long, late) == ((7, 8), (8, 10))


# --- what is kept, and what is overwritten ---------------------------------------------------------------


def test_belady_keeps_what_is_needed_first():
    """12 blocks: a and b leave 4 each, then c needs 8. a was used before b, and is needed again before b."""
    world = (
        talk("a", 64, 128, tool_s=10.0),
        talk("b", 64, 128, at_s=1.0, tool_s=100.0),
        talk("c", 128, at_s=5.0),
    )
    stock, belady = play("affinity", *world, blocks=12), play("belady", *world, blocks=12)
    assert stock["c/0"] == belady["c/0"] == (5, 7)
    assert stock["a/1"] == (11, 13)  # overwritten: all of it is computed again
    assert belady["a/1"] == (11, 12)
    assert belady["b/1"] == (102, 104)
    assert play("infinite-kv", *world, blocks=12)["b/1"] == (102, 103)


PAUSED_BEFORE_OVER = (
    talk("b", 64, 128, tool_s=20.0),  # pauses from 1 to 21 s
    talk("a", 64, at_s=1.0),  # over at 2 s
    talk("c", 128, at_s=5.0),  # needs 8 blocks of 12, when 4 are free
)


@pytest.mark.parametrize(
    ("policy", "ends_s"),
    [
        ("affinity", 23),  # b was used before a, so it is overwritten: two steps
        ("kvflow", 22),  # a never comes back, b is one step away
        ("belady", 22),
        ("continuum:ttl_s=30:skip_slow=0", 22),  # b is held until 31
        # Held until 1.5; so it was let go before a, which ended at 2, and stands before it in the queue.
        ("continuum:ttl_s=0.5:skip_slow=0", 23),
        ("saga", 22),  # nothing is known: held for 6 s
        ("continuum-dynamic", 22),  # little is known: 2 s, until 3; then it stands behind a
    ],
)
def test_a_conversation_that_pauses_is_kept_before_one_that_is_over(policy, ends_s):
    found = play(policy, *PAUSED_BEFORE_OVER, blocks=12)
    assert found["c/0"] == (5, 7)
    assert found["b/1"] == (21, ends_s)


@pytest.mark.parametrize(("shrinks", "ends_s"), [(False, 6), (True, 5)])
def test_a_chunk_shrinks_to_what_fits(shrinks, ends_s):
    """11 blocks. From 1 s on a decodes in 5 of them, until 4 s; b begins with 63 tokens in 4 others.

    At 2 s b needs 4 blocks for as many again, and 2 are free. With 33 tokens in these, 6 full blocks of b are
    in the cache when a is over, and one step does the other 32 tokens. If b is given up at once, 3 are."""

    class Policy(OldestFirst):
        shrinks_chunks = shrinks

    fleet = FleetSpec(replicas=(ReplicaGroup(profile=PROFILE, kv_blocks=12),))
    options = EngineOptions(block_size=16, max_model_len=1024, max_num_seqs=64, reserve_full_prompt=False)
    plan = Plan.of(fleet, options).with_policy(Policy, by_priority=True)
    found = play_plan(plan, talk("a", 64, output=4), talk("b", 128, at_s=0.5))
    assert found == {"a/0": (0, 4), "b/0": (1, ends_s)}
