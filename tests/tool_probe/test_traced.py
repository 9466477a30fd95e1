"""Agents' own spans against the calls that were seen: each explains one call, and teaches once."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.ids import RequestId, SessionId, TenantId
from gateway.domain.request import ToolCall
from gateway.domain.tool_span import ToolSpan
from gateway.tool_probe import traced as module
from gateway.tool_probe.boundaries import ToolBoundaries, ToolBoundariesConfig
from gateway.tool_probe.calls import Asking, ToolRun
from gateway.tool_probe.traced import TracedCallsConfig, Verdict

T, U = TenantId("t"), TenantId("u")
TRACE, OTHER_TRACE = "0af7651916cd43dd8448eb211c80319c", "f" * 32
AGENT = 7


class World:
    """Sessions of one agent type; `ran` is what was learned: tools' names, and how long they took."""

    def __init__(self, **settings: float) -> None:
        spans = msgspec.convert({"wait_s": 15.0, **settings}, TracedCallsConfig)
        self.tools = ToolBoundaries(ToolBoundariesConfig(spans=spans))
        self.ran: list[tuple[tuple[str, ...], float]] = []
        self.runs: list[ToolRun] = []

    def calls(
        self,
        *ids: str,
        at: float,
        session: str = "s",
        tenant: TenantId = T,
        trace: str = "",
        asked_s: float | None = None,
    ) -> None:
        """`a:bash` is a call of bash, by the id a."""
        calls = [ToolCall(each.partition(":")[0], each.partition(":")[2]) for each in ids]
        asking = Asking(tenant, trace, at if asked_s is None else asked_s)
        self.tools.opened(SessionId(session), RequestId(f"r-{at}"), calls, asking=asking, now=at)

    def results(self, *ids: str, at: float, session: str = "s") -> None:
        closed = self.tools.results_came(SessionId(session), ids, now=at)
        assert closed is not None
        run = ToolRun(SessionId(session), AGENT, closed.names, closed.duration_s)
        self._learn(self.tools.traced.closed(closed.calls, run, now=at))

    def told(self, *spans: ToolSpan, at: float, tenant: TenantId | None = None) -> list[str]:
        """The ids of the calls that these explain."""
        calls, runs = self.tools.told(spans, tenant, now=at)
        self._learn(runs)
        return [call.id for call in calls]

    def _learn(self, runs: Sequence[ToolRun]) -> None:
        self.runs += runs
        self.ran += [(run.names, round(run.duration_s, 6)) for run in runs]

    def verdicts(self) -> dict[Verdict, int]:
        return dict(self.tools.traced.verdicts)


def span(call: str | None, took_s: float, name: str = "bash", **fields) -> ToolSpan:
    return ToolSpan(name=name, duration_s=took_s, call=call, **fields)


def a_world_whose_agent_sends_spans(**settings: float) -> World:
    world = World(**settings)
    world.calls("first:bash", at=-20.0)
    assert world.told(span("first", 1.0), at=-18.0) == ["first"]
    world.results("first", at=-17.0)
    assert world.ran == [(("bash",), 1.0)]
    world.ran.clear()
    world.runs.clear()
    return world


def test_spans_before_the_results_tell_parallel_calls_apart():
    world = World()
    world.calls("a:make", "b:read", at=0.0)
    assert world.told(span("b", 0.5, "read"), at=5.0) == ["b"] and not world.ran
    assert world.told(span("a", 59.0, "make"), at=59.5) == ["a"] and not world.ran
    world.results("a", "b", at=60.0)
    assert sorted(world.ran) == [(("make",), 59.0), (("read",), 0.5)]


def test_spans_after_the_results_tell_them_apart_too():
    world = a_world_whose_agent_sends_spans()
    world.calls("a:make", "b:read", at=0.0)
    world.results("a", "b", at=60.0)
    assert not world.ran
    assert world.told(span("b", 0.5, "read"), span("a", 59.0, "make"), at=65.0) == ["b", "a"]
    assert world.ran == [(("read",), 0.5), (("make",), 59.0)]
    world.calls("c:make", at=100.0)
    world.results("c", at=200.0)  # time passes; the phase before teaches no second time
    assert len(world.ran) == 2


