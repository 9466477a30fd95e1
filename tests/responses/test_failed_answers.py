"""Answers with a good status that are none, and odd ones that are good all the same."""

import gzip

import pytest

from gateway.domain.request import Protocol, Work
from gateway.responses import observer as module
from gateway.responses.observer import observe
from tests.wire.shapes import chat_body, chat_stream, encode, message_body, messages_stream, responses_stream

CHAT, MESSAGES, RESPONSES, OTHER = Protocol.CHAT, Protocol.MESSAGES, Protocol.RESPONSES, Protocol.OTHER
SSE, JSON = "text/event-stream", "application/json"
BROKE = b'{"error":{"message":"CUDA error","code":500}}'
BARE = b"data: %s\n\n" % BROKE
DONE = b"data: [DONE]\n\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
BEGUN = b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1"}}\n\n'
CREATED = b'data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress"}}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%s"}]}\n\n'
NAMED = [
    b": a comment\nevent: error\ndata: {}\n\n",
    b"id: 1\nevent:error\ndata: {}\n\n",
    b"\r\nevent: error\r\ndata: {}\r\n\r\n",
    b'data: {"message":"no"}\nevent:error\n\n',
    b"\xef\xbb\xbfevent: error\ndata: {}\n\n",
    b"event: error\n\n",
]
STRICT = [  # errors that a strict reader refuses
    rb'{"error":{"message":"half \ud83d","code":500}}',
    b'{"error":{"message":"no"},"took":NaN,"left":-Infinity}',
    b'{"error":{"message":"\xf0\x9f"}}',
    b'{"error":{"message":"no"},"choices":"x","content":1,"output":"x"}',
    b'{"error":{"message":"no"},"usage":3}',
    b'{"error":{"message":"no"},"choices":[{"index":"0"}],"type":7,"id":7}',
    b'\xef\xbb\xbf{"error":{"message":"no"}}',
    b'{"object":"error","message":"no","code":500}',
    b'{"type":"error","message":"no"}',
]
PAGES = [
    b"<html>502 Bad Gateway</html>",
    b"{}",
    b"[]",
    b"null",
    b'{"detail":"Internal Server Error"}',
    b'{"status":"ok"}',
    b'{"choices":[',
    b'{"content":[{"type":"text"',
    b'{"x":NaN}',
    b"{}{}",
    b'{"choices":"x","content":{},"output":7}',
    b'{"choices":["' + b"x" * 300_000,
]


def failure(protocol: Protocol, body: bytes, kind: str = SSE, work: Work = Work.GENERATE) -> str:
    found = set()
    for size in (len(body) or 1, 7 if len(body) < 5000 else 5000):
        for coding, data in ((None, body), ("gzip", gzip.compress(body))):
            observer = observe(protocol, work, kind, coding)
            for at in range(0, len(data), size):
                observer.feed(data[at : at + size])
            while observer.has_backlog:
                observer.feed(b"")
            answer = observer.answer(200, is_over=True)
            assert answer == observer.answer(200, is_over=True) or observer.is_stream
            found.add(answer.failure)
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("end", [b"", DONE], ids=["its end", "DONE"])
@pytest.mark.parametrize("error", [BARE, *NAMED, *(b"data: %s\n\n" % each for each in STRICT)])
@pytest.mark.parametrize(("protocol", "begun"), [(CHAT, TOKEN), (MESSAGES, BEGUN), (RESPONSES, CREATED)])
def test_errors_in_streams(protocol, begun, error, end):
    for before in (b"", begun):
        assert failure(protocol, before + error + end) == "error"


@pytest.mark.parametrize("kind", [JSON, "text/plain", "", "application/problem+json", SSE])
@pytest.mark.parametrize("protocol", [CHAT, Protocol.COMPLETIONS, MESSAGES, RESPONSES])
def test_what_is_no_answer_at_all(protocol, kind):
    for error in (BROKE, *STRICT):
        assert failure(protocol, error, kind) == "error"
    for page in PAGES:
        assert failure(protocol, page, kind) == ("truncated" if kind == SSE else "malformed"), page
    assert failure(protocol, b"", kind) == "truncated"


@pytest.mark.parametrize(
    ("protocol", "body", "kind", "found"),
    [
        (CHAT, TOKEN + FINISH % b"error" + DONE, SSE, "error"),
        (CHAT, b'data: {"choices":[{"index":0,"delta":{},"error":{"code":502}}]}\n\n' + DONE, SSE, "error"),
        (CHAT, TOKEN + b'data: {"message":"no","code":429}\n\n' + DONE, SSE, "rejected"),
        (CHAT, b'{"choices":[{"message":{},"finish_reason":"error"}]}', JSON, "error"),
        (CHAT, TOKEN + b'data: {"choices":[{"index":0,"del', SSE, "truncated"),
        (CHAT, b'{"id":"x","choices":[]}', JSON, "empty"),
        (MESSAGES, b'{"type":"message","content":[],"stop_reason":"error"}', JSON, "error"),
        (
            MESSAGES,
            BEGUN + b'data: {"type":"message_delta","delta":{"stop_reason":"error"}}\n\n',
            SSE,
            "error",
        ),
        (MESSAGES, b'{"type":"error","error":{"type":"overloaded_error"}}', JSON, "error"),
        (MESSAGES, BEGUN + DONE, SSE, "empty"),
        (RESPONSES, b'{"id":"resp_1","status":"failed","output":[]}', JSON, "error"),
        (RESPONSES, CREATED + b'data: {"type":"response.failed","response":{}}\n\n', SSE, "error"),
        (RESPONSES, b'data: {"response":{"status":"failed"}}\n\n', SSE, "error"),
    ],
)
def test_failures_that_protocols_have_words_for(protocol, body, kind, found):
    assert failure(protocol, body, kind) == found


