"""HTTP/2 and gRPC as the picker speaks them, frame by frame, and with peers that break the rules."""

import asyncio
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.picker import frames
from gateway.server.picker.calls import INTERNAL, UNIMPLEMENTED, Call, CallError
from gateway.server.picker.frames import frame
from gateway.server.picker.http2 import Http2Connection
from gateway.upstream.moments import Run
from tests.server.echoing import Echo

HEADERS = b"\x83\x86\x04\x05/echo\x0f\x10\x10application/grpc"
EMPTY = frame(frames.SETTINGS, 0, 0)
OPEN = frames.PREFACE + EMPTY


class Pipe(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.out = b""
        self.is_closed = False

    def write(self, data):
        self.out += data

    def close(self):
        self.is_closed = True

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return ("10.0.0.9", 1) if name == "peername" else None

    def take(self) -> list[tuple[int, int, int, bytes]]:
        """Frames: kind, flags, stream, payload."""
        data, self.out, found = self.out, b"", []
        while data:
            high, low, kind, flags, stream = struct.unpack_from(">HBBBI", data)
            size = high << 8 | low
            found.append((kind, flags, stream, data[9 : 9 + size]))
            data = data[9 + size :]
        return found


@pytest.fixture
def begun():
    return connected()


def connected() -> tuple[Echo, Http2Connection, Pipe]:
    server, pipe = Echo(), Pipe()
    connection = Http2Connection(server)
    connection.connection_made(pipe)
    connection.data_received(OPEN)
    pipe.take()
    return server, connection, pipe


def message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


def call(stream: int, *told: bytes, ends: bool = True) -> bytes:
    parts = [frame(frames.HEADERS, frames.END_HEADERS, stream, HEADERS)]
    parts += [frame(frames.DATA, 0, stream, message(each)) for each in told]
    if ends:
        parts.append(frame(frames.DATA, frames.END_STREAM, stream))
    return b"".join(parts)


def data_of(taken: list[tuple[int, int, int, bytes]], stream: int = 1) -> bytes:
    return b"".join(each[3] for each in taken if each[0] == frames.DATA and each[2] == stream)


def code_of(taken: list[tuple[int, int, int, bytes]]) -> int | None:
    """By which the connection was ended."""
    return next((int.from_bytes(each[3][4:8], "big") for each in taken if each[0] == frames.GOAWAY), None)


@given(cuts=st.lists(st.integers(0, 700), max_size=30), pad=st.integers(0, 40))
def test_it_does_not_matter_how_what_comes_is_cut(cuts, pad):
    server, pipe = Echo(), Pipe()
    connection = Http2Connection(server)
    connection.connection_made(pipe)
    told = message(b"one") + message(b"") + message(b"three" * 40)
    padded = bytes([pad]) + told[:50] + bytes(pad)
    data = OPEN + b"".join(
        (
            frame(frames.HEADERS, 0, 1, HEADERS[:7]),
            frame(frames.CONTINUATION, 0, 1, HEADERS[7:20]),
            frame(frames.CONTINUATION, frames.END_HEADERS, 1, HEADERS[20:]),
            frame(0xFA, 0, 0, b"unknown"),
            frame(frames.DATA, frames.PADDED, 1, padded),
            frame(frames.DATA, 0, 1, told[50:51]),
            frame(frames.DATA, frames.END_STREAM, 1, told[51:]),
        )
    )
    places = sorted({min(each, len(data)) for each in cuts} | {0, len(data)})
    for begin, end in pairwise(places):
        connection.data_received(data[begin:end])
    assert server.seen == [b"one", b"", b"three" * 40] and server.running == 0
    taken = pipe.take()
    assert data_of(taken) == told
    last = [each for each in taken if each[2] == 1][-1]
    assert last[0] == frames.HEADERS and last[1] & frames.END_STREAM and last[3].endswith(b"grpc-status\x010")


def test_of_a_message_in_pieces_the_size_is_told_once_those_before_it_were_read(begun):
    server, connection, _ = begun
    connection.data_received(call(1, ends=False))
    large = message(bytes(40_000))
    for part in (message(b"first") + large[:100], large[100:200], large[200:16_000], large[16_000:32_000]):
        connection.data_received(frame(frames.DATA, 0, 1, part))
    assert server.sizes == [(40_000, 1)]
    connection.data_received(frame(frames.DATA, frames.END_STREAM, 1, large[32_000:]))
    assert server.seen == [b"first", bytes(40_000)] and server.running == 0


def test_answers_wait_for_windows(begun):
    _, connection, pipe = begun
    connection.data_received(frame(frames.SETTINGS, 0, 0, struct.pack(">HI", frames.INITIAL_WINDOW, 10)))
    connection.data_received(call(1, bytes(100_000)[:16_000], bytes(16_000)))
    assert len(data_of(pipe.take())) == 10
    more = struct.pack(">I", 40_000)
    connection.data_received(frame(frames.WINDOW_UPDATE, 0, 1, more))
    taken = pipe.take()
    assert len(data_of(taken)) == 2 * 16_005 - 10 and taken[-1][1] & frames.END_STREAM
    connection.data_received(call(3, *[bytes(16_000)] * 5))
    connection.data_received(frame(frames.WINDOW_UPDATE, 0, 3, struct.pack(">I", 1_000_000)))
    first = len(data_of(pipe.take(), 3))
    assert first == frames.FIRST_WINDOW_BYTES - 2 * 16_005, "the connection's window binds, too"
    connection.data_received(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1_000_000)))
    assert first + len(data_of(pipe.take(), 3)) == 5 * 16_005
    assert not connection.calls and not connection.owing


