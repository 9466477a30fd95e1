"""Header blocks: the examples of RFC 7541's appendix C, and what no peer may send."""

import pytest

from gateway.server.picker import hpack
from gateway.server.picker.hpack import Decoder, HpackError

GET = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com"))


def block(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(
    "blocks",
    [
        (  # C.3, as it is
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (  # C.4, in Huffman's code
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
)
def test_requests_that_refer_to_earlier_ones(blocks):
    decoder = Decoder()
    assert decoder.decode(block(blocks[0])) == GET
    assert decoder.decode(block(blocks[1])) == (*GET, (b"cache-control", b"no-cache"))
    assert decoder.decode(block(blocks[2])) == (
        *((b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/index.html")),
        *((b":authority", b"www.example.com"), (b"custom-key", b"custom-value")),
    )


def test_a_table_that_is_too_small_loses_its_oldest():
    decoder = Decoder()  # C.6, whose table has 256 bytes
    decoder.decode(b"\x3f\xe1\x01")
    told = decoder.decode(
        block(
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff"
            "6e919d29ad171863c78f0b97c8e9ae82ae43d3"
        )
    )
    assert told == (
        *((b":status", b"302"), (b"cache-control", b"private"), (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT")),
        (b"location", b"https://www.example.com"),
    )
    again = decoder.decode(block("4883640effc1c0bf"))
    assert again == ((b":status", b"307"), *told[1:])
    with pytest.raises(HpackError):
        decoder.decode(b"\xc2")  # the first status, which has gone


def test_the_codes_of_all_bytes_and_the_end_are_complete():
    assert sum(2.0**-bits for bits in hpack._BITS) == 1.0 and len(hpack._BITS) == 257
    for length, code, byte in (
        (5, 0x0, "0"),
        (8, 0xF8, "&"),
        (8, 0xFC, "X"),
        (15, 0x7FFC, "<"),
        (6, 0x14, " "),
    ):
        assert hpack._CODES[length, code] == ord(byte)
    assert hpack._CODES[28, 0xFFFFFFE] == 249 and hpack._CODES[30, 0x3FFFFFFF] == hpack._END


def test_a_block_that_comes_again_is_read_once(monkeypatch):
    decoder, told = Decoder(), b"\x83\x04\x0c/sample/path"
    first = decoder.decode(told)
    monkeypatch.setattr(decoder, "_read", None)
    assert decoder.decode(told) is first == ((b":method", b"POST"), (b":path", b"/sample/path"))


def test_large_blocks_and_too_many_are_not_remembered():
    decoder = Decoder()
    assert decoder.decode(b"\x00\x01a\x7f\x81\x0e" + b"b" * 1920) and not decoder._known
    for number in range(1000):
        decoder.decode(b"\x00\x01a\x04%04d" % number)
    assert 0 < len(decoder._known) <= 64


def test_a_block_that_needs_the_table_is_read_each_time():
    decoder = Decoder()
    kept = b"\x40\x01a\x01b"
    assert decoder.decode(kept) == ((b"a", b"b"),)
    assert decoder.decode(b"\xbe") == ((b"a", b"b"),)
    decoder.decode(b"\x40\x01c\x01d")
    assert decoder.decode(b"\xbe") == ((b"c", b"d"),)
    assert decoder.decode(b"\x20") == ()  # the table is emptied
    assert decoder.decode(kept) == ((b"a", b"b"),)
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")  # nothing is kept any longer


@pytest.mark.parametrize(
    "told",
    [
        b"\x80",  # header 0
        b"\xbe",  # beyond the table
        b"\x3f\xff\xff\xff\xff\xff\x07",  # a number without end
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x82\x20",  # the table's size behind a header
        b"\x00\x05ab",  # cut
        b"\x00",
        b"\x00\x01a\x81\x00",  # Huffman: the end is no beginning of the end's code
        b"\x00\x01a\x84\xff\xff\xff\xff",  # Huffman: the end within
        b"\x00\x01a\x82\xf8\xff",  # Huffman: more than seven bits at the end
    ],
)
def test_what_cannot_be_read(told):
    with pytest.raises(HpackError):
        Decoder().decode(told)


def test_a_small_block_may_not_swell():
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x7f\x81\x0e" + b"b" * 1920)
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe" * 40)
