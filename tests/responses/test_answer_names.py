"""What an answer calls itself and its model."""

import msgspec
import pytest

from gateway.domain.request import Protocol, Work
from gateway.responses.observer import observe

CHAT = {"id": "chatcmpl-1", "model": "qwen", "choices": [{"index": 0, "delta": {"content": "a"}}]}
WHOLE = {"id": "chatcmpl-1", "model": "qwen", "choices": [{"index": 0, "message": {"content": "a"}}]}
MESSAGE = {"id": "msg_1", "model": "claude", "type": "message", "content": []}
RESPONSE = {"id": "resp_1", "model": "gpt", "output": []}


def answer(protocol: Protocol, *events: object, streams: bool):
    kind = "text/event-stream" if streams else "application/json"
    observer = observe(protocol, Work.GENERATE, kind, None)
    for event in events:
        data = msgspec.json.encode(event)
        observer.feed(b"data: %s\n\n" % data if streams else data)
    return observer.answer(200)


@pytest.mark.parametrize(
    ("protocol", "streams", "event", "names"),
    [
        (Protocol.CHAT, True, CHAT, ("chatcmpl-1", "qwen")),
        (Protocol.CHAT, False, WHOLE, ("chatcmpl-1", "qwen")),
        (Protocol.COMPLETIONS, False, WHOLE, ("chatcmpl-1", "qwen")),
        (Protocol.MESSAGES, True, {"type": "message_start", "message": MESSAGE}, ("msg_1", "claude")),
        (Protocol.MESSAGES, False, MESSAGE, ("msg_1", "claude")),
        (Protocol.RESPONSES, True, {"type": "response.created", "response": RESPONSE}, ("resp_1", "gpt")),
        (Protocol.RESPONSES, False, RESPONSE, ("resp_1", "gpt")),
    ],
)
def test_an_answer_says_what_it_is(protocol, streams, event, names):
    seen = answer(protocol, event, streams=streams)
    assert (seen.response_id, seen.model) == names


def test_the_first_one_counts():
    seen = answer(Protocol.CHAT, CHAT, {**CHAT, "id": "chatcmpl-2", "model": "other"}, streams=True)
    assert (seen.response_id, seen.model) == ("chatcmpl-1", "qwen")


@pytest.mark.parametrize("strange", [None, 7, [], {"a": 1}, "", "a\x00b"])
def test_a_strange_name_spoils_nothing(strange):
    seen = answer(
        Protocol.CHAT,
        {**WHOLE, "id": strange, "model": strange, "usage": {"prompt_tokens": 3}},
        streams=False,
    )
    assert seen.response_id is None and seen.usage.prompt_tokens == 3
    assert seen.model is None or seen.model.isprintable()


def test_names_are_short():
    seen = answer(Protocol.CHAT, {**WHOLE, "id": "x" * 10_000, "model": "m" * 10_000}, streams=False)
    assert seen.response_id is None and len(seen.model or "") == 256