def test_small_answers_take_of_the_connection_s_window_too(begun):
    _, connection, pipe = begun
    connection.data_received(call(1, *[bytes(16_000)] * 4))
    assert len(data_of(pipe.take())) == 4 * 16_005
    connection.data_received(call(3, bytes(16_000)))
    assert len(data_of(pipe.take(), 3)) == frames.FIRST_WINDOW_BYTES - 4 * 16_005


def test_windows_of_calls_that_are_open_follow_the_settings(begun):
    _, connection, pipe = begun
    connection.data_received(frame(frames.SETTINGS, 0, 0, struct.pack(">HI", frames.INITIAL_WINDOW, 10)))
    connection.data_received(call(1, bytes(1000)))
    assert len(data_of(pipe.take())) == 10
    connection.data_received(frame(frames.SETTINGS, 0, 0, struct.pack(">HI", frames.INITIAL_WINDOW, 110)))
    assert len(data_of(pipe.take())) == 100
    connection.data_received(frame(frames.SETTINGS, 0, 0, struct.pack(">HI", frames.INITIAL_WINDOW, 0)))
    connection.data_received(frame(frames.WINDOW_UPDATE, 0, 1, struct.pack(">I", 110)))
    assert data_of(pipe.take()) == b"", "it had sent more than it may now"
    connection.data_received(frame(frames.WINDOW_UPDATE, 0, 1, struct.pack(">I", 895)))
    assert len(data_of(pipe.take())) == 895 and not connection.calls


