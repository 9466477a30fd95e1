"""Frames as bytes: read the same wherever they are cut, and never beyond their bounds."""

import random
from typing import NamedTuple

from gateway.wire.websocket_frames import FrameError, FrameReader, Message, Opcode, frame
from tests.fuzz.mutation import mutate, pieces

KEEPS = 300
MOST = 500
_SIZES = (0, 1, 125, 126, 200, 300, 301, 400, 500, 501, 70_000)
_SPLINTERS = (
    b"\x81",
    b"\x01\x00",
    b"\x88\x02\x03\xe8",
    b"\x89\x00",
    b"\x80\x80",
    b"\xff",
    b"\x7e",
    b"\x7f" * 9,
)


class Fed(NamedTuple):
    pieces: list[bytes]
    is_masked: bool
    most: int | None
    sent: list[Message] | None
    """What it says, if nothing was done to it."""


def make(rng: random.Random) -> Fed:
    is_masked, most = rng.random() < 0.5, rng.choice((None, MOST))
    mask = rng.randbytes(4) if is_masked else b""
    data, sent = bytearray(), []
    for _ in range(1 + rng.randrange(4)):
        opcode = rng.choice((Opcode.TEXT, Opcode.BINARY))
        said = rng.randbytes(rng.choice(_SIZES))
        cuts = sorted(rng.randrange(len(said) + 1) for _ in range(rng.randrange(4)))
        parts = [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True)]
        for number, part in enumerate(parts):
            made = bytearray(frame(Opcode.CONTINUATION if number else opcode, part, mask))
            if number < len(parts) - 1:
                made[0] &= 0x7F
            data += made
            if rng.randrange(4) == 0:
                control = Message(rng.choice((Opcode.PING, Opcode.PONG)), rng.randbytes(rng.randrange(126)))
                assert control.data is not None
                data += frame(control.opcode, control.data, mask)
                sent.append(control)
        sent.append(Message(opcode, said if len(said) <= KEEPS else None))
        # A control frame that stands within is told before the message around it.
    is_whole = rng.random() < 0.3 and (most is None or all(_size(each) <= KEEPS for each in sent))
    given = bytes(data) if is_whole else mutate(rng, bytes(data), _SPLINTERS)
    return Fed(pieces(rng, given), is_masked, most, _in_order(sent) if is_whole else None)


def _size(message: Message) -> int:
    return len(message.data) if message.data is not None else MOST


def _in_order(sent: list[Message]) -> list[Message]:
    """Control frames behind the last piece of a message come after it, whichever they were written with."""
    return sorted(sent, key=lambda each: each.opcode >= Opcode.CLOSE)


def _read(fed: Fed, given: list[bytes]) -> tuple[list[Message], str | None, int]:
    """What was found, what was wrong, and how many bytes were frames, as far as that is told."""
    reader = FrameReader(is_masked=fed.is_masked, keeps=KEEPS, max_bytes=fed.most)
    found: list[Message] = []
    done = 0
    for piece in given:
        was_between = reader.is_between_frames
        try:
            found += reader.feed(piece)
        except FrameError as error:
            wrong = error
        else:
            done += len(piece)
            assert reader.held_bytes <= KEEPS
            continue
        assert wrong.good_bytes <= len(piece)
        assert reader.is_between_frames == (was_between or wrong.good_bytes > 0)
        return found + wrong.found, f"{wrong.code} {wrong}", done + wrong.good_bytes
    return found, None, done


def check(fed: Fed) -> None:
    whole = b"".join(fed.pieces)
    found, wrong, _ = _read(fed, fed.pieces)
    again, wrong_again, good = _read(fed, [whole])
    assert (found, wrong) == (again, wrong_again), "it depends on how it was cut"
    if wrong is not None:  # what stands before it is in order
        before, nothing, _ = _read(fed, [whole[:good]])
        assert (before, nothing) == (found, None)
    if fed.sent is not None:
        assert wrong is None and _in_order(found) == fed.sent
    for message in found:
        assert message.data is None or len(message.data) <= max(KEEPS, 125)
        if message.opcode in (Opcode.TEXT, Opcode.BINARY) and message.data is not None:
            again = FrameReader(is_masked=True, keeps=KEEPS).feed(
                frame(message.opcode, message.data, b"abcd")
            )
            assert again == [message]