def chat(**message: object) -> bytes:
    return encode({"choices": [{"index": 0, "message": message, "finish_reason": None}]})


GOOD = [
    (CHAT, chat_body()),
    (CHAT, chat_stream()),
    (CHAT, encode({"choices": [{"index": at, "message": {"content": "x"}} for at in range(3)]})),
    (CHAT, b'{"choices":[{"message":{"content":""},"finish_reason":"length"}]}'),
    (CHAT, chat(content=None, tool_calls=[{"id": "c", "function": {"name": "f", "arguments": "{}"}}])),
    (CHAT, chat(content=None, audio={"id": "a", "data": "AAAA"})),
    (
        CHAT,
        b"data: \n\n: ping\n\n" + TOKEN + FINISH % b"stop" + b'data: {"choices":[],"usage":{}}\n\n' + DONE,
    ),
    (CHAT, rb'{"choices":[{"message":{"content":"half \ud83d"},"logprobs":NaN}]}'),
    (CHAT, b'{"choices":[{"index":"0","message":{"content":"hi"}}]}'),
    (CHAT, b'{"choices":[{"delta":{"content":"hi"}}]}\n{"choices":[{"delta":{"content":"ho"}}]}\n'),
    (CHAT, b" \n\n" * 30 + chat_body()),
    (Protocol.COMPLETIONS, b'{"choices":[{"text":"what was asked, and more"}]}'),
    (MESSAGES, message_body()),
    (MESSAGES, messages_stream()),
    (MESSAGES, b'{"type":"message","content":[],"stop_reason":"end_turn"}'),
    (RESPONSES, responses_stream()),
    (RESPONSES, b'{"id":"resp_1","object":"response","status":"queued","output":[]}'),
    (RESPONSES, b'{"id":"resp_1","object":"response.compaction","output":[]}'),
]


@pytest.mark.parametrize(("protocol", "body"), GOOD)
@pytest.mark.parametrize("kind", [JSON, "text/plain", "", "text/html; charset=utf-8", SSE])
def test_good_answers_under_any_content_type(protocol, body, kind):
    assert failure(protocol, body, kind) == ""


@pytest.mark.parametrize(
    "none", [b"false", b"0", b"null", b'""', b"{}", b"[]", b'{"code":null,"message":""}']
)
def test_an_error_that_is_none(none):
    field = b'{"error":%s,' % none
    assert failure(CHAT, chat_body().replace(b"{", field, 1), JSON) == ""
    assert failure(CHAT, (TOKEN + FINISH % b"stop").replace(b"{", field) + DONE) == ""
    assert failure(MESSAGES, message_body().replace(b"{", field, 1), JSON) == ""
    assert failure(MESSAGES, messages_stream().replace(b"data: {", b"data: " + field)) == ""
    assert failure(RESPONSES, responses_stream().replace(b"data: {", b"data: " + field)) == ""


@pytest.mark.parametrize("work", [Work.GENERATE, Work.POOL, Work.LIGHT])
def test_protocols_without_a_reader(work):
    for error in (BROKE, b'{"error":{"message":"no"},"took":NaN}', b'{"object":"error","message":"no"}'):
        assert failure(OTHER, error, JSON, work) == "error"
    assert failure(OTHER, TOKEN + BARE, SSE, work) == "error"
    for fine in (
        b"",
        b"{}",
        b"no JSON",
        b'{"error":0.3}',
        b'{"error":"0.3"}',
        b'{"x":' + BROKE + b"}",
        b"[1]",
        b'{"id":"video-1","status":"failed","error":{"message":"no"}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}',
    ):
        assert failure(OTHER, fine, JSON, work) == failure(OTHER, fine, SSE, work) == ""
    assert failure(OTHER, BROKE + b" " * 2**16, JSON, work) == "", "errors are small"


@pytest.mark.parametrize("kind", ["application/cbor", "audio/wav", "application/x-ndjson"])
def test_content_types_that_are_no_texts_are_unknown(kind):
    assert failure(CHAT, b"\x00\x01", kind) == ""


def test_what_is_not_known_is_no_failure(monkeypatch):
    deep = b"[" * 5000 + b"]" * 5000
    assert failure(CHAT, b'{"choices":[{"index":0}],"x":%s}' % deep, JSON) == ""
    assert failure(CHAT, chat_body().decode().encode("utf-16"), JSON) == ""
    assert failure(CHAT, b'{"x":[%s0]}' % (b"0," * 2**17), JSON) == ""
    assert failure(CHAT, b'data: {"choices":[{"index":0}],"x":%s}\n\n' % deep) == ""
    assert failure(CHAT, b"data: no JSON\n\n") == failure(CHAT, b'data: {"choices":[\n\n') == "truncated"
    for status in (202, 204, 205, 302, 307):
        assert not observe(CHAT, Work.GENERATE, "", None).answer(status, is_over=True).failure
    monkeypatch.setattr(module, "MAX_BODY_BYTES", 10)
    assert failure(CHAT, b"<html>too much</html>", "text/html") == ""
    observer = observe(CHAT, Work.GENERATE, "text/plain", "br")
    observer.feed(b"?")
    assert not observer.answer(200, is_over=True).failure


def test_what_a_strict_reader_refuses_is_read_all_the_same():
    observer = observe(CHAT, Work.GENERATE, SSE, None)
    observer.feed(
        TOKEN.replace(b"hi", rb"\ud83d") + b'data: {"choices":[],"usage":{"prompt_tokens":7},"x":NaN}\n\n'
    )
    answer = observer.answer(200, is_over=True)
    assert answer.failure == "truncated" and answer.usage.prompt_tokens == 7
    assert observer.seen.has_first_token and answer.content_bytes == 1
