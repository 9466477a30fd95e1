import pytest

from gateway.mcp.answers import AnswerWatch
from gateway.mcp.messages import MAX_READ_BYTES

RESULT = b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}'


def watched(kind: str, *chunks: bytes, coding: str | None = None) -> tuple[AnswerWatch, list[object]]:
    watch = AnswerWatch(kind, coding)
    ids: list[object] = []
    for number, chunk in enumerate(chunks, 1):
        ids += [message.id or message.method for message in watch.feed(chunk, is_last=number == len(chunks))]
    return watch, ids


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_messages_are_found_however_they_are_cut(size):
    events = b': hi\n\nid: 1\ndata: \n\ndata: {"method":"notifications/progress"}\n\nevent: message\r\ndata: '
    stream = events + RESULT + b"\r\n\r\n"
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    watch, ids = watched("text/event-stream; charset=utf-8", *chunks)
    assert ids == ["notifications/progress", 7] and watch.may_resume and not watch.is_blind


def test_a_body_is_read_when_it_is_whole():
    watch, ids = watched("application/json", RESULT[:9], RESULT[9:])
    assert ids == [7] and not watch.is_blind and not watch.may_resume
    assert watch.feed(b"", is_last=False) == []


@pytest.mark.parametrize(
    ("kind", "coding"), [("text/event-stream", "gzip"), ("application/json", "br"), ("text/html", None)]
)
def test_what_cannot_be_read_is_said_to_be_so(kind, coding):
    watch, ids = watched(kind, RESULT, coding=coding)
    assert ids == [] and watch.is_blind


def test_too_large_a_body_is_not_kept():
    watch, ids = watched("application/json", b"x" * MAX_READ_BYTES, b"x", RESULT, coding="identity")
    assert ids == [] and watch.is_blind


def test_an_event_with_an_id_alone_makes_a_stream_resumable():
    watch, _ = watched("text/event-stream", b"data: {}\n\n")
    assert not watch.may_resume
    assert watch.feed(b"event: x\nid: 5\ndata: {}\n\n", is_last=False) == [] and watch.may_resume