def test_who_never_sent_a_span_is_learned_from_at_once_and_once():
    world = World()
    world.calls("a:bash", at=0.0)
    world.results("a", at=4.0)
    assert world.ran == [(("bash",), 4.0)]
    assert world.told(span("a", 1.0), at=6.0) == []  # nobody remembered it
    world.calls("b:bash", at=10.0)
    world.results("b", at=14.0)
    assert world.ran[1:] == [(("bash",), 4.0)]
    assert world.told(span("b", 1.0), at=16.0) == ["b"]  # told, but it was learned from already
    assert len(world.ran) == 2
    world.calls("c:bash", at=20.0)
    world.results("c", at=24.0)
    assert len(world.ran) == 2  # its span is waited for


def test_a_phase_without_a_span_is_learned_from_when_none_can_come_any_more():
    world = a_world_whose_agent_sends_spans(wait_s=10.0)
    world.calls("a:make", "b:read", at=0.0)
    world.results("a", "b", at=6.0)
    world.told(span("unknown", 1.0), at=15.9)
    assert not world.ran
    world.told(span("unknown", 1.0), at=16.0)
    assert world.ran == [(("make", "read"), 6.0)]
    assert world.told(span("a", 3.0), at=16.1) == [] and len(world.ran) == 1


def test_what_a_phase_teaches_is_what_its_spans_say_and_no_more():
    world = a_world_whose_agent_sends_spans()
    world.calls("a:make", "b:read", at=0.0)
    world.results("a", "b", at=60.0)
    world.told(span("a", 59.0), at=65.0)
    world.told(at=100.0)
    assert world.ran == [(("make",), 59.0)]  # not that reading takes a minute
    assert len(world.tools.traced) == 0


def test_an_agent_that_sends_no_more_spans_is_not_waited_for():
    world = a_world_whose_agent_sends_spans()
    world.calls("a:bash", at=1000.0)
    world.results("a", at=1003.0)
    assert world.ran == [(("bash",), 3.0)]


def test_a_span_comes_twice():
    world = World()
    known = span("a", 1.0, trace=TRACE, span="1")
    world.calls("a:bash", at=0.0)
    assert world.told(known, known, at=2.0) == ["a"]
    assert world.told(known, at=3.0) == []
    assert world.verdicts() == {Verdict.TAKEN: 1, Verdict.REPEATED: 2}


def test_without_an_id_trace_and_name_lead_to_the_call():
    world = World()
    world.calls("a:bash", "b:bash", "r-0.0#2:read", at=0.0, trace=TRACE)
    world.calls("c:bash", at=0.0, session="other", trace=OTHER_TRACE)
    one, two, three = (span(None, float(n), trace=TRACE, span=str(n)) for n in (1, 2, 3))
    assert world.told(one, one, two, three, at=5.0) == ["a", "b"]
    assert world.told(span("run-17", 1.0, "read", trace=TRACE), at=5.0) == ["r-0.0#2"]  # a framework's own id
    assert world.told(span(None, 1.0, "write", trace=TRACE), span(None, 1.0), at=5.0) == []


def test_a_span_with_the_id_of_one_call_is_not_of_another():
    world = World()
    world.calls("a:bash", "b:bash", at=0.0, trace=TRACE)
    assert world.told(span("a", 1.0), at=5.0) == ["a"]
    assert world.told(span("a", 1.0, trace=TRACE), span("z", 1.0, trace=TRACE), at=5.0) == []


def test_a_span_that_could_be_of_several_sessions_is_of_none():
    world = World()
    for session, trace in (("s", TRACE), ("other", OTHER_TRACE)):
        world.calls("call_0:bash", at=0.0, session=session, trace=trace)
    assert world.told(span("call_0", 1.0), at=2.0) == []
    assert world.told(span("call_0", 1.0, trace="0" * 32), at=2.0) == []
    assert world.verdicts() == {Verdict.AMBIGUOUS: 2}
    assert world.told(span("call_0", 1.0, trace=OTHER_TRACE), at=2.0) == ["call_0"]
    assert [call.took_s for call in world.tools.open_calls(SessionId("other"))] == [1.0]


