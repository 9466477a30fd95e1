"""Workloads that are made up: kinds of agents, when they arrive, in which shares; from the command line."""

import statistics
from collections import Counter
from itertools import islice, pairwise
from random import Random

import msgspec
import pytest

from gateway.__main__ import main
from lab.workload.trace.agent_kinds import AGENT_KINDS
from lab.workload.trace.agents import AgentKind, ToolKind, session_of
from lab.workload.trace.arrivals import poisson, recorded
from lab.workload.trace.composition import Arrival, Flow, compose
from lab.workload.trace.files import write_workload
from lab.workload.trace.format import Header, ServiceClass, Source, TurnRef, check
from lab.workload.trace.populations import Recorded, Tilted
from lab.workload.trace.presets import PRESETS
from lab.workload.trace.spread import Spread
from lab.workload.trace.synth import Request, synth
from tests.lab.workload.trace.made import session

PLAIN = AgentKind(
    name="plain",
    turns=Spread(median=4),
    opening_tokens=100,
    task_tokens=Spread(median=50),
    output_tokens=Spread(median=20),
    final_tokens=Spread(median=70),
    result_tokens=Spread(median=30),
    tools=(ToolKind(name="run", lasts_s=Spread(median=2), cpu_cores=1.5),),
    calls=Spread(median=2),
)


def _made(kind, seed=1):
    session = session_of(kind, Random(seed), id_="s")
    check(session)
    return session


def _other(**numbers):
    return msgspec.structs.replace(PLAIN, **numbers)


def test_too_long_a_context_is_replaced_by_a_summary():
    thread = _made(_other(context_max=260)).threads[0]
    assert [t.input_tokens for t in thread.turns] == [150, 230, 150, 150]
    assert [t.prefix_tokens for t in thread.turns] == [0, 170, 100, 100]


def test_sub_agents_are_threads_whose_last_answer_is_the_result():
    child = _other(name="child", turns=Spread(median=2), opening_tokens=10)
    session = _made(_other(sub_agent=child, sub_agent_part=1.0, turns=Spread(median=2)))
    assert len(session.threads) == 3
    assert [tool.starts_thread for tool in session.threads[0].turns[0].tools] == [1, 2]
    assert session.threads[0].turns[1].input_tokens == 170 + 2 * 70
    assert session.threads[1].shared_key == "agent/child"


def test_chance_is_an_argument():
    spread = _other(output_tokens=Spread(median=20, sigma=1))
    assert _made(spread, 1) == _made(spread, 1) != _made(spread, 2)


READER = _other(
    name="reader",
    reading_tokens=80,
    tools=(
        ToolKind(name="find", lasts_s=Spread(median=2)),
        ToolKind(name="open", lasts_s=Spread(median=2)),
    ),
    call_tokens=10,
    calls_behind=0.5,
)


def test_an_orchestrators_next_prompt_stands_under_a_text_for_the_tools_that_were_called():
    keys: dict[tuple[str, ...], set[str | None]] = {}
    for seed in range(40):
        session = _made(READER, seed)
        turns = session.threads[0].turns
        for at, (turn, later) in enumerate(pairwise(turns), start=1):
            called = tuple(sorted({tool.name for tool in turn.tools}))
            key, tokens = session.spoken_under(TurnRef(0, at))
            keys.setdefault(called, set()).add(key)
            assert tokens == 80
            assert later.result_tokens == 60 and later.known_tokens == later.input_tokens - 60
    assert keys == {
        ("find",): {"agent/reader/find"},
        ("open",): {"agent/reader/open"},
        ("find", "open"): {"agent/reader/find+open"},
    }


def test_calls_are_complete_one_after_the_other():
    turn = _made(READER).threads[0].turns[0]
    assert turn.output_tokens == 20 + 2 * 10
    assert [tool.called_at for tool in turn.tools] == [0.75, 1.0]
    assert [tool.called_at for tool in _made(PLAIN).threads[0].turns[0].tools] == [1.0, 1.0]


