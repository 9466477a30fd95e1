"""Azure's LLM inference trace: when requests came, and how long they were.

**Source**: Azure/AzurePublicDataset (CC-BY-4.0), `AzureLLMInferenceTrace_*.csv`, a line a request:
`TIMESTAMP,ContextTokens,GeneratedTokens`.

**Taken**: every request is a session of one turn, with its lengths, at its time after the first.

**Composed**: with `rate`, time runs that much faster.

**Lost**: which requests belong together, and what they share.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from lab.workload.problems import Problems
from lab.workload.records import Member
from lab.workload.trace.format import Session, Thread, Turn
from lab.workload.trace.importer import Choices, Corpus

_COLUMNS: Final = b"TIMESTAMP,ContextTokens,GeneratedTokens"


def _azure(members: Iterable[Member], problems: Problems, choices: Choices) -> Iterator[Session]:
    begin: datetime | None = None
    latest_s = 0.0
    for member in members:
        for number, line in enumerate(member.lines, start=1):
            if not line.strip() or line.strip() == _COLUMNS:
                continue
            try:
                at, prompt, output = _row(line)
            except ValueError as error:
                problems.add(f"{member.name}, line {number}", error)
                continue
            begin = begin or at
            at_s = (at - begin).total_seconds()
            if choices.is_within(at_s):
                latest_s = max(latest_s, (at_s - choices.start_s) / choices.rate)
                yield Session(
                    id=f"{member.name}:{number}",
                    arrival_s=round(latest_s, 6),
                    agent_type="azure",
                    threads=(Thread(turns=(Turn(input_tokens=prompt, output_tokens=output),)),),
                )


def _row(line: bytes) -> tuple[datetime, int, int]:
    at, prompt, output = line.decode().split(",")
    lengths = int(prompt), int(output)
    if min(lengths) < 1:
        raise ValueError(f"a request of {lengths[0]} and {lengths[1]} tokens")
    return datetime.fromisoformat(at).replace(tzinfo=UTC), *lengths


AZURE: Final = Corpus(
    read=_azure,
    origin="Azure LLM inference trace 2023 (CC-BY-4.0)",
    how="arrivals and lengths as recorded; every request a session of its own",
    knows=frozenset({"start_s", "duration_s", "rate"}),
)
