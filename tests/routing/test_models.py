"""Names of the operator's: what each session draws."""

from collections import Counter
from math import sqrt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import PoolId, SessionId
from gateway.domain.model_choice import Target
from gateway.domain.session_ids import keyed_ids, numbered_ids
from gateway.routing.models import ModelConfig, NamedModel, named_models


def entry(name: str = "smart", **fields) -> ModelConfig:
    return msgspec.convert({"name": name, **fields}, ModelConfig)


def canary(weight: float, of: float = 100.0) -> NamedModel:
    targets = [{"model": "big", "pool": "a", "weight": of - weight}, {"model": "new", "weight": weight}]
    return NamedModel(entry(targets=targets))


@pytest.mark.parametrize("ids", [keyed_ids(b"k" * 32), numbered_ids()])
def test_a_canary_gets_its_share_of_sessions(ids):
    named = canary(5.0)
    drawn = Counter(named.draw(next(ids)).model for _ in range(2000))
    assert abs(drawn["new"] - 100) < 4 * sqrt(2000 * 0.05 * 0.95), drawn


def test_a_session_draws_the_same_wherever_it_is_asked():
    here, there = canary(50.0), canary(50.0)
    for session in map(SessionId, "abcdefgh"):
        assert here.draw(session) == there.draw(session) == here.draw(session)


def test_names_draw_by_themselves():
    targets = [{"model": "x"}, {"model": "y"}]
    one, two = NamedModel(entry("one", targets=targets)), NamedModel(entry("two", targets=targets))
    sessions = [SessionId(f"s-{number}") for number in range(100)]
    assert 20 < sum(one.draw(each) == two.draw(each) for each in sessions) < 80


@given(st.lists(st.sampled_from([0.0, 0.1, 1.0, 1e9]), min_size=1, max_size=6).filter(any), st.text())
def test_who_has_no_weight_is_drawn_by_nobody(weights, session):
    named = NamedModel(
        entry(targets=[{"model": f"m{at}", "weight": weight} for at, weight in enumerate(weights)])
    )
    for drawn in (named.draw(SessionId(session)), named.draw(None)):
        assert weights[int(drawn.model[1:])] > 0


def test_fallbacks_are_models_or_names_of_the_table():
    table = named_models(
        [
            entry("smart", targets=[{"model": "big"}], fallbacks=["plain", "small", "big"]),
            entry("small", targets=[{"model": "tiny", "pool": "p"}], fallbacks=["smart"]),
            entry("alone", fallbacks=["big"]),
        ]
    )
    options = table["smart"].options(SessionId("s"))
    assert options == [Target("big"), Target("plain"), Target("tiny", PoolId("p"))]
    assert set(options) <= set(table["smart"].all_targets())
    assert Target("tiny") not in table["smart"].all_targets()
    assert table["alone"].options(None) == [Target("alone"), Target("big")]
    assert named_models([]) == {}


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "needs targets, or fallbacks"),
        ({"targets": [{"model": "m", "weight": 0}]}, "has a weight"),
        ({"fallbacks": ["smart"]}, "fall back to itself"),
        ({"targets": [{"model": "two words"}]}, "matching regex"),
        ({"targets": [{"model": "é"}]}, "matching regex"),
        ({"targets": [{"model": "m\r\nx: y"}]}, "matching regex"),
        ({"targets": [{"model": "m", "weight": -1}]}, ">= 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields, complaint):
    with pytest.raises(msgspec.ValidationError, match=complaint):
        entry(**fields)
