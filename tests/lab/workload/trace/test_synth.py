"""Composition as asked for: what comes of it, what the header says of it, what cannot be."""

from collections import Counter

import pytest

from lab.workload.trace.files import write_workload
from lab.workload.trace.format import Header, ServiceClass, Source
from lab.workload.trace.synth import Request, synth
from tests.lab.workload.trace.made import session


@pytest.fixture
def recorded(tmp_path):
    made = [session(str(n), 100, 120, arrival_s=10.0 * n, tenant=f"t{n % 2}") for n in range(6)]
    file = str(tmp_path / "recorded.jsonl")
    write_workload(file, Header(name="rec", sources=(Source(what="sessions", origin="a corpus"),)), made)
    return file


def _made(**asked):
    header, sessions = synth(Request(**asked))
    return header, list(sessions)


def test_sessions_of_one_with_arrivals_of_a_poisson_process(recorded):
    header, made = _made(sessions=recorded, per_hour=360, seed=3)
    assert sorted(s.id.split("~")[0] for s in made) == [str(n) for n in range(6)]
    assert made[-1].arrival_s > 10
    assert header.seed == 3
    assert [(s.what, s.origin, s.how) for s in header.sources] == [
        ("sessions", "workload rec", "each once, in a drawn order"),
        ("sessions", "a corpus", ""),
        ("arrivals", "a Poisson process", "360 an hour"),
    ]


def test_made_up_sessions_with_arrivals_of_a_recording(recorded):
    header, made = _made(agents="chat", arrivals=recorded, tenants="arrivals")
    assert [s.arrival_s for s in made] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert [s.tenant for s in made] == ["t0", "t1"] * 3
    assert {s.agent_type for s in made} == {"chat"}
    assert header.sources[0].origin == "made-up agents"
    assert '"opening_tokens":300' in header.sources[0].how
    assert [(s.what, s.origin, s.how) for s in header.sources[1:]] == [
        ("arrivals", "a corpus", "as they were"),
        ("tenants", "composed", "those of the arrivals"),
    ]


def test_the_rate_is_that_of_the_arrivals_that_are_used(tmp_path, recorded):
    made = [session(str(n), arrival_s=at_s) for n, at_s in enumerate((0, 1, 2, 90, 91))]
    few, many = str(tmp_path / "few.jsonl"), str(tmp_path / "many.jsonl")
    write_workload(few, Header(name="few"), made[:3])
    write_workload(many, Header(name="many"), made)
    for asked in ({"sessions": few}, {"agents": "chat", "count": 3}, {"sessions": recorded, "count": 3}):
        header, found = _made(arrivals=many, per_hour=360, **asked)
        assert [s.arrival_s for s in found] == [0.0, 10.0, 20.0]
        assert header.sources[-1].how == "the first 3, stretched to 360 an hour"
    assert _made(sessions=few, arrivals=many, per_hour=360, replace=True)[1][-1].arrival_s == 40.0


def test_limits_and_replacement(recorded):
    assert len(_made(sessions=recorded, count=4)[1]) == 4
    assert len(_made(sessions=recorded, count=40)[1]) == 6
    header, made = _made(sessions=recorded, count=40, replace=True)
    assert len({s.id for s in made}) == 40
    assert header.sources[0].how == "drawn with replacement"
    assert 40 < len(_made(agents="chat", per_hour=3600, until_s=60.0)[1]) < 80


def test_tenants_by_number_and_by_share(recorded):
    _, made = _made(sessions=recorded, replace=True, count=400, tenants="4")
    assert set(Counter(s.tenant for s in made)) == {f"tenant-{n}" for n in range(1, 5)}
    header, made = _made(sessions=recorded, replace=True, count=400, tenants="a=3,b=1")
    assert Counter(s.tenant for s in made)["a"] == pytest.approx(300, abs=30)
    assert header.sources[-1].how == "drawn: a=3,b=1"


def test_classes_and_deadlines(recorded):
    header, made = _made(sessions=recorded, replace=True, count=400, proactive=0.25, deadline_s=9.0)
    assert sum(s.service_class is ServiceClass.PROACTIVE for s in made) == pytest.approx(100, abs=30)
    assert {s.deadline_s for s in made} == {9.0}
    assert [s.what for s in header.sources[-2:]] == ["classes", "deadlines"]
    _, made = _made(preset="agent-xpu", count=300, proactive=1.0)
    assert {s.service_class.value for s in made} == {"reactive", "proactive"}
    _, made = _made(sessions=recorded, proactive=1.0)
    assert {s.service_class.value for s in made} == {"proactive"}


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({}, "say where sessions come from"),
        ({"sessions": "x", "agents": "chat"}, "say where sessions come from"),
        ({"preset": "agent-xpu", "agents": "chat"}, "a preset has its own agents"),
        ({"preset": "agent-xpu", "tenants": "2"}, "a preset has its own agents"),
        ({"preset": "agent-xpu"}, "say how many sessions"),
        ({"agents": "chat", "per_hour": 9}, "say how many sessions"),
        ({"agents": "chat", "count": 1, "tenants": "0"}, "tenants '0' are neither"),
        ({"agents": "chat", "count": 1, "tenants": "a=x"}, "tenants 'a=x' are neither"),
        ({"agents": "chat", "count": 1, "tenants": "a=0"}, "a share is more than 0"),
        ({"agents": "chat", "count": 1, "kind": ("turns",)}, "'turns' is not NAME=NUMBER"),
        ({"agents": "chat", "count": 1, "kind": ("odd=1",)}, "no number 'odd'"),
        ({"agents": "chat", "count": 1, "kind": ("name=1",)}, "no number 'name'"),
        ({"agents": "chat", "count": 1, "kind": ("turns.odd=1",)}, r"no number 'turns\.odd'"),
        ({"agents": "chat", "count": 1, "kind": ("asks_person=2",)}, "asks_person"),
    ],
)
def test_what_cannot_be_composed(asked, complaint):
    with pytest.raises(ValueError, match=complaint):
        _made(**asked)