def test_a_tenants_span_is_of_its_own_calls_alone():
    world = World()
    world.calls("call_0:bash", at=0.0, session="s", tenant=T)
    world.calls("call_0:bash", at=0.0, session="other", tenant=U)
    world.calls("theirs:bash", at=0.0, session="other", tenant=U, trace=TRACE)
    assert world.told(span("theirs", 1.0), span(None, 1.0, trace=TRACE), at=2.0, tenant=T) == []
    assert world.told(span("call_0", 1.0), at=2.0, tenant=T) == ["call_0"]
    assert [call.took_s for call in world.tools.open_calls(SessionId("s"))] == [1.0]
    assert all(call.took_s is None for call in world.tools.open_calls(SessionId("other")))


def test_no_span_is_longer_than_its_call_can_have_been():
    world = World()
    world.calls("a:bash", at=10.0, asked_s=4.0)  # its tool may have begun while the answer still came
    world.told(at=10.0)
    assert world.told(span("a", 8.5), at=12.0) == []
    assert world.told(span("a", 8.0), at=12.0) == ["a"]
    world.calls("b:bash", at=20.0)
    world.results("a", "b", at=22.0)
    assert world.told(span("b", 3.0), at=30.0) == []  # long ago, but its results came after two seconds
    assert world.verdicts() == {Verdict.TOO_LONG: 2, Verdict.TAKEN: 1}


def test_an_id_that_is_used_again_means_the_call_that_the_span_fits():
    world = a_world_whose_agent_sends_spans()
    world.calls("bash:0:bash", at=0.0)
    world.results("bash", at=2.0)
    world.calls("bash:0:bash", at=3.0)
    assert world.told(span("bash", 1.0), span("bash", 4.0), at=9.0) == ["bash", "bash"]
    world.results("bash", at=10.0)
    assert [took for _, took in world.ran] == [1.0, 4.0]


def test_calls_that_are_over_otherwise_are_not_explained():
    world = World()
    world.calls("a:bash", at=0.0)
    world.calls("b:bash", at=0.0, session="other")
    world.told(at=0.0)
    assert len(world.tools.traced) == 2
    world.tools.forget(SessionId("s"))
    turn = world.tools.open_calls(SessionId("other"))[0].turn
    world.tools.results_came(SessionId("other"), (), went_on=turn, now=1.0)
    assert world.told(span("a", 1.0), span("b", 1.0), at=2.0) == []
    assert len(world.tools.traced) == 0 and not world.tools.traced._by


def test_what_is_remembered_is_bounded(monkeypatch):
    for name in ("_MAX_AGENTS", "_MAX_SPANS", "_MAX_ALIKE"):
        monkeypatch.setattr(module, name, 2)
    world = a_world_whose_agent_sends_spans(max_calls=3)
    known = world.tools.traced
    for number in range(6):
        world.calls(f"{number}:bash", at=float(number), session=f"s{number}", trace=TRACE)
        world.results(f"{number}", at=float(number), session=f"s{number}")
        assert len(known) <= 3 and len(known._waiting) <= 3
        assert all(len(alike) <= 2 for alike in known._by.values())
    assert len(world.ran) == 3  # no longer waited for
    for number in range(5):
        world.told(span(None, 0.0, trace=OTHER_TRACE), span(f"{number}", 0.0, span=f"{number}"), at=6.0)
    assert len(known._spans) <= 2 and known.verdicts[Verdict.TAKEN] > 1
    for agent in range(4):
        known._reports(agent, now=0.0)
    assert len(known._reporting) == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["call", "result", "span", "end"]), st.integers(0, 4), st.sampled_from("st")
        ),
        max_size=60,
    )
)
def test_whatever_comes_in_whatever_order_teaches_at_most_once(steps):
    world = a_world_whose_agent_sends_spans()
    asked = taught = 0
    for at, (step, number, session) in enumerate(steps):
        match step:
            case "call":
                asked += len(
                    world.tools.opened(
                        SessionId(session),
                        RequestId("r"),
                        [ToolCall(f"{number}", "bash")],
                        asking=Asking(T, TRACE, float(at)),
                        now=at,
                    )
                )
            case "result":
                if any(call.id == f"{number}" for call in world.tools.open_calls(SessionId(session))):
                    world.results(f"{number}", at=float(at), session=session)
            case "span":
                world.told(span(f"{number}", 0.0, trace=TRACE), at=float(at))
            case _:
                world.tools.forget(SessionId(session))
        taught = sum(len(run.names) for run in world.runs)
        known = world.tools.traced
        assert taught <= asked
        alike = {call for tenants in known._by.values() for calls in tenants.values() for call in calls}
        assert alike <= set(known)
    world.told(at=1e6)
    assert all(call.phase is None for call in world.tools.traced)


