"""Agent types: the same from run to run, whatever else prompts hold."""

from msgspec import Raw

from gateway.wire.agent_skeleton import agent_skeleton
from gateway.wire.slices import finish
from gateway.wire.transcript import TranscriptReader
from tests.wire.shapes import decode_body, encode, user

PROMPT = "You are a careful agent. Today is {day}. You work in {path} on item {n}. Use the tools."
READ = Raw(b'{"type":"function","function":{"name":"read"}}')
WRITE = Raw(b'{"name":"write","input_schema":{}}')


def kind(text: str, *tools: Raw) -> int:
    return agent_skeleton([Raw(encode(text))], tools)


def test_dates_paths_and_counters_do_not_count():
    one = PROMPT.format(day="Monday, 3 March 2025", path="/home/a/x", n=1)
    other = PROMPT.format(day="Friday, 28 November 2031", path="/srv/deep/er/y", n=99)
    assert kind(one, READ) == kind(other, READ) != 0
    assert kind(one, READ) != kind("You are a careless agent. Use the tools.", READ)


def test_tools_count_in_whatever_order():
    assert kind("Be good.", READ, WRITE) == kind("Be good.", WRITE, READ)
    assert kind("Be good.", READ) != kind("Be good.", WRITE)
    assert kind("Be good.", Raw(b"17")) != 0


def test_blocks_and_messages_are_read_alike_each_time():
    blocks = [{"type": "text", "text": "Be good, 1."}, {"type": "text", "text": "Env: /a"}]
    others = [{"type": "text", "text": "Be good, 2."}, {"type": "text", "text": "Env: /b/c"}]
    assert agent_skeleton([Raw(encode(blocks))], ()) == agent_skeleton([Raw(encode(others))], ())


def test_nothing_is_no_type():
    assert agent_skeleton([], ()) == 0


def test_a_conversation_carries_its_type():
    def types(day: str) -> tuple[int, int]:
        system = {"role": "system", "content": PROMPT.format(day=day, path="/x", n=3)}
        body = decode_body(encode({"messages": [system, user()]}), is_responses=False)
        found = finish(TranscriptReader().reading(body, body.messages or ()))[0]
        return found.agent, found.agent_type

    (exact, kind_of_it), (other, same) = types("1 May 2030"), types("2 May 2030")
    assert exact != other and kind_of_it == same != 0
