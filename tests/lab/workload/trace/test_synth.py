"""Composition as asked for: what comes of it, what the header says of it, what cannot be."""

from collections import Counter

import pytest

from lab.workload.trace.files import write_workload
from lab.workload.trace.format import Header, ServiceClass, Session, Source, Thread, Tool, Turn
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


def test_a_recordings_shape_at_another_rate(recorded):
    header, made = _made(agents="chat", arrivals=recorded, per_hour=3600)
    assert [s.arrival_s for s in made] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert header.sources[1].how == "all, stretched to 3600 an hour"


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


def test_without_arrivals_all_come_at_once(recorded):
    header, made = _made(sessions=recorded)
    assert {s.arrival_s for s in made} == {0.0}
    assert header.sources[-1].how == "all at 0"


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


def test_what_tools_ask_for_where_nothing_is_known(tmp_path):
    tools = (Tool(name="a"), Tool(name="b", cpu_cores=4), Tool(name="c", starts_thread=1))
    first, last = Turn(input_tokens=5, output_tokens=5, tools=tools), Turn(input_tokens=5, output_tokens=5)
    made = Session(id="s", threads=(Thread(turns=(first, last)), Thread(turns=(last,))))
    file = str(tmp_path / "tools.jsonl")
    write_workload(file, Header(name="tools"), [made])
    header, (found,) = _made(sessions=file, tool_cores=1.5)
    assert [tool.cpu_cores for tool in found.threads[0].turns[0].tools] == [1.5, 4, 0]
    assert header.sources[-1].how == "1.5 cores where none is known"


def test_presets_alone_and_of_recorded_sessions(recorded):
    header, made = _made(preset="saga-tenants", sessions=recorded, count=30)
    assert {s.id.split("~")[0] for s in made} <= {str(n) for n in range(6)}
    assert header.name == "saga-tenants"
    assert [s.what for s in header.sources] == ["mix", "sessions", "sessions", "arrivals"]
    assert header.sources[-1].how == "5520 an hour"
    assert _made(preset="saga-tenants", per_hour=10, count=1)[0].sources[-1].how == "10 an hour"


def test_made_up_agents_that_differ():
    _, made = _made(agents="chat", count=5, kind=("turns=3", "turns.sigma=0", "opening_tokens=7"))
    assert [s.turns for s in made] == [3] * 5
    assert {s.threads[0].shared_tokens for s in made} == {7}
    assert _made(agents="coding", count=1, kind=("asks_person=0.5",))[1]


def test_the_same_seed_gives_the_same():
    assert (
        _made(agents="team", count=3)
        == _made(agents="team", count=3)
        != _made(agents="team", count=3, seed=1)
    )


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
