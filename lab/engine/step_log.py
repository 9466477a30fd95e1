"""What an engine's steps took, and what was in them: a line of JSON for each, in the file `$STEP_LOG`."""

from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "STEP_LOG"


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A sequence in a step."""

    new_tokens: int
    tokens_before: int
    prompt_tokens: int
    arrived_s: float = 0.0
    """When the engine got the request; 0 in steps behind the first token."""

    @property
    def decodes(self) -> bool:
        return self.tokens_before >= self.prompt_tokens


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Points in time are of the wall clock."""

    began_s: float
    took_s: float
    rows: list[Row]

    @property
    def ended_s(self) -> float:
        return self.began_s + self.took_s


def read(path: Path) -> list[Step]:
    return msgspec.json.decode(b"[" + b",".join(path.read_bytes().splitlines()) + b"]", type=list[Step])
