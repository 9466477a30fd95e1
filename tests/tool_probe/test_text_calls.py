"""When a code block is a call: once what comes back looks like a program's."""

from gateway.domain.request import Answer, Manner, Protocol, RequestFacts, ToolCall, Utterance, Work
from gateway.tool_probe import text_calls
from gateway.tool_probe.text_calls import TextCalls

AGENT = 5
PLAIN = RequestFacts(protocol=Protocol.CHAT, work=Work.GENERATE)


class Said(Utterance):
    def __init__(self, manner: Manner) -> None:
        super().__init__()
        self._manner = manner

    @property
    def manner(self) -> Manner:
        return self._manner


def answer(*names: str, is_code: bool = False, calls: tuple[ToolCall, ...] = ()) -> Answer:
    return Answer(status=200, tool_calls=calls, utterance=Said(Manner(names, is_code, 1)))


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


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(text_calls, "_MAX_TYPES", 3)
    known = TextCalls()
    for agent in range(10):
        known.observed(agent, (1,), (1,))
    assert len(known) == 3
