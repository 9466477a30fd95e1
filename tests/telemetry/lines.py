"""Records as readers of lines get them."""

from collections.abc import Sequence

import msgspec

from gateway.domain.records import Record


def as_lines(records: Sequence[Record]) -> tuple[bytes, int]:
    return msgspec.json.Encoder().encode_lines(records), len(records)
