"""How many sessions at once get the most done: against a simulated cache and queue, and as admission asks."""

import heapq
import math
import random
from collections import OrderedDict
from itertools import pairwise

import msgspec
import pytest

from gateway.admission.throughput import Throughput, Turns, flow
from gateway.cost.estimator import IsolatedCost
from gateway.domain.decision import WaitReason
from tests.admission.applicants import Play, answered

LONG_PROMPTS = Turns(
    silences_s=[14.0 * share for share in (0.05, 0.16, 0.29, 0.43, 0.6, 0.8, 1.05, 1.39, 1.9, 3.0)],
    kept_s=14.0,
    fresh_s=0.7,
    full_prefill_s=3.9,
    decode_s=2.9,
    row_s=0.43,
    tokens=57_000,
)
"""A coding agent: computing its context anew takes as long as a third of a pause of its tools."""
SHORT_PROMPTS = msgspec.structs.replace(
    LONG_PROMPTS, fresh_s=0.03, full_prefill_s=0.1, decode_s=0.3, row_s=0.04, tokens=3_500
)


def lived(sessions: int, turns: Turns, *, kv_tokens: float, count: int = 4_000) -> float:
    """Turns a second: one engine takes prompts one after the other, and forgets who came least lately."""
    dice = random.Random(1)
    cached: OrderedDict[int, None] = OrderedDict()
    holds = int(kv_tokens / turns.tokens)
    due = [(dice.random() * turns.kept_s, each) for each in range(sessions)]
    heapq.heapify(due)
    free_s = 0.0
    for _ in range(count):
        at_s, session = heapq.heappop(due)
        began_s = max(at_s, free_s)
        found = session in cached
        cached[session] = None
        cached.move_to_end(session)
        if len(cached) > holds:
            cached.popitem(last=False)
        free_s = began_s + (turns.fresh_s if found else turns.full_prefill_s) + turns.row_s
        pause_s = dice.choice(turns.silences_s) * turns.kept_s / (sum(turns.silences_s) / 10)
        heapq.heappush(due, (free_s + turns.decode_s - turns.row_s + pause_s, session))
    return count / free_s


@pytest.mark.parametrize("turns", [LONG_PROMPTS, SHORT_PROMPTS])
@pytest.mark.parametrize("sessions", [4, 8, 11, 16, 24, 40])
def test_what_gets_done_is_what_a_simulation_says(turns, sessions):
    kv_tokens = 11.4 * turns.tokens
    found = flow(sessions, turns, kv_tokens=kv_tokens).turns_per_s
    assert found == pytest.approx(lived(sessions, turns, kv_tokens=kv_tokens), rel=0.2)


def test_as_many_as_fit_find_everything():
    found = flow(11, LONG_PROMPTS, kv_tokens=11.4 * 57_000)
    assert found.hits > 0.998 and found.lost < 2e-3


def test_hits_fall_with_sessions():
    hits = [flow(n, LONG_PROMPTS, kv_tokens=650_000).hits for n in range(1, 40)]
    assert all(more <= fewer + 2e-3 for fewer, more in pairwise(hits)) and hits[-1] < 0.02


def test_long_prompts_and_short_tools_have_a_cliff():
    """What was measured: 12 sessions were right, 16 cost 2.7 times as much."""
    done = {n: flow(n, LONG_PROMPTS, kv_tokens=650_000).turns_per_s for n in (11, 12, 16, 20)}
    assert done[12] > 2 * done[16] and done[11] > 2 * done[20]


def takes(turns: Turns) -> IsolatedCost:
    return IsolatedCost(
        seconds=turns.fresh_s + turns.decode_s,
        fresh_s=turns.fresh_s,
        full_prefill_s=turns.full_prefill_s,
        decode_s=turns.decode_s,
        row_s=turns.row_s,
    )


def taught(turns: Turns) -> Throughput:
    throughput = Throughput()
    for _ in range(20):
        for silent_s in turns.silences_s:
            throughput.saw_turn(
                takes(turns), silent_s=silent_s, kept_s=turns.kept_s, prompt_tokens=turns.tokens
            )
    return throughput


