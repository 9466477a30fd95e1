from typing import Any

from msgspec import Raw

from gateway.domain.request import Transcript
from gateway.wire import items
from gateway.wire import transcript as module
from gateway.wire.body import ResponsesBody, decode_body
from gateway.wire.items import Item
from gateway.wire.marks import leave_marks, text_hash
from gateway.wire.transcript import TranscriptReader
from tests.wire.shapes import assistant, encode, result, user

SYSTEM = {"role": "system", "content": "Be good."}


def chat(*messages: Any, reader: TranscriptReader | None = None, **fields: Any) -> Transcript:
    body = decode_body(encode({"messages": list(messages), **fields}), is_responses=False)
    return (reader or TranscriptReader()).read(body, body.messages or ())


def responses(value: Any, **fields: Any) -> Transcript:
    body = decode_body(encode({"input": value, **fields}), is_responses=True)
    assert isinstance(body, ResponsesBody)
    return TranscriptReader().read(body, () if isinstance(body.input, str) else body.input or ())


def test_a_conversation_grows_at_its_end():
    first = chat(SYSTEM, user("Hi"))
    second = chat({"role": "system", "content": "Other."}, user("Hi"), assistant("a"), result("a"))
    assert second.chain[: len(first.chain)] == first.chain and len(second.chain) == 3
    assert chat(user("Ho"), assistant("a"), result("a")).chain[-1] != second.chain[-1]
    assert first.agent != second.agent


def test_where_the_answers_stand():
    script = chat(SYSTEM, user("Hi"), assistant("a"), result("a"), assistant(text="Done."), user("More"))
    assert [(b.at, b.text, b.has_calls) for b in script.blocks] == [
        (3, text_hash("Done."), False),
        (1, text_hash("Step."), True),
    ]
    assert script.newest_at == 3
    assert chat(user()).blocks == () and chat(user()).newest_at == 0


def test_answers_in_a_row_begin_at_each_of_them():
    script = chat(user("Hi"), assistant(text="One."), assistant(text="Two."))
    assert [b.at for b in script.blocks] == [2, 1] and script.newest_at == 1
    assert script.blocks[0].text == text_hash("Two.") != script.blocks[1].text
    many = chat(user(), *[assistant(text=f"{at}.") for at in range(30)])
    assert len(many.blocks) == module._MAX_RUN


def test_items_of_one_answer_are_one_block():
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]}
    script = responses([user("Hi"), {"type": "reasoning"}, said, call, call])
    assert [(b.at, b.text, b.has_calls) for b in script.blocks] == [(1, text_hash("Hm."), True)]
    assert responses([user("Hi"), call, said]).blocks[-1].text == text_hash("Hm.")


def test_a_bare_input_is_a_user_message():
    assert responses("Hi there, how are you?").chain == chat(user("Hi there, how are you?")).chain
    assert responses("Hi there, how are you?").asked == leave_marks("Hi there, how are you?")
    assert responses(None).chain == ()


def test_the_same_request_streamed_or_not():
    turn = [SYSTEM, user("Hi")]
    assert chat(*turn, stream=True).body == chat(*turn).body
    others = [chat(SYSTEM, user("Ho")), chat(user("Hi")), chat(*turn, tools=[{"type": "function"}])]
    assert len({other.body for other in (*others, chat(*turn))}) == 4
    assert responses("Hi").body != responses("Ho").body


def test_agents_differ_by_system_prompt_and_tools():
    agents = [
        chat(SYSTEM, user()),
        chat(user()),
        chat(user(), tools=[{"name": "f"}]),
        chat(user(), system="Be good."),
        responses("Hi", instructions="Be good."),
    ]
    assert len({script.agent for script in agents}) == 5


def test_new_texts_and_old_ones():
    old, new = "Please list all of the files here", "And now edit every one of them"
    script = chat(user(old), assistant(text="I have listed all files for you."), user("preamble"), user(new))
    assert set(leave_marks(new)) <= script.new_probes and script.asked == leave_marks(new)
    assert not set(leave_marks(old)) & script.new_probes
    assert set(leave_marks(old)) <= script.old_probes
    assert set(leave_marks("I have listed all files for you.")) <= script.old_probes
    assert chat(user(old)).old_probes == frozenset()


def test_what_only_a_system_prompt_says():
    system = "You are in a role play game with these roles"
    script = chat({"role": "system", "content": system})
    assert script.chain == () and set(leave_marks(system)) <= script.new_probes
    assert not set(leave_marks(system)) & chat({"role": "system", "content": system}, user()).new_probes


def test_items_are_decoded_once(monkeypatch):
    decoded = []

    def read_item(raw: Raw) -> Item:
        decoded.append(raw)
        return items.read_item(raw)

    monkeypatch.setattr(module, "read_item", read_item)
    reader = TranscriptReader(max_known=4)
    chat(user("a"), user("b"), reader=reader)
    chat(user("a"), user("b"), user("c"), reader=reader)
    assert len(decoded) == 3
    for at in range(20):
        chat(user(f"x{at}"), reader=reader)
    assert len(reader._known) + len(reader._older) <= 4
    chat(user("a"), reader=reader)
    assert len(decoded) == 24


def test_long_conversations_are_known_by_their_newest_part(monkeypatch):
    monkeypatch.setattr(module, "MAX_POSITIONS", 4)
    monkeypatch.setattr(module, "MAX_BLOCKS", 3)
    turns = [item for at in range(5) for item in (user(f"u{at}"), assistant(text=f"a{at}"))]
    script = chat(*turns, user("last"))
    assert len(script.chain) == 4 and [block.at for block in script.blocks] == [2, 0]
    assert script.newest_at == 2