def test_the_connection_s_window_is_given_again(begun):
    _, connection, pipe = begun
    given = 0
    for stream in range(1, 1201, 2):
        connection.data_received(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", 16_005)))
        connection.data_received(call(stream, bytes(16_000)))
        given += sum(
            int.from_bytes(told, "big")
            for kind, _, of, told in pipe.take()
            if (kind, of) == (frames.WINDOW_UPDATE, 0)
        )
    assert 600 * 16_005 - (9 << 20) < given <= 600 * 16_005 and given > 8 << 20


def test_a_call_gets_no_window_while_it_owes(begun):
    server, connection, pipe = begun
    connection.data_received(frame(frames.SETTINGS, 0, 0, struct.pack(">HI", frames.INITIAL_WINDOW, 0)))
    connection.data_received(call(1, ends=False))
    room, sent = frames.WINDOW_BYTES, message(bytes(16_000))
    while room >= len(sent):
        connection.data_received(frame(frames.DATA, 0, 1, sent))
        room -= len(sent)
    assert not [each for each in pipe.take() if each[0] == frames.WINDOW_UPDATE and each[2] == 1]
    connection.data_received(frame(frames.DATA, 0, 1, sent))
    resets = [each for each in pipe.take() if each[0] == frames.RST_STREAM]
    assert resets == [(frames.RST_STREAM, 0, 1, struct.pack(">I", frames.FLOW_CONTROL_ERROR))]
    assert (server.left, server.running) == (1, 0) and not connection.owing


def test_streams_beyond_the_limit_are_refused_and_the_others_go_on(begun):
    server, connection, pipe = begun
    for stream in (1, 3, 5, 7, 9):
        connection.data_received(call(stream, ends=False))
    assert [each[2] for each in pipe.take() if each[0] == frames.RST_STREAM] == [9]
    connection.data_received(frame(frames.RST_STREAM, 0, 3, bytes(4)))
    assert (server.left, server.running) == (1, 3)
    connection.data_received(call(11, b"x"))
    assert data_of(pipe.take(), 11) == message(b"x")
    connection.connection_lost(None)
    assert (server.left, server.running) == (4, 0)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (frame(frames.DATA, 0, 1, b"x"), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 2, HEADERS), frames.PROTOCOL_ERROR),
        (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x80"), frames.COMPRESSION_ERROR),
        (frame(frames.HEADERS, 0, 1, HEADERS) + frame(frames.PING, 0, 0, bytes(8)), frames.PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, 0, 1, HEADERS), frames.PROTOCOL_ERROR),
        (
            frame(frames.HEADERS, 0, 1, HEADERS) + 2 * frame(frames.CONTINUATION, 0, 1, bytes(9000)),
            frames.ENHANCE_YOUR_CALM,
        ),
        (frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 0, 1), frames.ENHANCE_YOUR_CALM),
        (frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), frames.PROTOCOL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, bytes(4)), frames.FLOW_CONTROL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), frames.FLOW_CONTROL_ERROR),
        (frame(frames.WINDOW_UPDATE, 0, 0, b"\x01"), frames.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, bytes(5)), frames.FRAME_SIZE_ERROR),
        (101 * EMPTY, frames.ENHANCE_YOUR_CALM),
        (frame(frames.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"), frames.FLOW_CONTROL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b""), frames.FRAME_SIZE_ERROR),
        (call(1, ends=False) + frame(frames.DATA, frames.PADDED, 1, b"\x09x"), frames.PROTOCOL_ERROR),
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", frames.FRAME_SIZE_ERROR),
    ],
)
def test_who_breaks_the_rules_is_told_and_cut_off(begun, told, code):
    server, connection, pipe = begun
    connection.data_received(told)
    assert code_of(pipe.take()) == code and pipe.is_closed
    assert server.running == 0 and not connection.calls


def test_who_speaks_something_else_is_cut_off():
    server, pipe = Echo(), Pipe()
    connection = Http2Connection(server)
    connection.connection_made(pipe)
    connection.data_received(b"GET / HTTP/1.1\r\n")
    assert pipe.is_closed


@pytest.mark.parametrize(("told", "code"), [(b"\x01\0\0\0\0", UNIMPLEMENTED), (b"\0\0\0\0\x05ab", INTERNAL)])
def test_messages_that_are_packed_or_cut_end_the_call(begun, told, code):
    server, connection, _ = begun
    server.called = lambda call, _: calls.append(call)
    calls: list[Call] = []
    connection.data_received(call(1, ends=False))
    errors = []

    async def read() -> None:
        try:
            await calls[0].read()
        except CallError as error:
            errors.append(error.code)

    Run(read(), lambda: None).go_on()
    connection.data_received(frame(frames.DATA, frames.END_STREAM, 1, told))
    assert errors == [code]


def test_who_leaves_serves_what_is_on_its_way(begun):
    server, connection, pipe = begun
    connection.data_received(call(1, b"a", ends=False))
    pipe.take()
    connection.leave()
    away, ping = pipe.take()
    assert away[0] == frames.GOAWAY and int.from_bytes(away[3][:4], "big") == frames.MAX_WINDOW
    connection.data_received(call(3, b"b"))  # it was on its way
    assert data_of(pipe.take(), 3) == message(b"b")
    connection.data_received(frame(frames.PING, frames.ACK, 0, ping[3]))
    (away,) = pipe.take()
    assert int.from_bytes(away[3][:4], "big") == 3 and not pipe.is_closed
    connection.data_received(call(5, b"c"))
    assert next(each[0] for each in pipe.take() if each[2] == 5) == frames.RST_STREAM
    connection.data_received(frame(frames.DATA, frames.END_STREAM, 1))
    assert pipe.is_closed and server.running == 0
