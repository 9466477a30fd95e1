"""A request that is refused before anything is decided about it."""

from gateway.domain.decision import Refusal, RefusalReason


class RefusedRequest(Exception):  # noqa: N818 - an outcome
    def __init__(self, refusal: Refusal, lines: bytes = b"") -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.lines = lines


def refused(reason: RefusalReason, message: str) -> RefusedRequest:
    return RefusedRequest(Refusal(reason=reason, message=message))


def malformed(what: str) -> RefusedRequest:
    return refused(RefusalReason.MALFORMED_HTTP, f"The request is not valid HTTP/1.1: {what}.")