def test_a_tenants_calls_of_one_id_keep_no_others_from_being_explained():
    world = a_world_whose_agent_sends_spans()
    for number in range(module._MAX_ALIKE + 1):
        world.calls("bash_0:bash", at=0.0, session=f"s-{number}", tenant=T)
    world.calls("bash_0:bash", at=1.0, session="other", tenant=U, trace=TRACE)
    call = "bash_0"
    assert world.told(span(call, 0.5, trace=OTHER_TRACE), at=3.0) == []  # whose, nobody knows
    assert world.told(span(call, 0.5, trace=TRACE), at=3.0) == [call]  # an operator's
    world.calls("bash_0:bash", at=4.0, session="another", tenant=U)
    assert world.told(span(call, 0.5), at=6.0, tenant=U) == [call]


def test_a_tenant_with_many_calls_pushes_out_its_own():
    world = a_world_whose_agent_sends_spans(max_calls=8)
    world.calls("a:bash", at=0.0, session="other", tenant=U)
    for number in range(20):
        world.calls(f"{number}:bash", at=1.0, session=f"s-{number}")
    assert len(world.tools.traced) == 8
    assert world.told(span("a", 0.5), at=3.0, tenant=U) == ["a"]


def test_a_tenants_spans_make_no_others_repeated():
    world = a_world_whose_agent_sends_spans()
    world.calls("a:bash", at=0.0, session="s")
    world.calls("b:bash", at=0.0, session="other", tenant=U)
    assert world.told(span("a", 0.5, trace=TRACE, span="1"), at=3.0, tenant=T) == ["a"]
    assert world.told(span("b", 0.5, trace=TRACE, span="1"), at=3.0, tenant=U) == ["b"]
    world.calls("c:bash", at=4.0, session="other", tenant=U)
    assert world.told(span("c", 0.5, trace=TRACE, span="1"), at=6.0, tenant=U) == []
    assert world.verdicts()[Verdict.REPEATED] == 1


def test_what_the_gateway_saw_itself_is_one_session_s_and_makes_nobody_wait():
    world = World()
    world.calls("c0:read", at=0.0, session="s")
    world.calls("c0:read", at=0.0, session="z")
    assert world.told(span("c0", 0.5), at=1.0, tenant=T) == [], "it could be either's"
    assert world.told(seen("c0", 0.5, "z"), seen("c0", 0.5, "q"), at=1.0, tenant=T) == ["c0"]
    world.results("c0", at=5.0, session="z")
    assert world.ran == [(("read",), 0.5)]
    world.calls("c1:bash", at=6.0, session="z")
    world.results("c1", at=8.0, session="z")
    assert world.ran[1:] == [(("bash",), 2.0)], "no span is waited for"
    world.results("c0", at=9.0, session="s")
    assert world.ran[2:] == [(("read",), 9.0)]
    assert world.tools.traced.verdicts[Verdict.UNKNOWN] == 1


def seen(call: str, took_s: float, session: str) -> ToolSpan:
    return span(call, took_s, session=SessionId(session))