def _sessions(name, count=300):
    return [session_of(AGENT_KINDS[name], Random(n), id_=str(n)) for n in range(count)]


@pytest.mark.parametrize("name", AGENT_KINDS)
def test_sessions_of_every_kind_are_valid(name):
    for one in _sessions(name, 20):
        check(one)
        assert one.peak_tokens <= AGENT_KINDS[name].context_max
    assert msgspec.convert(msgspec.to_builtins(AGENT_KINDS[name]), AgentKind) == AGENT_KINDS[name]


@pytest.mark.parametrize(("name", "turns"), [("coding", 37), ("web", 18)])
def test_turns_are_as_many_as_the_source_says(name, turns):
    assert statistics.mean(session.turns for session in _sessions(name)) == pytest.approx(turns, rel=0.1)


def test_a_poisson_process_has_its_rate():
    times = [arrival.at_s for arrival in islice(poisson(3600, Random(1)), 5000)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(5000, rel=0.05)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert sum(gap > 1 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)


KNOWN = [session("a", arrival_s=10.0, tenant="x"), session("b", arrival_s=11.0), session("c", arrival_s=20.0)]


def test_recorded_arrivals_begin_at_0():
    assert list(recorded(KNOWN, per_hour=None, with_tenants=False)) == [
        Arrival(0.0),
        Arrival(1.0),
        Arrival(10.0),
    ]
    tenants = [arrival.tenant for arrival in recorded(KNOWN, per_hour=None, with_tenants=True)]
    assert tenants == ["x", "default", "default"]


def test_their_rate_can_be_changed_and_their_shape_stays():
    times = [arrival.at_s for arrival in recorded(KNOWN, per_hour=72, with_tenants=False)]
    assert times == pytest.approx([0, 10, 100])
    with pytest.raises(ValueError, match="no rate to change"):
        list(recorded([session("a"), session("b")], per_hour=72, with_tenants=False))
    assert list(recorded([], per_hour=72, with_tenants=False)) == []


SESSIONS = [session(str(n), tenant="old", service_class=ServiceClass.PROACTIVE) for n in range(5)]


def _flow(tenant, replace=True, **more):
    return Flow(tenant=tenant, population=Recorded(SESSIONS, replace=replace), **more)


def _composed(flows, count=2000, seed=1):
    return list(compose([Arrival(float(n)) for n in range(count)], flows, seed=seed))


def test_flows_come_by_their_shares():
    made = _composed([_flow("a", share=3), _flow("b")])
    assert Counter(s.tenant for s in made)["a"] / len(made) == pytest.approx(0.75, abs=0.03)
    assert len({s.id for s in made}) == len(made)
    assert [s.arrival_s for s in made] == [float(n) for n in range(2000)]


def test_classes_are_the_flows_or_the_sessions():
    made = _composed([_flow("a", service_class=ServiceClass.REACTIVE), _flow("b")])
    assert {(s.tenant, s.service_class) for s in made} == {
        ("a", ServiceClass.REACTIVE),
        ("b", ServiceClass.PROACTIVE),
    }


def test_chance_does_not_spread():
    """A flow's sessions stay the same whatever another flow's population is."""
    one = _composed([_flow("a"), _flow("b")])
    two = _composed([_flow("a"), Flow(tenant="b", population=Recorded(SESSIONS[:1], replace=True))])
    assert [s for s in one if s.tenant == "a"] == [s for s in two if s.tenant == "a"]
    assert one == _composed([_flow("a"), _flow("b")]) != _composed([_flow("a"), _flow("b")], seed=2)


POPULATION = [session(str(n), 100 * (n + 1)) for n in range(10)]


def _drawn(population, count, seed=1):
    rng = Random(seed)
    return [population.draw(rng) for _ in range(count)]


def test_each_recorded_session_once_in_an_order_of_chance():
    drawn = _drawn(Recorded(POPULATION, replace=False), 11)
    assert drawn.pop() is None
    assert sorted(drawn, key=lambda s: s.id) == POPULATION != drawn
    assert drawn == _drawn(Recorded(POPULATION, replace=False), 10)


def test_with_replacement_there_is_no_end():
    counts = Counter(s.id for s in _drawn(Recorded(POPULATION, replace=True), 1000))
    assert len(counts) == 10
    assert max(counts.values()) < 150
    assert _drawn(Recorded([], replace=True), 1) == [None]


@pytest.mark.parametrize("mean", [250, 550, 900])
def test_a_mean_can_be_asked_for(mean):
    def prompt(made):
        return made.threads[0].turns[0].input_tokens

    drawn = _drawn(Tilted(POPULATION, prompt, mean), 5000)
    assert statistics.mean(map(prompt, drawn)) == pytest.approx(mean, rel=0.05)
    assert len({s.id for s in drawn}) == 10


@pytest.mark.parametrize("mean", [100, 1000, 5000])
def test_but_not_one_that_no_choice_has(mean):
    with pytest.raises(ValueError, match=f"no choice of these sessions has a mean of {mean}"):
        Tilted(POPULATION, lambda made: made.peak_tokens - 10, mean)
    with pytest.raises(ValueError, match="no choice"):
        Tilted([], lambda made: 1, mean)


def _mixed(name, sessions=None, count=600):
    flows = PRESETS[name].flows(sessions, 1)
    made = list(compose([Arrival(float(n)) for n in range(count)], flows, seed=1))
    for one in made:
        check(one)
    return made


RECORDED = [session(str(n), *range(100, 100 + 10 * (n + 1), 10)) for n in range(9)]


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_sagas_tenants(recorded):
    made = _mixed("saga-tenants", recorded)
    counts = Counter(s.tenant for s in made)
    assert len(counts) == 10
    assert counts["heavy-1"] / len(made) == pytest.approx(16 / 92, abs=0.04)
    turns = {
        name: statistics.mean(s.turns for s in made if s.tenant.startswith(name))
        for name in ("heavy", "medium", "light")
    }
    expected = (100, 30, 10) if recorded is None else (8, 5, 2)
    assert list(turns.values()) == pytest.approx(expected, rel=0.1)
    assert PRESETS["saga-tenants"].per_hour == 92 * 60


@pytest.mark.parametrize("recorded", [None, RECORDED])
def test_agent_xpus_classes(recorded):
    counts = Counter((s.tenant, s.service_class.value) for s in _mixed("agent-xpu", recorded))
    assert set(counts) == {("person", "reactive"), ("background", "proactive")}
    assert counts["background", "proactive"] / 600 == pytest.approx(2 / 3, abs=0.05)


@pytest.fixture
def recording(tmp_path):
    made = [session(str(n), 100, 120, arrival_s=10.0 * n, tenant=f"t{n % 2}") for n in range(6)]
    file = str(tmp_path / "recording.jsonl")
    write_workload(file, Header(name="rec", sources=(Source(what="sessions", origin="a corpus"),)), made)
    return file


def _synthesised(**asked):
    header, sessions = synth(Request(**asked))
    return header, list(sessions)


def test_sessions_of_one_with_arrivals_of_a_poisson_process(recording):
    header, made = _synthesised(sessions=recording, per_hour=360, seed=3)
    assert sorted(s.id.split("~")[0] for s in made) == [str(n) for n in range(6)]
    assert made[-1].arrival_s > 10
    assert header.seed == 3
    assert [(s.what, s.origin, s.how) for s in header.sources] == [
        ("sessions", "workload rec", "each once, in a drawn order"),
        ("sessions", "a corpus", ""),
        ("arrivals", "a Poisson process", "360 an hour"),
    ]


def test_made_up_sessions_with_arrivals_of_a_recording(recording):
    header, made = _synthesised(agents="chat", arrivals=recording, tenants="arrivals")
    assert [s.arrival_s for s in made] == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
    assert [s.tenant for s in made] == ["t0", "t1"] * 3
    assert {s.agent_type for s in made} == {"chat"}
    assert header.sources[0].origin == "made-up agents"
    assert '"opening_tokens":300' in header.sources[0].how
    assert [(s.what, s.origin, s.how) for s in header.sources[1:]] == [
        ("arrivals", "a corpus", "as they were"),
        ("tenants", "composed", "those of the arrivals"),
    ]


def test_the_rate_is_that_of_the_arrivals_that_are_used(tmp_path, recording):
    made = [session(str(n), arrival_s=at_s) for n, at_s in enumerate((0, 1, 2, 90, 91))]
    few, many = str(tmp_path / "few.jsonl"), str(tmp_path / "many.jsonl")
    write_workload(few, Header(name="few"), made[:3])
    write_workload(many, Header(name="many"), made)
    for asked in ({"sessions": few}, {"agents": "chat", "count": 3}, {"sessions": recording, "count": 3}):
        header, found = _synthesised(arrivals=many, per_hour=360, **asked)
        assert [s.arrival_s for s in found] == [0.0, 10.0, 20.0]
        assert header.sources[-1].how == "the first 3, stretched to 360 an hour"
    assert _synthesised(sessions=few, arrivals=many, per_hour=360, replace=True)[1][-1].arrival_s == 40.0


def test_limits_and_replacement(recording):
    assert len(_synthesised(sessions=recording, count=4)[1]) == 4
    assert len(_synthesised(sessions=recording, count=40)[1]) == 6
    header, made = _synthesised(sessions=recording, count=40, replace=True)
    assert len({s.id for s in made}) == 40
    assert header.sources[0].how == "drawn with replacement"
    assert 40 < len(_synthesised(agents="chat", per_hour=3600, until_s=60.0)[1]) < 80


def test_tenants_by_number_and_by_share(recording):
    _, made = _synthesised(sessions=recording, replace=True, count=400, tenants="4")
    assert set(Counter(s.tenant for s in made)) == {f"tenant-{n}" for n in range(1, 5)}
    header, made = _synthesised(sessions=recording, replace=True, count=400, tenants="a=3,b=1")
    assert Counter(s.tenant for s in made)["a"] == pytest.approx(300, abs=30)
    assert header.sources[-1].how == "drawn: a=3,b=1"


def test_classes_and_deadlines(recording):
    header, made = _synthesised(sessions=recording, replace=True, count=400, proactive=0.25, deadline_s=9.0)
    assert sum(s.service_class is ServiceClass.PROACTIVE for s in made) == pytest.approx(100, abs=30)
    assert {s.deadline_s for s in made} == {9.0}
    assert [s.what for s in header.sources[-2:]] == ["classes", "deadlines"]
    _, made = _synthesised(preset="agent-xpu", count=300, proactive=1.0)
    assert {s.service_class.value for s in made} == {"reactive", "proactive"}
    _, made = _synthesised(sessions=recording, proactive=1.0)
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
        _synthesised(**asked)


def _synth(tmp_path, *arguments, out="out.jsonl.gz"):
    return main(["workload", "synth", *map(str, arguments), "-o", str(tmp_path / out)])


def test_a_workload_is_composed_and_shown(tmp_path, capsys):
    assert _synth(tmp_path, "--agents", "team", "--count", 5, "--per-hour", 60, "--kind", "turns=3") == 0
    assert capsys.readouterr().out == f"{tmp_path}/out.jsonl.gz: 5 session(s)\n"
    assert main(["workload", "show", str(tmp_path / "out.jsonl.gz")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("workload team, seed 0\n")
    assert "sessions  5: 5 team; 5 reactive" in shown


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for seed, out in ((1, "a.jsonl.gz"), (1, "b.jsonl.gz"), (2, "c.jsonl.gz")):
        assert _synth(tmp_path, "--preset", "saga-tenants", "--count", 9, "--seed", seed, out=out) == 0
    a, b, c = ((tmp_path / f"{name}.jsonl.gz").read_bytes() for name in "abc")
    assert a == b != c
