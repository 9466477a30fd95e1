"""What a gateway expected of turns and what became of them, read from its information stream."""

from pathlib import Path

import msgspec

from gateway.domain.records import Expected, GpuEnd, GpuFirstToken, GpuSubmit, Record
from gateway.domain.request import Usage


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One turn that was answered."""

    expected: Expected
    first_token_s: float
    end_s: float
    """Both since it was sent."""
    usage: Usage


def read_told(stream: Path) -> list[Told]:
    """In the order in which they were sent."""
    decoder = msgspec.json.Decoder(Record)
    submits: dict[str, GpuSubmit] = {}
    first_tokens: dict[str, GpuFirstToken] = {}
    ends: dict[str, GpuEnd] = {}
    for line in stream.read_bytes().splitlines():
        match decoder.decode(line):
            case GpuSubmit() as record:
                submits[record.turn] = record
            case GpuFirstToken() as record:
                first_tokens[record.turn] = record
            case GpuEnd() as record:
                ends[record.turn] = record
            case _:
                pass
    return [
        Told(
            expected=submit.expected,
            first_token_s=first_tokens[turn].launch_delay_ms / 1e3,
            end_s=ends[turn].duration_ms / 1e3,
            usage=ends[turn].usage,
        )
        for turn, submit in submits.items()
        if submit.expected is not None and turn in first_tokens and turn in ends
    ]
