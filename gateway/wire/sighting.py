"""What has been seen of one answer so far. Protocol readers write it, the observer's user reads it."""

from typing import Protocol as Interface

import msgspec

from gateway.domain.ids import is_well_formed_id
from gateway.domain.request import Answer, ToolCall, Usage

MAX_CALLS = 1024
MAX_STATE_IDS = 1024

ERROR_FINISH = "error"
"""The finish reason of an answer that began well and then reported an error in its body."""


class Sighting:
    """Grows as an answer is read. Ids that no request could bring back are not kept."""

    def __init__(self) -> None:
        self.has_first_token = False
        self.has_terminal = False
        self.tool_calls: list[ToolCall] = []
        self.usage = Usage()
        self.finish_reason: str | None = None
        self._call_ids: set[str] = set()
        self._state_ids: dict[str, None] = {}

    def add_call(self, call_id: str | None, name: str | None) -> None:
        """A tool call, as soon as both are known; told again, it is not counted again."""
        if not call_id or not name or call_id in self._call_ids or len(self.tool_calls) >= MAX_CALLS:
            return
        if is_well_formed_id(call_id):
            self._call_ids.add(call_id)
            self.tool_calls.append(ToolCall(call_id, name))

    def add_state_id(self, state_id: str | None) -> None:
        if state_id and is_well_formed_id(state_id) and len(self._state_ids) < MAX_STATE_IDS:
            self._state_ids[state_id] = None

    def merge_usage(self, usage: Usage) -> None:
        """Later counts replace earlier ones, number by number: streams repeat them as they grow."""
        changes = {name: value for name, value in msgspec.structs.asdict(usage).items() if value is not None}
        self.usage = msgspec.structs.replace(self.usage, **changes)

    def answer(self, status: int) -> Answer:
        return Answer(
            status=status,
            tool_calls=tuple(self.tool_calls),
            state_ids=tuple(self._state_ids),
            usage=self.usage,
            finish_reason=self.finish_reason,
            has_terminal=self.has_terminal,
        )


class AnswerReader(Interface):
    """Reads one protocol's answers. Both methods may raise one of `body.UNREADABLE`."""

    def read_event(self, data: bytes, sighting: Sighting) -> None:
        """One event of a stream."""

    def read_body(self, data: bytes, sighting: Sighting) -> None:
        """A whole answer that was not streamed."""
