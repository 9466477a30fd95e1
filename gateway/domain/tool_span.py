"""What is told of a tool call that is over, by its agent's telemetry or by who saw it pass, in the words of
decisions."""

import msgspec

from gateway.domain.ids import SessionId


class ToolSpan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """No time of day is in it: the clock is another host's."""

    name: str
    """Of the tool."""
    duration_s: float
    call: str | None = None
    """The call's id, as the model's answer gave it."""
    trace: str = ""
    """32 hexadecimal digits: for calls whose id is not told, and ids that several sessions have."""
    span: str = ""
    """Its own id, within its trace: exporters send twice what they are not sure of."""
    has_failed: bool = False
    session: SessionId | None = None
    """Whose call it is, where that is known: the gateway saw it itself."""
