"""Execution graphs: what follows what, from more than the last step."""

import math
import random

from gateway.domain.request import NO_MANNER, Manner
from gateway.evaluation.markov import ALPHAS, Markov
from gateway.workflow import graph as graphs
from gateway.workflow.graph import Graph, GraphConfig
from gateway.workflow.kin import Kin, World
from gateway.workflow.mixture import Mixture
from gateway.workflow.nodes import END, TEXT
from gateway.workflow.walk import KINDS, Walk


def family() -> Kin:
    return Kin(World(half_life=4000.0), max_contexts=4096, half_life=4000.0)


def graph(kin: Kin | None = None) -> Graph:
    return Graph(GraphConfig(), Mixture(KINDS), kin or family())


def play(subject: Graph, steps: list[tuple[str, ...]], manner: Manner = NO_MANNER) -> Walk:
    """One conversation, learned step by step."""
    walk = Walk()
    for tools in steps:
        node = subject.nodes.number(tools)
        subject.learn(subject.forecast(walk), node)
        walk.step(node, manner, is_asked=False)
    return walk


def end(subject: Graph, walk: Walk) -> None:
    subject.learn(subject.forecast(walk), END)


def test_nothing_is_known_at_first():
    forecast = graph().forecast(Walk())
    assert forecast.opinions == [] and abs(sum(forecast.shares) - 1) < 1e-9


def test_a_plan_is_learned():
    subject = graph()
    plan = [("read",), ("edit",), ("test",), ()]
    for _ in range(30):
        end(subject, play(subject, plan))
    walk = play(subject, plan[:2])
    forecast = subject.forecast(walk)
    node, share = forecast.likeliest
    assert subject.nodes.tools(node) == ("test",) and share > 0.9
    assert subject.forecast(play(subject, plan)).of(END) > 0.9
    assert abs(sum(forecast.shares) - 1) < 1e-9
    assert forecast.of(999) == forecast.shares[-1]


def test_more_than_the_last_step_counts():
    """After `b` comes what came before `a`, or what its calls begin with."""
    subject, rng = graph(), random.Random(1)
    for _ in range(150):
        first = rng.choice(["x", "y"])
        end(subject, play(subject, [(first,), ("b",), (first,)]))
    for first in ("x", "y"):
        node, share = subject.forecast(play(subject, [(first,), ("b",)])).likeliest
        assert subject.nodes.tools(node) == (first,) and share > 0.8
    called = graph()
    for _ in range(150):
        opening = rng.choice([1, 2])
        walk = play(called, [("bash",)], Manner(opening=opening))
        called.learn(called.forecast(walk), called.nodes.number((f"after-{opening}",)))
    node, share = called.forecast(play(called, [("bash",)], Manner(opening=2))).likeliest
    assert called.nodes.tools(node) == ("after-2",) and share > 0.8


def test_retries_have_an_end():
    subject = graph()
    for _ in range(60):
        end(subject, play(subject, [("test",), ("test",), ("test",), ("fix",)]))
    for run, expected in ((1, "test"), (2, "test"), (3, "fix")):
        node, _ = subject.forecast(play(subject, [("test",)] * run)).likeliest
        assert subject.nodes.tools(node) == (expected,)


def test_it_is_better_than_guessing_by_frequency():
    subject, rng = graph(), random.Random(3)
    loss, steps = 0.0, 0
    for number in range(200):
        walk, last = Walk(), "a"
        for _ in range(10):
            last = {"a": "b", "b": "c", "c": "a"}[last] if rng.random() < 0.8 else rng.choice("abc")
            forecast = subject.forecast(walk)
            node = subject.nodes.number((last,))
            if number > 100:
                loss -= math.log(forecast.of(node))
                steps += 1
            subject.learn(forecast, node)
            walk.step(node, Manner(), is_asked=False)
    assert loss / steps < 0.65  # the source's own entropy is 0.55; that of frequencies alone, 1.1


def test_what_was_supposed_is_taken_back():
    subject = graph()
    walk = play(subject, [("a",)])
    before = subject.forecast(walk).of(END)
    gone = subject.forecast(walk)
    subject.suppose(gone, END)
    assert subject.forecast(walk).of(END) > before + 0.1
    subject.suppose(gone, END, -1.0)
    assert subject.forecast(walk).of(END) < 2 * before + 0.02


def test_edges_and_gaps():
    subject = graph()
    for _ in range(3):
        end(subject, play(subject, [("a",), ()]))
    edges = {(start, to): share for start, to, share, _ in subject.edges()}
    a = subject.nodes.number(("a",))
    assert edges[(-1, a)] == 1.0 and edges[(a, TEXT)] == 1.0 and edges[(TEXT, END)] == 1.0
    subject.saw_gap(a, 2.0)
    assert 1.0 < (subject.gaps[a].quantile(0.5) or 0) < 4.0


