"""A simulation with memory for everybody, against a loop of its own that knows neither vLLM nor our engines.

First come, first served, chunked prefill, one token a step for everybody else: where nothing is ever
evicted, that is all that vLLM does, and how long it takes is the roofline's formula, written down once
more.
"""

import heapq
import itertools
import random

import pytest

from lab.simulator.engine.options import EngineOptions
from lab.simulator.fleet import FleetSpec, ReplicaGroup
from lab.simulator.run import simulate
from lab.workload.trace.format import Session
from tests.lab.simulator.baselines.turns import chat
from tests.lab.simulator.worlds import LITTLE, Recorder, load_little

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.timeout(600),
]  # of importing vLLM

BLOCK = 16
TOOL_S = 3.0


def _world(seed: int) -> list[Session]:
    dice = random.Random(seed)
    made, now = [], 0.0
    for number in range(25):
        now += dice.expovariate(1 / 6.0)
        prompts = [dice.randrange(200, 900)]
        while len(prompts) < dice.randrange(1, 6):
            prompts.append(prompts[-1] + 40 + dice.randrange(20, 400))
        made.append(chat(f"s{number}", *prompts, arrival_s=now, output=40, tool_s=TOOL_S))
    return made


def _step_s(new: int, products: float, context: int) -> float:
    flops, rate = 0.55 * 2e12, 50e9  # LITTLE's, after efficiency
    return 0.004 + max(2e9 * new / flops, 2e9 / rate) + 65_536 * products / flops + 8192 * context / rate


def _played(world: list[Session]) -> dict[str, float]:
    """When each session ends. A turn is [session, turn, computed, prompt, sampled]."""
    arrivals = [(session.arrival_s, number, number, 0) for number, session in enumerate(world)]
    heapq.heapify(arrivals)
    asked = itertools.count(len(world))  # of two at the same time, who asked first
    running: list[list[int]] = []
    waiting: list[list[int]] = []
    now, ends = 0.0, {}
    while arrivals or running or waiting:
        if not running and not waiting:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            _, _, number, at = heapq.heappop(arrivals)
            turns = world[number].threads[0].turns
            cached = (turns[at - 1].input_tokens + 40 - 1) // BLOCK * BLOCK if at else 0
            waiting.append([number, at, cached, turns[at].input_tokens, 0])
        room, batch = LITTLE.chunk_tokens, []
        running, waiting = running + waiting, []
        new, products, context = 0, 0.0, 0
        for turn in running:
            tokens = min(room, turn[3] - turn[2]) if turn[2] < turn[3] else min(room, 1)
            if not tokens:
                continue
            room, new = room - tokens, new + tokens
            if turn[2] < turn[3]:
                products += tokens * (turn[2] + tokens / 2)
            else:
                context += turn[2]
            batch.append((turn, tokens))
        now += _step_s(new, products, context)
        for turn, tokens in batch:
            turn[2] += tokens
            turn[4] += turn[2] >= turn[3]
            if turn[4] == 40:
                running.remove(turn)
                number, at = turn[:2]
                if at + 1 < len(world[number].threads[0].turns):
                    heapq.heappush(arrivals, (now + TOOL_S, next(asked), number, at + 1))
                else:
                    ends[world[number].id] = now
    return ends


@pytest.mark.parametrize("seed", range(3))
def test_both_end_every_session_at_the_same_time(seed):
    world = _world(seed)
    recorder = Recorder()
    fleet = FleetSpec(replicas=(ReplicaGroup(profile="little", kv_blocks=40_000),))
    options = EngineOptions(block_size=BLOCK, max_model_len=8192, max_num_seqs=256)
    simulate(world, fleet, options=options, sink=recorder, load_profile=load_little)
    assert {outcome.id: outcome.end_s for outcome in recorder.sessions} == pytest.approx(
        _played(world), rel=1e-6
    )
    busiest = max(sum(t.began_s <= at.began_s < t.end_s for t in recorder.turns) for at in recorder.turns)
    assert busiest >= 4  # else nobody would have been in anybody's way
