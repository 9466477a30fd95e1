"""One connection to a replica, over a transport in memory, with the real parser."""

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import AnswerCut, AnswerMissing
from gateway.upstream.one_shot import Run
from tests.examples import examples

GET = b"GET / HTTP/1.1\r\n\r\n"


class Pipe(asyncio.Transport):
    """A transport in memory. What it must not be asked for fails."""

    def __init__(self, connection):
        super().__init__()
        self._connection = connection
        self.written = b""
        self.reads = True
        self.is_lost = False
        self.is_aborted = False
        connection.connection_made(self)

    def write(self, data):
        assert not self.is_aborted
        self.written += bytes(data)

    def writelines(self, parts):
        self.write(b"".join(parts))

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.is_aborted or self.is_lost

    def pause_reading(self):
        assert self.reads and not self.is_closing()
        self.reads = False

    def resume_reading(self):
        assert not self.reads and not self.is_closing()
        self.reads = True

    def abort(self):
        self.is_aborted = True

    def lose(self, error=None):
        """What the event loop does after `abort`, or by itself."""
        if not self.is_lost:
            self.is_lost = True
            self._connection.connection_lost(error)


def answering(begun: bytes) -> tuple[UpstreamConnection, Pipe]:
    """A connection of which a request was sent, and to which this much of an answer came."""
    connection = UpstreamConnection()
    pipe = Pipe(connection)
    connection.send([GET], is_head_request=False)
    connection.data_received(begun)
    return connection, pipe


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class User:
    """Sends requests and collects what comes of them, as relays do."""

    def __init__(self, connection):
        self.connection = connection
        self.body, self.is_last, self.outcome = b"", False, ""
        self.is_over = True

    def send(self):
        self.body, self.is_last, self.outcome, self.is_over = b"", False, "", False
        self.connection.send([GET], is_head_request=False)
        Run(self._follow(), self._over).advance()

    def _over(self):
        self.is_over = True

    async def _follow(self):
        try:
            await self.connection.head_came
            whole = self.connection.take_complete_body()
            if whole is not None:
                self._take(whole, True)
            else:
                self.connection.set_sink(self._take)
                await self.connection.done
            self.outcome = "whole"
        except (AnswerMissing, AnswerCut) as error:
            self.outcome = type(error).__name__

    def _take(self, parts, is_last):
        assert not self.is_last
        self.body += b"".join(parts)
        self.is_last = is_last


def asked() -> tuple[UpstreamConnection, Pipe, User]:
    connection = UpstreamConnection()
    pipe, user = Pipe(connection), User(connection)
    user.send()
    return connection, pipe, user


class Looped:
    """`asyncio.get_running_loop` for what needs no more than its clock."""

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_):
        asyncio._set_running_loop(None)
        self._loop.close()


async def test_a_pause_at_the_very_end_does_not_outlast_the_response():
    """The last bytes fill the client's buffer; the next request on this connection is another client's."""
    connection, pipe = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    connection.set_sink(lambda parts, is_last: connection.pause() if is_last else None)
    connection.data_received(b"cd")
    assert connection.is_reusable and pipe.reads
    connection.resume()
    assert pipe.reads


async def test_what_a_transport_gives_after_it_was_paused_is_read_all_the_same():
    """With TLS, what was decrypted already may still come; the connection is kept, and read."""
    connection, pipe = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    connection.set_sink(lambda parts, is_last: None)
    connection.pause()
    connection.data_received(b"cd")
    assert connection.is_reusable and pipe.reads


@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
async def test_a_large_body_holds_the_loop_for_a_slice_at_a_time(head):
    """However small its chunks are: others are served between 32 KiB and 32 KiB, as they come on the wire."""
    body = b"1\r\nz\r\n" * 1_000_000 + b"0\r\n\r\n" if head is CHUNKED else b"z" * 1_000_000
    connection, pipe, user = asked()
    connection.data_received(head)
    longest = at = 0
    while not user.is_over:
        before = len(user.body)
        if pipe.reads:
            connection.data_received(body[at : (at := at + 256_000)])
        else:
            await asyncio.sleep(0)
        longest = max(longest, len(user.body) - before)
    assert user.body == b"z" * 1_000_000 and user.outcome == "whole"
    assert longest <= (6000 if head is CHUNKED else 33_000) and connection.is_reusable


