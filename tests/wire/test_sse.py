import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.sse import MAX_EVENT_BYTES, EventSplitter, event_data
from tests.wire.shapes import chat_stream, messages_stream


def split(*chunks: bytes) -> list[bytes]:
    """The data of all events, as a reader sees them."""
    splitter = EventSplitter()
    blocks = [block for chunk in chunks for block in splitter.feed(chunk)]
    return [data for block in [*blocks, *splitter.finish()] if (data := event_data(block))]


def cut(stream: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(a, len(stream)) for a in at), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("make", [chat_stream, messages_stream])
def test_line_ends_do_not_matter(make, end):
    expected = split(make())
    assert len(expected) >= 10
    assert split(make(end)) == expected
    assert split(*(bytes([byte]) for byte in make(end))) == expected


@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:b", b"data", b":c", b"event: e", b"\n", b"\r", b"\r\n", b"\n\n"])
    ),
    st.data(),
)
def test_chunks_do_not_matter(pieces, data):
    stream = b"".join(pieces)
    at = data.draw(st.lists(st.integers(0, len(stream))))
    assert split(*cut(stream, at)) == split(stream)


def test_a_line_end_may_be_cut_in_two_and_nothing_come_between():
    assert split(b"data: a\r", b"", b"\ndata: b\r", b"\n\r\n") == [b"a\nb"]


def test_an_event_comes_out_with_the_chunk_that_ends_it():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n") == []
    assert splitter.feed(b"\ndata: 2") == [b"data: 1"]
    assert splitter.feed(b"\n\ndata: 3\n\n") == [b"data: 2", b"data: 3"]
    assert splitter.finish() == []


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data:  x", b" x"),
        (b"event: e\ndata: x\nid: 1", b"x"),
        (b"data: x\ndata: y", b"x\ny"),
        (b"\xef\xbb\xbfdata: x", b"x"),
        (b": comment", b""),
        (b"event: ping", b""),
        (b"data", b""),
        (b"datax: y", b""),
        (b"\n", b""),
    ],
)
def test_event_data(block, data):
    assert event_data(block) == data


def test_an_event_of_the_largest_size_passes():
    event = b"data: " + b"x" * (MAX_EVENT_BYTES - 6)
    for chunks in ([event + b"\n\n"], [event, b"\n", b"\n"], [event + b"\n", b"\ndata: y\n\n"]):
        splitter = EventSplitter()
        assert next(block for chunk in chunks for block in splitter.feed(chunk)) == event
        assert not splitter.is_stopped


def test_a_larger_event_stops_the_splitter_wherever_it_is_cut():
    event = b"data: " + b"x" * (MAX_EVENT_BYTES - 5)
    for chunks in (
        [b"data: 1\n\n" + event + b"\n\ndata: 2\n\n"],
        [b"data: 1\n\n" + event, b"\n", b"\n", b"data: 2\n\n"],
        [b"data: 1\n\n", event[:9], event[9:] + b"\n\ndata: 2\n\n"],
        [b"data: 1\n\n" + event + b"xx", b"x" * 9],
    ):
        splitter = EventSplitter()
        assert [block for chunk in chunks for block in splitter.feed(chunk)] == [b"data: 1"]
        assert splitter.is_stopped and splitter.finish() == []


def test_many_small_events_in_one_large_chunk_are_not_one_large_event():
    assert len(split(b"data: x\n\n" * (MAX_EVENT_BYTES // 8))) == MAX_EVENT_BYTES // 8
