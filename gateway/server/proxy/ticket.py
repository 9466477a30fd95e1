"""A handler's side of one request: its events go to the brain, the brain's decisions come back.

Invariants: every request ends exactly once, whatever happens to its handler: one that leaves without an end
has lost its client.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.core import events as ev
from gateway.core.commands import Dispatch, Refuse, RemotePrefill
from gateway.core.turns.live import LiveRequest
from gateway.domain.decision import Refusal
from gateway.domain.ids import RequestId
from gateway.domain.request import Answer, Protocol, RequestFacts
from gateway.responses.observed import ObservedResponse
from gateway.server.disaggregation.kv_fetches import Fetch
from gateway.upstream.errors import AnswerTimedOut, LocalFault, UpstreamError
from gateway.upstream.one_shot import OneShot

if TYPE_CHECKING:
    from gateway.server.proxy.driver import Driver

MAX_ARGUMENTS_BYTES: Final = 2**16
_End = ev.ResponseFinished | ev.AnsweredAtOnce | ev.ResponseCut | ev.ClientLeft


class Ticket:
    """One request's line to the brain, as a context manager: leaving it unfinished means *client left*."""

    def __init__(self, driver: "Driver", request: RequestId, facts: RequestFacts) -> None:
        self.request, self.facts = request, facts
        # Also once it is over; None if it was refused at once.
        self.live: LiveRequest | None = None
        self.refused: Refuse | None = None
        self.ended: _End | None = None
        self._driver = driver
        self.send = driver.send
        self._decided: Dispatch | Refuse | RemotePrefill | None = None
        self._waits: OneShot | None = None
        self.is_over = False
        # Its answer is none, by a fault of the replica's.
        self.has_failed = False
        # When the request was whole, for those of which it is measured how long they take to be sent on.
        self.began_s = 0.0
        # Ends the request, whatever it waits for.
        self.on_cancel: Callable[[Protocol, Refusal], None] | None = None
        # What has been seen of the answer, for the case that the client leaves.
        self.seen: Callable[[], Answer] | None = None
        # What its engine has to fetch, of the attempt that is answered.
        self.fetch: Fetch | None = None

    def __enter__(self) -> "Ticket":
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_over:
            self._client_left()
        self.seen = self.on_cancel = None  # they refer to who refers to us
        self._driver.tickets.pop(self.request, None)

    def _client_left(self) -> None:
        self._end(ev.ClientLeft(self.request, self.seen() if self.seen is not None else None))

    async def decision(self) -> Dispatch | Refuse | RemotePrefill:
        """The brain's next decision. After `Refuse` the ticket is over; after `RemotePrefill` comes
        another."""
        if self._decided is None:
            self._waits = OneShot()
            await self._waits
        decided = self.decided()
        assert decided is not None
        return decided

    def decided(self) -> Dispatch | Refuse | RemotePrefill | None:
        decided, self._decided = self._decided, None
        return decided

    def decide(self, command: Dispatch | Refuse | RemotePrefill) -> None:
        self._decided = command
        if isinstance(command, Refuse):
            self.is_over, self.refused = True, command
        if self._waits is not None:
            # Not on the spot: the brain is in the midst of an event.
            self._driver.call_soon(self._waits.set)

    def give_up(self, error: Exception) -> None:
        """Whoever waits for a decision waits no longer: `decision` raises this, unless there is one."""
        if self._waits is not None and self._decided is None:
            self._waits.fail(error)

    def cancel(self, refusal: Refusal) -> None:
        live = self._driver.coordinator.live.get(self.request)
        if not self.is_over and self.on_cancel is not None and live is not None:
            self.on_cancel(live.facts.protocol, refusal)

    def attempt_failed(self, error: UpstreamError) -> None:
        timed_out, is_local = isinstance(error, AnswerTimedOut), isinstance(error, LocalFault)
        self.send(
            ev.AttemptFailed(self.request, str(error), error.was_sent, timed_out, error.resends, is_local)
        )

    def hand_over(self, seen: ObservedResponse, number: int) -> None:
        """A call whose arguments are complete."""
        live, on_call = self._driver.coordinator.live.get(self.request), self._driver.on_call
        if on_call is not None and live is not None and live.session is not None:
            arguments = seen.arguments_of(number)
            if arguments is not None and len(arguments) <= MAX_ARGUMENTS_BYTES:
                on_call(self.request, seen.closed_calls[number], arguments)

    def answered_at_once(self, answer: Answer, *, has_first_token: bool) -> None:
        self._end(ev.AnsweredAtOnce(self.request, self._judged(answer), has_first_token))

    def finished(self, answer: Answer) -> None:
        self._end(ev.ResponseFinished(self.request, self._judged(answer)))

    def _judged(self, answer: Answer) -> Answer:
        self.has_failed = answer.is_fault
        return self.fetch.answered(answer) if self.fetch is not None else answer

    def cut(self, answer: Answer, why: str) -> None:
        self._end(ev.ResponseCut(self.request, answer, why))

    def _end(self, event: _End) -> None:
        self.is_over, self.ended = True, event
        self._driver.send(event)
