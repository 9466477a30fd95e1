"""What OpenTelemetry's conventions for generative AI call what a turn is, and how it ended (pure)."""

from typing import Final

from gateway.domain.records import GpuEnd
from gateway.domain.request import Protocol

_OPERATIONS: Final = {Protocol.COMPLETIONS: "text_completion"}
_PROVIDERS: Final = {Protocol.MESSAGES: "anthropic"}


def operation_of(protocol: Protocol) -> str:
    return _OPERATIONS.get(protocol, "chat")


def provider_of(protocol: Protocol) -> str:
    """Whose format it is; the conventions know no name for engines of one's own."""
    return _PROVIDERS.get(protocol, "openai")


def problem_of(outcome: str, end: GpuEnd | None) -> str:
    """`error.type`: a status, `cut`, `client_left`, `error` (reported in an answer that began well),
    `truncated`, `empty`, why it was refused; empty if all is well."""
    if outcome != "finished" or end is None:
        return outcome
    if (end.status or 0) >= 400:
        return f"{end.status}"
    return end.failure
