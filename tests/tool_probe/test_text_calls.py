"""When a code block is a call: once what comes back looks like a program's."""

from gateway.domain.ids import RequestId, SessionId
from gateway.domain.request import (
    Answer,
    NewItems,
    Protocol,
    RequestFacts,
    ToolCall,
    ToolCallStyle,
    Utterance,
    Work,
)
from gateway.tool_probe import text_calls
from gateway.tool_probe.text_calls import Block, TextCalls

AGENT = 5
PLAIN = RequestFacts(protocol=Protocol.CHAT, work=Work.GENERATE)


class Said(Utterance):
    def __init__(self, tool_call_style: ToolCallStyle) -> None:
        super().__init__()
        self._tool_call_style = tool_call_style

    @property
    def tool_call_style(self) -> ToolCallStyle:
        return self._tool_call_style


def answer(*names: str, is_code: bool = False, calls: tuple[ToolCall, ...] = ()) -> Answer:
    return Answer(status=200, tool_calls=calls, utterance=Said(ToolCallStyle(names, is_code, 1)))


def test_a_code_block_counts_when_observations_look_alike():
    known = TextCalls()
    code = answer("bash", is_code=True)
    assert known.names(AGENT, PLAIN, code) == ()
    assert not known.observed(AGENT, (), (1, 2)) and not known.observed(AGENT, (1, 2), (3, 4))
    assert known.names(AGENT, PLAIN, code) == ()
    assert known.observed(AGENT, (1, 2), (9, 2))  # they end alike
    assert known.observed(AGENT, (), ())
    assert known.names(AGENT, PLAIN, code) == ("bash",) and known.names(6, PLAIN, code) == ()


def test_other_protocols_count_at_once():
    assert TextCalls().names(AGENT, PLAIN, answer("get")) == ("get",)


def test_whoever_has_native_tools_makes_no_calls_in_text():
    with_tools = RequestFacts(protocol=Protocol.CHAT, work=Work.GENERATE, tool_count=1)
    assert TextCalls().names(AGENT, with_tools, answer("get")) == ()
    assert TextCalls().names(AGENT, PLAIN, answer("get", calls=(ToolCall("1", "x"),))) == ()


def test_calls_in_doubt_are_told_when_their_type_turns_out_to_run_code():
    known = TextCalls()
    for number in range(3):
        known.doubted(RequestId(f"a{number}"), block(float(number)))
    assert known.came(RequestId("a0"), RequestId("b0"), NewItems(10), now=5.0) == []
    known.observed(AGENT, (1, 2), (9, 2))
    late = known.came(RequestId("a1"), RequestId("b1"), NewItems(20), now=7.0)
    assert [(each.made_by, each.came, each.came_s, each.duration_s, each.new.size) for each in late] == [
        ("a0", "b0", 5.0, 5.0, 10),
        ("a1", "b1", 7.0, 6.0, 20),
    ]
    assert len(known.came(RequestId("a2"), RequestId("b2"), NewItems(), now=8.0)) == 1
    assert known.came(RequestId("a2"), RequestId("b3"), NewItems(), now=9.0) == []  # told once


def block(ended_s: float, agent: int = AGENT) -> Block:
    return Block(agent, SessionId("s"), ("bash",), ended_s)


def test_memory_of_doubts_is_bounded(monkeypatch):
    monkeypatch.setattr(text_calls, "_MAX_OPEN", 3)
    known = TextCalls()
    for number in range(10):
        known.doubted(RequestId(str(number)), block(0.0))
    assert known.came(RequestId("1"), RequestId("x"), NewItems(), now=1.0) == []
    known.observed(AGENT, (1,), (1,))
    assert len(known.came(RequestId("9"), RequestId("x"), NewItems(), now=1.0)) == 1
    monkeypatch.setattr(text_calls, "_MAX_TYPES", 2)
    for agent in (11, 12, 13):
        known.doubted(RequestId("q"), block(0.0, agent))
        assert known.came(RequestId("q"), RequestId("x"), NewItems(), now=1.0) == []
    assert list(known._in_doubt) == [12, 13]


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(text_calls, "_MAX_TYPES", 3)
    known = TextCalls()
    for agent in range(10):
        known.observed(agent, (1,), (1,))
    assert len(known) == 3
