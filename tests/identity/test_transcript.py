from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.request import AssistantBlock, Transcript
from gateway.identity import transcript as module
from gateway.identity.transcript import TranscriptReader
from gateway.wire.body import items_of
from gateway.wire.hashing import text_hash
from gateway.wire.slices import finish
from tests.wire.shapes import assistant, decode_body, encode, result, user

SYSTEM = {"role": "system", "content": "Be good."}


def chat(*messages: Any, reader: TranscriptReader | None = None, **fields: Any) -> Transcript:
    body = decode_body(encode({"messages": list(messages), **fields}), is_responses=False)
    return finish((reader or TranscriptReader()).reading(body, body.messages or ()))[0]


def responses(value: Any, **fields: Any) -> Transcript:
    body = decode_body(encode({"input": value, **fields}), is_responses=True)
    return finish(TranscriptReader().reading(body, items_of(body)))[0]


def tail(*messages: Any) -> int:
    return chat(*messages).tail


def test_a_conversation_grows_at_its_end():
    first = chat(SYSTEM, user("Hi"))
    second = chat({"role": "system", "content": "Other."}, user("Hi"), assistant("a"), result("a"))
    assert second.blocks[0].tail == first.tail == second.recent[1] and first.recent == (0,)
    assert tail(user("Ho"), assistant("a"), result("a")) != second.tail
    assert first.agent != second.agent and chat(SYSTEM).tail == 0


def test_where_the_answers_stand():
    script = chat(SYSTEM, user("Hi"), assistant("a"), result("a"), assistant(text="Done."), user("More"))
    assert script.blocks == (
        AssistantBlock(tail(user("Hi"), assistant("a"), result("a")), text_hash("Done."), False),
        AssistantBlock(tail(user("Hi")), text_hash("Step."), True),
    )
    assert script.newest_run == 1
    assert chat(user()).blocks == () and chat(user()).newest_run == 0
    assert chat(assistant()).blocks[0].tail == 0


def test_answers_in_a_row_begin_at_each_of_them():
    script = chat(user("Hi"), assistant(text="One."), assistant(text="Two."))
    assert [b.tail for b in script.blocks] == [tail(user("Hi"), assistant(text="One.")), tail(user("Hi"))]
    assert script.newest_run == 2
    assert script.blocks[0].text == text_hash("Two.") != script.blocks[1].text
    many = chat(user(), *[assistant(text=f"{at}.") for at in range(30)])
    assert len(many.blocks) == many.newest_run == module._MAX_RUN


def test_items_of_one_answer_are_one_block():
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]}
    script = responses([user("Hi"), {"type": "reasoning"}, said, call, call])
    assert script.blocks == (AssistantBlock(tail(user("Hi")), text_hash("Hm."), True),)
    assert responses([user("Hi"), call, said]).blocks[-1].text == text_hash("Hm.")


def test_a_bare_input_is_a_user_message():
    assert responses("Hi there, how are you?").tail == tail(user("Hi there, how are you?"))
    assert responses(None).tail == 0


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


GROWING = [
    SYSTEM,
    user("Fix it"),
    *[
        item
        for at in range(9)
        for item in (assistant(f"c{at}", text=f"{at}."), result(f"c{at}"), user(f"u{at}"))
    ],
    assistant(text="One."),
    assistant(text="Two."),
    user("More"),
]


def fresh(messages: list[Any]) -> Transcript:
    return chat(*messages, reader=TranscriptReader())


def test_checkpoints_make_no_difference():
    reader = TranscriptReader()
    for end in range(1, len(GROWING) + 1):
        assert chat(*GROWING[:end], reader=reader) == fresh(GROWING[:end])
    for end in (5, 17, len(GROWING)):  # rewound, and marked anew near the end
        marked = [*GROWING[:end]]
        marked[-1] = {**marked[-1], "cache_control": {"type": "ephemeral"}}
        assert chat(*marked, reader=reader) == fresh(marked)


def test_only_what_was_added_or_changed_is_read(monkeypatch):
    """However long the conversation is: what stands before is found by its prefix."""
    read: list[int] = []
    follow = module._follow

    def followed(state: Any, items: Any, at: int) -> Any:
        read.append(len(items))
        return follow(state, items, at)

    monkeypatch.setattr(module, "_follow", followed)
    for count in range(9, 200, 2):
        said = [user(f"{at}") if at % 2 == 0 else assistant(text=f"{at}") for at in range(count)]
        for later in ([*said[:-1], user("other")], [*said, assistant(text="a"), user("b")]):
            reader = TranscriptReader()
            chat(*said, reader=reader)
            read.clear()
            chat(*later, reader=reader)
            assert sum(read) <= 8, f"of {len(later)} items {sum(read)}"


@given(
    st.lists(
        st.sampled_from([user("a"), user("b"), assistant(text="c"), assistant("d"), result("d"), SYSTEM])
    )
)
def test_checkpoints_make_no_difference_whatever_is_said(messages):
    reader = TranscriptReader()
    for end in range(len(messages) + 1):
        assert chat(*messages[:end], reader=reader) == fresh(messages[:end])


def test_what_comes_before_words_put_into_the_models_mouth_is_new():
    result = {"role": "tool", "tool_call_id": "c", "content": "x" * 100}
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f"}}]}
    nudge = {"role": "assistant", "content": "Now give your final answer."}
    assert chat(user(), called, result, nudge).new == chat(user(), called, result).new
    assert chat(user(), called, result, nudge).new.size > 100
    assert chat(user(), nudge).new == chat(user()).new


def test_no_sequence_of_two_items_collides_by_its_order_alone():
    """Sequences like these (of Thue and Morse) collide in every polynomial modulo 2**64."""
    order = [at.bit_count() & 1 for at in range(1024)]
    one, other = ([user("ab"[each ^ flip]) for each in order] for flip in (0, 1))
    assert tail(*one) != tail(*other)
