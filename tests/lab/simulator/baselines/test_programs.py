"""Gateways that pause whole programs, event by event: Concur, ThunderAgent, Dynamo's program scheduler."""

import pytest

from gateway.core import events as ev
from lab.simulator.baselines.concur import ConcurRouter
from lab.simulator.baselines.thunderagent import DYNAMO, Limits, ProgramRouter
from tests.lab.simulator.baselines.router_play import Play, report


def concur() -> Play:
    return Play(None, kind=lambda sizes: ConcurRouter(sizes, 2))


def test_concur_adds_agents_while_the_cache_is_hardly_used_and_some_wait():
    play = concur()
    assert [play.asks(f"{name}/0") for name in "abc"] == [["a/0 on r0"], ["b/0 on r0"], []]
    assert play.hears(report(0.3)) == [], "between the thresholds nothing changes"
    assert play.hears(report(0.19)) == ["c/0 on r0"]
    assert play.hears(report(0.19)) == []
    assert [play.asks(f"{name}/0") for name in "de"] == [["d/0 on r0"], []], "four, not six: nobody waited"


def test_concur_halves_where_hits_are_gone_and_the_last_agents_pause_at_their_next_turn():
    play = concur()
    play.asks("a/0"), play.asks("b/0"), play.asks("c/0"), play.asks("d/0")
    assert play.hears(report(0.1)) == ["c/0 on r0", "d/0 on r0"]
    play.ends("a/0", prompt=100, cached=20)
    assert play.hears(report(0.6)) == [] == play.hears(report(0.6))
    assert play.asks("a/1") == ["a/1 on r0"]
    play.ends("c/0")
    assert play.asks("c/1") == ["c/1 on r0"], "a fifth of the prompts was found: enough"
    play.ends("c/1", prompt=100, cached=19)
    play.hears(report(0.5))  # no more than half is used: not too much
    play.ends("d/0", prompt=100, cached=19)
    play.hears(report(0.6))
    assert play.asks("c/2") == play.asks("d/1") == play.asks("e/0") == []
    assert play.over("b") == ["c/2 on r0"], "two are in: a and c"
    assert play.over("a") == ["d/1 on r0"]


def program(limits: Limits | None = None) -> Play:
    return Play(None, kind=lambda sizes: ProgramRouter(sizes, limits or Limits()))


def tick(play: Play, now: float) -> list[str]:
    return play.hears(ev.TimerFired(), now=now)


def test_thunderagent_pauses_whose_tools_run_and_resumes_what_fits():
    play = program()
    assert play.asks("a/0", 300) == ["a/0 on r0"]  # 400 with its buffer
    assert play.asks("b/0", 300) == ["b/0 on r0"]
    assert play.asks("c/0", 100) == ["c/0 on r0"]  # 1,000
    assert play.asks("d/0", 50) == []
    play.ends("a/0", prompt=300, output=200, now=1.0)
    assert tick(play, 4.9) == []
    # 1,200: a pauses. 400 are free; d is new, a does not ask, and behind d it does not fit.
    assert tick(play, 5.0) == ["d/0 on r0"]
    assert play.asks("a/1", 510, now=6.0) == []
    assert play.asks("e/0", 50, now=6.5) == [], "a waits already"
    assert play.over("b", now=7.0) == []
    # 350 are used. a needs 610 of 650, and asks: it comes before e, which needs 150.
    assert tick(play, 10.0) == ["a/1 on r0"]
    play.over("c", now=11.0)
    assert tick(play, 15.0) == ["e/0 on r0"]


def test_thunderagent_marks_what_runs_and_pauses_it_at_its_end():
    play = program()
    play.asks("a/0", 400)
    play.asks("b/0", 300)
    play.ends("b/0", prompt=300, output=250)
    assert play.asks("b/1", 560) == ["b/1 on r0"]
    assert tick(play, 5.0) == []  # 1,160: a is the smaller one
    play.ends("a/0", prompt=400, output=10, now=6.0)
    assert play.asks("a/1", 420, now=7.0) == []
    assert tick(play, 10.0) == []
    play.over("b", now=11.0)
    assert tick(play, 15.0) == ["a/1 on r0"]


def test_thunderagent_pauses_no_more_than_it_must():
    play = program()
    for name, tokens in (("a", 100), ("b", 200), ("c", 300)):
        play.asks(f"{name}/0", tokens)
    for name, tokens, output in (("a", 100, 0), ("b", 200, 0), ("c", 300, 250)):
        play.ends(f"{name}/0", prompt=tokens, output=output)
    assert tick(play, 5.0) == []  # 1,150; without a 950
    assert play.asks("b/1", 210, now=6.0) == ["b/1 on r0"]
    assert play.asks("a/1", 110, now=6.0) == []


def test_thunderagent_lets_nobody_wait_for_more_than_half_an_hour():
    play = program()
    play.asks("a/0", 700)
    assert play.asks("b/0", 300) == []
    assert tick(play, 1_799.0) == []
    assert tick(play, 1_804.0) == ["b/0 on r0"]


def test_thunderagent_resumes_the_new_before_those_whose_tools_run():
    play = program()
    play.asks("a/0", 300)
    play.asks("b/0", 500)
    play.ends("a/0", prompt=300, output=0)
    play.ends("b/0", prompt=500, output=60)
    assert tick(play, 5.0) == []  # 1,060: a, the smaller one, pauses
    assert play.asks("d/0", 600, now=6.0) == []
    play.over("b", now=7.0)
    assert tick(play, 10.0) == ["d/0 on r0"]  # either fits, and not both
    assert play.asks("a/1", 310, now=11.0) == []


def test_dynamo_pauses_until_its_target():
    play = program(DYNAMO)
    for name, tokens in (("a", 20), ("b", 200), ("c", 410)):
        assert play.asks(f"{name}/0", tokens) == [f"{name}/0 on r0"]
        play.ends(f"{name}/0", prompt=tokens, output=10)
    assert tick(play, 5.0) == []  # 960; without a 830, without b as well 520
    assert play.asks("b/1", 220, now=6.0) == []
    assert play.asks("c/1", 430, now=6.0) == ["c/1 on r0"]


def test_dynamo_pauses_earlier_and_further():
    for limits, then in ((Limits(), ["a/1 on r0"]), (DYNAMO, [])):
        play = program(limits)
        assert play.asks("a/0", 350) == ["a/0 on r0"]
        assert play.asks("b/0", 300) == ["b/0 on r0"]
        play.ends("a/0", prompt=350, output=110)  # 960 are used
        assert tick(play, 5.0) == []
        assert play.asks("a/1", 460, now=6.0) == then


@pytest.mark.parametrize(("tokens", "then"), [(350, ["a/1 on r0"]), (351, [])])
def test_dynamo_resumes_below_its_share(tokens, then):
    play = program(DYNAMO)
    for name, output in (("a", 100), ("b", 150), ("c", 200)):
        assert play.asks(f"{name}/0", 100) == [f"{name}/0 on r0"]
        play.ends(f"{name}/0", prompt=100, output=output)
    assert tick(play, 5.0) == []  # 1,050: a pauses, and 750 are used
    assert play.asks("a/1", tokens, now=6.0) == play.over("b", now=7.0) == []
    assert tick(play, 10.0) == then  # 400 are used, and 450 free until 0.85
