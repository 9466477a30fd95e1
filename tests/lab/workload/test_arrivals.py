"""Sessions side by side in time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.workload.arrivals import START_SPREAD_S, interleave
from lab.workload.sessions import Session, Turn, rng_of
from tests.lab.workload.corpora import of_sessions

STEPS = st.lists(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=5),
    max_size=12,
)


def _session(name, steps, opened=None):
    def turns():
        if opened is not None:
            opened.append(name)
        at_s = 0.0
        for number, (gap, lasts) in enumerate(steps):
            at_s += gap
            yield Turn(at_s=at_s, lasts_s=lasts, body={"n": number}, thread="t")

    return Session(client="c", name=name, source=f"f:{name}", turns=turns())


def _end(exchange) -> float:
    assert exchange.t_end is not None
    return exchange.t_end


@given(STEPS, st.integers(1, 4), st.integers(0, 3))
def test_every_turn_arrives_once_and_in_order(all_steps, at_once, seed):
    def run():
        sessions = [_session(str(n), steps) for n, steps in enumerate(all_steps)]
        return list(interleave(sessions, rng=rng_of(seed, "arrivals"), at_once=at_once))

    exchanges = run()
    assert exchanges == run()
    assert [x.t for x in exchanges] == sorted(x.t for x in exchanges)
    found = of_sessions(exchanges)
    for n, steps in enumerate(all_steps):
        mine = found.get(str(n), [])
        assert [x.body["n"] for x in mine] == list(range(len(steps)))
        for x, (_, lasts) in zip(mine, steps, strict=True):
            assert _end(x) - x.t == pytest.approx(lasts, abs=1e-5)
    spans = [(m[0].t, max(_end(x) for x in m)) for m in found.values()]
    for begin, _ in spans:
        assert sum(b <= begin < e for b, e in spans) <= at_once


def test_sessions_are_opened_when_their_turn_comes():
    opened: list[str] = []
    sessions = (_session(str(n), [(0, 1), (5, 1)], opened) for n in range(100))
    exchanges = interleave(sessions, rng=rng_of(0, "arrivals"), at_once=3)
    first = [next(exchanges) for _ in range(3)]
    assert {x.truth.session for x in first} == {"0", "1", "2"}
    assert all(x.t <= START_SPREAD_S for x in first)
    assert len(opened) == 3


def test_what_a_turn_says_is_in_the_exchange():
    turn = Turn(
        at_s=0.0,
        lasts_s=1.0,
        body={"a": 1},
        path="/v1/responses",
        headers={"Authorization": "Bearer x", "User-Agent": "u"},
        status=503,
        response=[],
        finish="stop",
        response_id="resp_1",
        thread="main",
    )
    session = Session(client="c", name="s", source="f:1", turns=[turn])
    (exchange,) = interleave([session], rng=rng_of(0, "arrivals"), at_once=8)
    assert exchange.headers == {"Authorization": "<redacted>", "User-Agent": "u"}
    assert (exchange.path, exchange.status, exchange.response) == ("/v1/responses", 503, [])
    assert (exchange.finish, exchange.response_id, exchange.t_first_byte) == ("stop", "resp_1", None)
    truth = exchange.truth
    assert (truth.client, truth.session, truth.thread, truth.source) == ("c", "s", "main", "f:1")
