"""Frames against RFC 6455, and against aiohttp's own reader and writer of them."""

import pytest
from aiohttp.http_websocket import WSMsgType

from gateway.wire.websocket_frames import (
    CloseCode,
    FrameError,
    FrameReader,
    Message,
    Opcode,
    accepted,
    close_payload,
    frame,
    masked,
)

MASK = b"\x37\xfa\x21\x3d"


@pytest.mark.parametrize(
    ("data", "is_masked", "found"),
    [
        (b"\x81\x05Hello", False, [Message(Opcode.TEXT, b"Hello")]),
        (b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", True, [Message(Opcode.TEXT, b"Hello")]),
        (b"\x01\x03Hel\x80\x02lo", False, [Message(Opcode.TEXT, b"Hello")]),
        (b"\x89\x05Hello", False, [Message(Opcode.PING, b"Hello")]),
        (b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58", True, [Message(Opcode.PONG, b"Hello")]),
        (b"\x82\x7e\x01\x00" + b"x" * 256, False, [Message(Opcode.BINARY, b"x" * 256)]),
        (
            b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00" + b"x" * 65536,
            False,
            [Message(Opcode.BINARY, b"x" * 65536)],
        ),
    ],
)
def test_the_examples_of_the_rfc(data, is_masked, found):
    """§5.7."""
    assert FrameReader(is_masked=is_masked, keeps=1 << 17).feed(data) == found
    if len(found[0].data) > 5:
        assert frame(found[0].opcode, found[0].data) == data


def test_the_key_of_the_rfc():
    """§1.3."""
    assert accepted(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_a_large_message_is_an_error_before_it_comes():
    reader = FrameReader(is_masked=False, keeps=10, max_bytes=10)
    assert reader.feed(b"\x01\x08abcdefgh") == []
    with pytest.raises(FrameError) as error:
        reader.feed(b"\x80\x03")
    assert error.value.code is CloseCode.TOO_BIG and reader.held_bytes == 8


def test_of_a_message_that_is_not_kept_the_end_is_told():
    reader = FrameReader(is_masked=False, keeps=10)
    assert reader.feed(b"\x01\x08abcdefgh\x80\x03ijk\x81\x02ok") == [
        Message(Opcode.TEXT, None),
        Message(Opcode.TEXT, b"ok"),
    ]
    assert reader.held_bytes == 0


def test_where_something_may_be_put_in():
    reader = FrameReader(is_masked=False, keeps=10)
    told = []
    for byte in b"\x01\x01a\x89\x00\x80\x00":
        reader.feed(bytes([byte]))
        told.append((reader.is_between_frames, reader.is_between_messages))
    assert [frames for frames, _ in told] == [False, False, True, False, True, False, True]
    assert [messages for _, messages in told] == [False] * 6 + [True]


def test_what_stands_before_an_error_is_told():
    reader = FrameReader(is_masked=False, keeps=10)
    with pytest.raises(FrameError) as error:
        reader.feed(b"\x81\x01a\x89\x00GET / HTTP/1.1")
    assert error.value.good_bytes == 5 and reader.is_between_messages
    assert error.value.found == [Message(Opcode.TEXT, b"a"), Message(Opcode.PING, b"")]


def test_a_close_fits_in_its_frame():
    assert close_payload(CloseCode.GOING_AWAY, "é" * 500) == b"\x03\xe9" + b"?" * 123


@pytest.mark.parametrize("size", [*range(10), 1000, 4099])
def test_masking_twice_is_nothing(size):
    data = bytes(each % 251 for each in range(size))
    assert masked(masked(data, MASK), MASK) == data
    assert masked(data, MASK) == bytes(each ^ MASK[at % 4] for at, each in enumerate(data))


def test_opcodes_are_aiohttps():
    assert {each.value for each in WSMsgType if 0 <= each <= 0xA} == set(map(int, Opcode))
