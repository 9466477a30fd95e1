"""Hashes: what the seed reaches, that they answer as the words would, and agent types by them."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gateway.domain.request import Answer, ToolCallStyle, Utterance
from gateway.identity.agent_type import agent_skeleton
from gateway.identity.hashed_words import hash_words, words_of_hashes
from gateway.identity.transcript import TranscriptReader
from gateway.requests.facts import read_facts
from gateway.responses.response_text import ResponseText
from gateway.wire.endpoints import classify
from gateway.wire.hashing import digest, digest_all, hash_seed, hash_text, seed_hashes, text_hash
from gateway.wire.slices import finish
from tests.wire.shapes import assistant, decode_body, encode, raws, user


@pytest.fixture
def seeded(monkeypatch):
    """Hashes with another seed; the reader that is shared has remembered nothing under it."""

    def seed(value: int) -> None:
        monkeypatch.setattr("gateway.requests.facts.TRANSCRIPTS", TranscriptReader())
        seed_hashes(value)

    yield seed
    seed_hashes(0)


def hashes() -> list[int]:
    words = "one two three four five six seven eight"
    body = json.dumps(
        {"model": "m", "messages": [user(words), assistant(text="Step."), user(words)]}
    ).encode()
    script = read_facts(classify("POST", "/v1/chat/completions"), [(b"user-agent", b"a")], body)
    found = script.transcript
    return [
        digest(b"x"), *digest_all([b"x"]), text_hash("x"), hash_text("x"), script.client,
        found.tail, found.body, *(block.text for block in found.blocks),
    ]  # fmt: skip


def test_everything_is_seeded(seeded):
    seeded(1)
    one, again = hashes(), hashes()
    seeded(2)
    assert hash_seed() == 2
    assert one == again
    assert not set(one) & set(hashes())


def test_an_agent_type_has_one_name_in_all_processes(seeded):
    prompt = raws(["You are a coder."])
    seeded(1)
    one = agent_skeleton(prompt, [])
    seeded(2)
    assert agent_skeleton(prompt, []) == one != 0


LONG = "The quick brown fox jumps over the lazy dog, and then it rests under the old oak tree."


def recorded(value: Any) -> Any:
    line = msgspec.json.encode(value, enc_hook=hash_words)
    return msgspec.json.decode(line, type=type(value), dec_hook=words_of_hashes)


def test_a_recorded_answer_says_what_the_answer_said_and_no_text():
    said = ResponseText(
        text=7, response_text=LONG, arguments=(b'{"prompt": "look into the tests of the parser"}',)
    )
    line = msgspec.json.encode(Answer(status=200, utterance=said), enc_hook=hash_words)
    assert not any(word.encode() in line for word in LONG.split() if len(word) > 3)
    answer = recorded(Answer(status=200, utterance=said))
    assert (
        answer.utterance == said
        and answer.utterance.tool_call_style == said.tool_call_style != ToolCallStyle()
    )
    assert recorded(Answer(status=200)).utterance == Utterance()


def test_nothing_else_is_recorded_by_accident():
    with pytest.raises(NotImplementedError):
        msgspec.json.encode(object(), enc_hook=hash_words)
    with pytest.raises(NotImplementedError):
        words_of_hashes(object, {})
    assert words_of_hashes(Utterance, {}) == Utterance()


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
