"""A cache that is kept in numbers: what it finds, what goes first, and that it is bounded."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from gateway.cost import shadow_cache
from gateway.cost.shadow_cache import ShadowCache


def test_what_ran_there_is_found_there_and_nowhere_else():
    cache = ShadowCache()
    cache.computed("a", "talk", 500, capacity=1000)
    assert cache.found("a", "talk", 500) == 500
    assert cache.found("a", "talk", 300) == 300, "no more than was there before"
    assert cache.found("b", "talk", 500) == 0
    cache.lost("a")
    assert cache.found("a", "talk", 500) == 0


def test_the_least_recently_used_goes_first_from_its_end():
    cache = ShadowCache()
    for name in ("old", "new"):
        cache.computed("a", name, 500, capacity=1000)
    cache.computed("a", "newest", 200, capacity=1000)
    assert cache.found("a", "old", 500) == 300
    assert cache.found("a", "new", 500) == 500
    cache.computed("a", "old", 600, capacity=1000)
    assert cache.found("a", "new", 500) == 200, "what is used again is new again"


def test_what_conversations_share_is_held_once_and_longest():
    cache = ShadowCache()
    cache.begins_with("one", "system prompt", 400)
    cache.begins_with("two", "system prompt", 400)
    cache.computed("a", "one", 500, capacity=800)
    assert cache.found("a", "two", 400) == 400
    cache.computed("a", "two", 600, capacity=800)
    assert cache.found("a", "one", 500) == 500 and cache.found("a", "two", 600) == 600
    cache.computed("a", "three", 300, capacity=800)
    assert cache.found("a", "one", 500) == 400, "its own part went, what it shares stayed"
    assert cache.found("a", "two", 600) == 500
    cache.computed("a", "four", 800, capacity=800)
    assert cache.found("a", "two", 600) == 0


def test_behind_a_gap_nothing_is_found():
    cache = ShadowCache()
    cache.begins_with("fork", "trunk", 400)
    cache.computed("a", "trunk", 700, capacity=None)
    cache.computed("a", "fork", 500, capacity=None)
    cache._replicas["a"].put("trunk", 100)
    assert cache.found("a", "fork", 500) == 100


def test_forks_of_forks_and_circles_end():
    cache = ShadowCache()
    for number in range(1000):
        cache.begins_with(number + 1, number, 10 * number)
    cache.computed("a", 1000, 10_000, capacity=None)
    assert cache.found("a", 1000, 10_000) == 10_000
    cache.begins_with("x", "y", 5)
    cache.begins_with("y", "x", 5)
    cache.computed("a", "x", 9, capacity=100)
    assert 0 <= cache.found("a", "x", 9) <= 9


def test_as_many_conversations_are_known_as_may_be(monkeypatch):
    monkeypatch.setattr(shadow_cache, "MAX_HELD", 10)
    monkeypatch.setattr(shadow_cache, "MAX_CONVERSATIONS", 10)
    cache = ShadowCache()
    for number in range(100):
        cache.begins_with(number, "all", 1)
        cache.computed("a", number, 5, capacity=None)
    assert len(cache._replicas["a"].held) <= 11 and len(cache._beginnings) == 10
    assert cache.found("a", 99, 5) == 5


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400)), max_size=60), st.integers(100, 1000))
def test_it_finds_what_a_list_of_tokens_would(turns, capacity):
    """An oracle that keeps each token."""
    cache = ShadowCache()
    tokens: OrderedDict[tuple[int, int], None] = OrderedDict()
    for name, size in turns:
        held = len([each for each in tokens if each[0] == name])
        assert cache.found("a", name, 10_000) == held
        for key in [key for key in tokens if key[0] == name]:
            del tokens[key]
        for at in reversed(range(size)):  # the end goes first
            tokens[name, at] = None
        while len(tokens) > capacity:
            tokens.popitem(last=False)
        cache.computed("a", name, size, capacity=capacity)
        assert cache._replicas["a"].tokens <= capacity


def test_of_replicas_that_come_and_go_the_first_is_forgotten(monkeypatch):
    monkeypatch.setattr(shadow_cache, "MAX_REPLICAS", 3)
    cache = ShadowCache()
    for number in range(4):
        cache.computed(f"pod-{number}", "talk", 100, capacity=None)
    assert [cache.found(f"pod-{number}", "talk", 100) for number in range(4)] == [0, 100, 100, 100]