async def test_a_read_of_many_chunks_is_taken_in_slices_and_the_replica_is_not_read_meanwhile():
    connection, pipe, user = asked()
    connection.data_received(CHUNKED + b"1\r\nz\r\n" * 40_000)
    sizes = [len(user.body)]
    connection.data_received(b"1\r\ny\r\n0\r\n\r\n")  # as TLS still may
    while not user.is_over:
        assert not pipe.reads and not connection.is_reusable
        await asyncio.sleep(0)
        sizes.append(len(user.body))
    assert max(b - a for a, b in itertools.pairwise([0, *sizes])) <= 6000
    assert user.body == b"z" * 40_000 + b"y" and user.outcome == "whole"
    assert pipe.reads and connection.is_reusable


@pytest.mark.parametrize("is_paused", [False, True])
async def test_what_was_read_before_the_end_counts_and_what_follows_a_response_is_nobodys(is_paused):
    connection, pipe, user = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 100_000)
    if is_paused:
        connection.pause()
    pipe.lose()
    assert user.outcome == "whole" and user.body == b"a" * 100_000
    connection, pipe, user = asked()
    connection.data_received(b"HTTP/1.1 204 No\r\n\r\n" + b"HTTP/1.1 200 OK\r\n\r\n" * 3000)
    assert user.outcome == "whole" and not connection.is_reusable


STYLES = [b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;a=b\r\n"]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from(STYLES), st.booleans()), max_size=12),
    st.sampled_from([b"0\r\n\r\n", b"0\r\nX-T: y\r\n\r\n"]),
    st.lists(st.integers(1, 2000), max_size=4),
)
@settings(deadline=None, max_examples=examples(400))
def test_a_body_in_chunks_is_the_same_whether_they_pass_the_parser_by_or_not(chunks, end, cuts):
    """`chunks`: size, how the size is written, whether the read ends behind it."""
    stream, ends, wanted = b"", set(cuts), b""
    for number, (size, style, is_end) in enumerate(chunks):
        part = bytes([97 + number]) * size if number % 3 else b"\r\n" * size
        stream += style % len(part) + part + b"\r\n"
        wanted += part
        ends |= {len(stream)} if is_end else set()
    stream += end
    places = [0, *sorted(each for each in ends if each < len(stream)), len(stream)]
    with Looped():
        (connection, _), got = answering(CHUNKED), []

        def take_chunk(chunk, part):
            assert chunk == b"%x\r\n%s\r\n" % (len(part), part)
            got.append(part)

        connection.set_sink(lambda parts, is_last: got.extend(parts), take_chunk)
        for start, stop in itertools.pairwise(places):
            connection.data_received(stream[start:stop])
        assert b"".join(got) == wanted
        assert connection.is_reusable and connection.done.has_come


@pytest.mark.parametrize(
    "reads",
    [
        [b"2\r\nab\r\n1", b"f\r\n" + b"c" * 15 + b"\r\n", b"d" * 14 + b"\r\n"],
        [b"2\r\nab\r\n", b"a\r\nab\r\n", b"2\r\nxy\r\n"],
        [b"2\r\nab\r\n", b"6;a=b\r\n", b"1\r\nx\r\n", b"\r\n"],
        [b"2\r\nab\r\n", b"8\r\nab\r\n", b"1\r\nx", b"\r\n"],
    ],
)
async def test_what_only_looks_like_a_chunk_is_none(reads):
    """The read before it ended within a size, or within a chunk."""

    def body(by_themselves: bool) -> bytes:
        (connection, _), got = answering(CHUNKED), list[bytes]()
        connection.set_sink(
            lambda parts, is_last: got.extend(parts),
            (lambda chunk, part: got.append(part)) if by_themselves else None,
        )
        for read in (*reads, b"0\r\n\r\n"):
            connection.data_received(read)
        assert connection.done.has_come
        return b"".join(got)

    assert body(by_themselves=False) == body(by_themselves=True)


async def test_a_chunk_that_does_not_end_as_its_size_says_breaks_the_answer():
    connection, _ = answering(CHUNKED + b"2\r\nab\r\n")
    connection.set_sink(lambda parts, is_last: None, lambda chunk, part: None)
    connection.data_received(b"3\r\nabcde")
    with pytest.raises(AnswerCut):
        await connection.done


@pytest.mark.parametrize(
    "flood",
    [
        b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 2000 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\na: " + b"a" * (300 << 10),
        b"HTTP/1.1 200 " + b"a" * (300 << 10),
    ],
    ids=["fields", "interim responses", "one field", "a reason"],
)
async def test_a_head_is_bounded_in_bytes_and_fields(flood):
    connection, pipe, user = asked()
    for start in range(0, len(flood), 1 << 14):
        connection.data_received(flood[start : start + (1 << 14)])
        assert len(connection._headers) <= 1000
    assert user.outcome == "AnswerMissing" and pipe.is_aborted and connection._received <= (272 << 10)