def test_pauses_and_what_is_left_are_the_familys_until_there_are_own_ones():
    kin = family()
    relative, young = graph(kin), graph(kin)
    a = kin.nodes.number(("a",))
    for _ in range(20):
        relative.saw_gap(a, 8.0)
        relative.saw_end(20)
    assert young.gaps_behind(a, enough=4.0) is kin.gaps[a] and young.gaps_behind(99, enough=4.0) is None
    assert young.remaining.steps(1, ends=0.0) > 15.0
    for _ in range(5):
        young.saw_gap(a, 1.0)
        young.saw_end(2)
    assert young.gaps_behind(a, enough=4.0) is young.gaps[a]
    assert young.remaining.steps(1, ends=0.0) < 3.0


def test_a_young_type_leans_on_its_family_and_an_old_one_on_itself():
    kin = family()
    for _ in range(10):
        relative = graph(kin)
        end(relative, play(relative, [("a",), ("b",)]))
    young, walk = graph(kin), Walk()
    a, b = (kin.nodes.number((name,)) for name in "ab")
    walk.step(a, NO_MANNER, is_asked=False)
    assert young.forecast(walk).of(b) > 0.8
    for _ in range(5):  # its own habit is another one
        young.learn(young.forecast(walk), a)
    assert young.forecast(walk).of(a) > 0.6
    while young.steps < graphs._YOUNG:
        young.learn(young.forecast(walk), a)
    steps = kin.evidence.frequent()[a]
    young.learn(young.forecast(walk), a)
    assert young.forecast(walk).of(a) > 0.95 and kin.evidence.frequent()[a] == steps


def test_what_nobody_of_the_family_did_is_guessed_from_the_world():
    """Agents without relatives end behind an answer without calls, as others do."""
    world = World(half_life=4000.0)
    for name in ("x", "y", "z"):
        for _ in range(4):
            subject = graph(Kin(world, max_contexts=64, half_life=4000.0))
            end(subject, play(subject, [(name,), ()]))
    stranger = graph(Kin(world, max_contexts=64, half_life=4000.0))
    answered, called = Walk(), Walk()
    answered.step(TEXT, NO_MANNER, is_asked=False)
    called.step(stranger.nodes.number(("q",)), NO_MANNER, is_asked=False)
    assert stranger.forecast(answered).of(END) > 0.8 and stranger.forecast(called).of(END) < 0.1


def test_how_an_answer_ends_says_whether_more_is_to_come():
    subject = graph()
    for _ in range(60):
        end(subject, play(subject, [()], Manner(close=1)))
        end(subject, play(subject, [(), ("a",)], Manner(close=2)))
    over, goes_on = Walk(), Walk()
    over.step(TEXT, Manner(close=1), is_asked=False)
    goes_on.step(TEXT, Manner(close=2), is_asked=False)
    assert subject.forecast(over).of(END) > 0.8 > 0.4 > subject.forecast(goes_on).of(END)


def test_how_an_answer_begins_and_ends_may_say_it_together():
    """`You're welcome … have a great day` is a goodbye, either of them alone is none."""
    subject = graph()
    for _ in range(60):
        for lead, close in ((1, 1), (2, 2)):
            end(subject, play(subject, [()], Manner(lead=lead, close=close)))
        for lead, close in ((1, 2), (2, 1)):
            end(subject, play(subject, [(), ("a",)], Manner(lead=lead, close=close)))
    ends = {}
    for lead, close in ((1, 1), (1, 2)):
        walk = Walk()
        walk.step(TEXT, Manner(lead=lead, close=close), is_asked=False)
        ends[close] = subject.forecast(walk).of(END)
    assert ends[1] > 0.8 > 0.2 > ends[2]


def test_a_limit_of_steps_is_learned():
    subject, rng = graph(), random.Random(2)
    for _ in range(100):
        end(subject, play(subject, [(rng.choice("abc"),) for _ in range(12)]))
    walk = play(subject, [(rng.choice("abc"),) for _ in range(11)])
    assert subject.forecast(walk).of(END) < 0.1
    walk.step(subject.nodes.number(("a",)), NO_MANNER, is_asked=False)
    assert subject.forecast(walk).of(END) > 0.6


def test_it_is_no_worse_than_a_plain_markov_model():
    """Even if nothing is seen often: what is certain is said at once."""
    for alpha in ALPHAS:
        subject, markov, loss, plain = graph(), Markov(alpha), 0.0, 0.0
        for _ in range(5):
            walk, history = Walk(), list[object]()
            for name in ("a", "b", "c", "d", "e"):
                node = subject.nodes.number((name,))
                forecast, (shares, other) = subject.forecast(walk), markov.shares(0, history)
                loss -= math.log(forecast.of(node))
                plain -= math.log(shares.get(name, other))
                subject.learn(forecast, node)
                markov.learn(0, history, name)
                walk.step(node, NO_MANNER, is_asked=False)
                history.append(name)
        assert loss < plain + math.log(7)


def test_many_tools_are_bounded():
    subject = graph()
    for number in range(300):
        play(subject, [(f"t{number}",), (f"t{number + 1}",)])
    assert len(subject.forecast(Walk()).shares) <= 13 and len(subject.nodes) <= 256