def most(turns: Turns, *, waiting: int, replicas: int = 1) -> Throughput:
    asked = taught(turns)
    tell(asked, 11 * replicas, waiting, turns.tokens, replicas)
    return asked


def tell(asked: Throughput, sessions: int, waiting: int, tokens: float, replicas=1, *, grown=1.0, fit=0):
    """All are alike, and those that are in fill the cache, or `fit` would."""
    asked.update(
        sessions=sessions,
        waiting=waiting,
        peaks=grown * waiting * tokens,
        replicas=replicas,
        held=sessions * tokens,
        demand=grown * sessions * tokens,
        budget=grown * (fit or sessions) * tokens,
    )


def test_how_large_sessions_are_does_not_hang_on_which_of_them_are_in():
    small = msgspec.structs.replace(LONG_PROMPTS, tokens=20_000.0)
    bounds = []
    for size, others in ((80_000.0, 20_000.0), (20_000.0, 80_000.0)):
        asked = taught(small)
        asked.update(sessions=1, waiting=1, peaks=others, replicas=1, held=size, demand=size, budget=90_000.0)
        bounds.append((asked.most, asked.knee_tokens))
    assert bounds[0] == bounds[1], "else the limit changes with each of its own effects"


@pytest.mark.parametrize("replicas", [1, 4])
def test_where_engines_have_the_time_everybody_may_be_in(replicas):
    found = most(SHORT_PROMPTS, waiting=20 * replicas, replicas=replicas)
    assert found.most == math.inf and 0.0 < found.lost < 0.3


def test_where_they_have_not_as_many_may_as_fit():
    assert most(LONG_PROMPTS, waiting=20).most == 0.0


def test_nobody_waits_where_that_would_gain_little():
    """One more than fit: with all of them nearly as much gets done, and nobody waits for a session's end."""
    pauses_s = [silent_s / 14.0 for silent_s in LONG_PROMPTS.silences_s]
    some = msgspec.structs.replace(
        SHORT_PROMPTS, silences_s=pauses_s, kept_s=1.0, full_prefill_s=0.15, decode_s=0.1, row_s=0.01
    )
    held = 11 * some.tokens
    fewer = max(flow(n, some, kv_tokens=held).turns_per_s for n in range(1, 12))
    assert 0.9 * fewer < flow(12, some, kv_tokens=0.85 * held).turns_per_s < fewer
    assert most(some, waiting=1).most == math.inf
    assert most(msgspec.structs.replace(some, full_prefill_s=0.3), waiting=1).most == 0.0


def test_where_they_have_it_for_some_more_these_may():
    """More than fit, and fewer than there are: with all of them engines would do nothing but compute anew."""
    pauses_s = [silent_s * 4.0 / 14.0 for silent_s in LONG_PROMPTS.silences_s]
    some = msgspec.structs.replace(
        SHORT_PROMPTS, silences_s=pauses_s, kept_s=4.0, full_prefill_s=0.4, decode_s=0.1, row_s=0.01
    )
    found = most(some, waiting=60)
    assert 12.0 < found.most < 40.0


def test_who_will_have_grown_takes_longer_to_compute():
    asked = taught(msgspec.structs.replace(SHORT_PROMPTS, full_prefill_s=0.3))
    bounds = []
    for grown in (1.0, 3.0):
        tell(asked, 11, 20, SHORT_PROMPTS.tokens, grown=grown)
        bounds.append(asked.most)
    assert bounds[0] > bounds[1]


def test_a_few_turns_say_nothing():
    asked = Throughput()
    for _ in range(3):
        asked.saw_turn(takes(SHORT_PROMPTS), silent_s=4.0, kept_s=4.0, prompt_tokens=1_000)
    tell(asked, 2, 50, 1_000.0)
    assert asked.most == 0.0 and asked.token_s is None


