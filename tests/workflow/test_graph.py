"""Execution graphs: what follows what, from more than the last step."""

import math
import random

from gateway.domain.request import NO_MANNER, Manner
from gateway.workflow.graph import KINDS, Graph, GraphConfig, Walk
from gateway.workflow.mixture import Mixture
from gateway.workflow.nodes import END, TEXT, Nodes


def graph() -> Graph:
    return Graph(GraphConfig(), Mixture(KINDS), Nodes())


def play(subject: Graph, steps: list[tuple[str, ...]], manner: Manner = NO_MANNER) -> Walk:
    """One conversation, learned step by step."""
    walk = Walk()
    for tools in steps:
        node = subject.nodes.number(tools)
        subject.learn(subject.forecast(walk), node)
        walk.step(node, manner, has_failed=False, is_asked=False)
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
            walk.step(node, Manner(), has_failed=False, is_asked=False)
    assert loss / steps < 0.65  # the source's own entropy is 0.55; that of frequencies alone, 1.1


def test_what_was_supposed_is_taken_back():
    subject = graph()
    walk = play(subject, [("a",)])
    before = subject.forecast(walk).of(END)
    subject.suppose(walk.contexts(), END)
    assert subject.forecast(walk).of(END) > before
    subject.suppose(walk.contexts(), END, -1.0)
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


def test_a_family_learns_beside():
    subject, family = graph(), graph()
    forecast = subject.forecast(Walk())
    family.observe(forecast.contexts, subject.nodes.number(("a",)))
    assert family.steps == 1 and family.forecast(Walk()).opinions


def test_many_tools_are_bounded():
    subject = graph()
    for number in range(300):
        play(subject, [(f"t{number}",), (f"t{number + 1}",)])
    assert len(subject.forecast(Walk()).shares) <= 13 and len(subject.nodes) <= 256
