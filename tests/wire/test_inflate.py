import gzip
import itertools
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import inflate as module
from gateway.wire.inflate import INFLATABLE, Inflater, InflationError, inflating, zstd
from gateway.wire.slices import finish


def inflate(body: bytes, coding: str) -> bytes:
    return finish(inflating(body, coding, lambda _: None))


def deflate_bare(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
}


def test_every_coding_has_its_encoder_here():
    assert set(ENCODERS) == INFLATABLE


@pytest.mark.parametrize("coding", sorted(ENCODERS))
@given(body=st.binary())
def test_round_trip(coding, body):
    assert inflate(ENCODERS[coding](body), coding) == body


@given(st.binary())
def test_deflate_without_its_wrapper(body):
    assert inflate(deflate_bare(body), "deflate") == body


@given(st.binary(min_size=1), st.lists(st.integers(0, 60)))
def test_chunks_do_not_matter(body, at):
    packed = gzip.compress(body * 7)
    inflater = Inflater("gzip")
    edges = [0, *sorted(min(a, len(packed)) for a in at), len(packed)]
    pieces = [piece for a, b in itertools.pairwise(edges) for piece in inflater.feed(packed[a:b])]
    assert b"".join(pieces) == body * 7 and inflater.is_complete


def test_bodies_larger_than_one_piece():
    for extra in range(-300, 300, 23):
        body = b"x" * (2 * module._PIECE_BYTES + extra)
        assert inflate(gzip.compress(body), "gzip") == body
        assert inflate(deflate_bare(body), "deflate") == body


@pytest.mark.parametrize(
    ("packed", "coding"),
    [
        (b"no gzip at all", "gzip"),
        (gzip.compress(b"x" * 99, mtime=0)[:-3], "gzip"),
        (gzip.compress(b"x", mtime=0) + b"more", "gzip"),
        (b"\xffbad", "deflate"),
        (zlib.compress(b"x") + zlib.compress(b"y"), "deflate"),
        (zstd.compress(b"x" * 99)[:-3], "zstd"),
        (zstd.compress(b"x") + b"more", "zstd"),
        (zstd.compress(b"x" * (1 << 22), options={zstd.CompressionParameter.window_log: 24}), "zstd"),
        (b"", "gzip"),
    ],
)
def test_damaged_cut_or_trailing_bytes(packed, coding):
    with pytest.raises(InflationError):
        inflate(packed, coding)


def test_a_bomb_is_not_inflated():
    bomb = gzip.compress(b"\0" * 8 * 2**20)
    with pytest.raises(InflationError, match="swells"):
        inflate(bomb, "gzip")


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@given(parts=st.lists(st.binary(max_size=50), min_size=1, max_size=5), size=st.integers(1, 60))
def test_members_in_a_row_are_one_body_within_the_limits(coding, parts, size):
    packed = b"".join(ENCODERS[coding](part) + bytes(len(part) % 3) for part in parts)  # some pad with zeros
    inflater = Inflater(coding)
    fed = (packed[at : at + size] for at in range(0, len(packed), size))
    assert b"".join(piece for part in fed for piece in inflater.feed(part)) == b"".join(parts)
    assert inflater.is_complete


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_empty_members_are_bounded(coding):
    with pytest.raises(InflationError, match="too many parts"):
        inflate(ENCODERS[coding](b"") * (module.MAX_MEMBERS + 1), coding)


def test_a_bomb_of_zstd_is_not_inflated_whatever_its_frame_states():
    bomb = zstd.compress(b"\0" * 64 * 2**20)
    assert zstd.get_frame_info(bomb).decompressed_size == 64 * 2**20
    with pytest.raises(InflationError, match="swells"):
        inflate(bomb, "zstd")


def test_the_size_is_limited_whatever_the_ratio(monkeypatch):
    monkeypatch.setattr(module, "MAX_INFLATED_BYTES", 100)
    assert inflate(gzip.compress(b"x" * 100), "gzip") == b"x" * 100
    with pytest.raises(InflationError, match="swells"):
        inflate(gzip.compress(b"x" * 101), "gzip")


def test_what_fits_the_limit_comes_out_before_the_error():
    pieces = Inflater("gzip", 10).feed(gzip.compress(b"0123456789abc"))
    assert next(pieces) == b"0123456789"
    with pytest.raises(InflationError, match="swells"):
        next(pieces)


def test_nothing_fed_nothing_out():
    inflater = Inflater("gzip")
    assert list(inflater.feed(b"")) == [] and not inflater.is_complete