def full_pool(*, pause_s: float, full_prefill_s: float) -> Play:
    """Three sessions, which fill the cache, have made eight turns each."""
    play = Play().has(kv_tokens=10_000)
    alone = IsolatedCost(seconds=0.3, fresh_s=0.05, full_prefill_s=full_prefill_s, decode_s=0.25, row_s=0.04)
    outcome = msgspec.structs.replace(answered(tokens=3_000), alone=alone)
    for _ in range(8):
        for name in ("s0", "s1", "s2"):
            play.is_admitted(name)
            play.drain_queue()
        play.now += 0.5
        for name in ("s0", "s1", "s2"):
            play.end(name, outcome)
        play.later(pause_s)
    return play


def test_whoever_waits_enters_while_engines_have_the_time():
    play = full_pool(pause_s=4.0, full_prefill_s=0.1)
    play.is_admitted("new")
    assert "new" in {str(each.session) for each in play.running.values()} or "new" in play.later(2.0)


def test_and_waits_where_they_have_not():
    play = full_pool(pause_s=4.0, full_prefill_s=20.0)
    assert play.ask("new").reason in (WaitReason.KV_FULL, WaitReason.BEHIND_OTHERS, WaitReason.WINDOW_FULL)


def test_a_budget_that_was_lowered_says_nothing_of_what_holding_back_gains():
    """It seemed that two of three fit, so that as much got done with everybody in: the losses for which it
    was lowered let everybody in."""
    play = full_pool(pause_s=4.0, full_prefill_s=3.0)
    play.pool.window.budget *= 0.6
    play.ask("new")
    play.later(3.0)
    assert play.pool.limits.throughput.is_known and play.pool.limits.overcommit_sessions == 0.0


def test_first_turns_teach_nothing_of_what_would_be_lost():
    """All of their prompts is new, so letting everybody in seems to cost nothing."""
    tools = msgspec.structs.replace(
        LONG_PROMPTS, silences_s=[2.0 * each for each in LONG_PROMPTS.silences_s], kept_s=28.0
    )
    asked = taught(tools)
    first = msgspec.structs.replace(tools, fresh_s=tools.full_prefill_s)
    for _ in range(2_000):
        asked.saw_turn(takes(first), silent_s=None, kept_s=28.0, prompt_tokens=57_000)
    tell(asked, 11, 60, LONG_PROMPTS.tokens)
    assert asked.most == 0.0


@pytest.mark.parametrize("replicas", [1, 3])
def test_where_not_all_can_be_in_no_more_are_than_get_nearly_the_most_done(replicas):
    """Tools are quick: five keep the engine busy, so eleven would only be in each other's way."""
    quick = msgspec.structs.replace(
        LONG_PROMPTS, silences_s=[0.5] * 10, kept_s=0.5, row_s=0.5, decode_s=1.0, fresh_s=0.7
    )
    enough = most(quick, waiting=20 * replicas, replicas=replicas).knee_tokens / replicas / quick.tokens
    assert 3.0 < enough < 7.0
    done = [flow(n, quick, kv_tokens=11.4 * 57_000).turns_per_s for n in (enough, 11)]
    assert done[0] > 0.93 * done[1]


def test_where_all_just_fit_the_cache_is_not_filled_to_the_brim():
    assert _quick_tools(waiting=1).knee_tokens == math.inf, "with room to spare nobody is one too many"
    asked = _quick_tools(waiting=2)  # 10 of 11
    assert asked.knee_tokens == pytest.approx(0.85 * 11 * LONG_PROMPTS.tokens)
    many = _quick_tools(waiting=20)
    assert many.knee_tokens < asked.knee_tokens


def _quick_tools(*, waiting: int) -> Throughput:
    """Eight sessions of eleven that fit, which have less to do than an engine can."""
    asked = taught(msgspec.structs.replace(LONG_PROMPTS, silences_s=[0.5] * 10, kept_s=0.5))
    tell(asked, 8, waiting, LONG_PROMPTS.tokens, fit=11)
    return asked
