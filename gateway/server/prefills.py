"""Prompts that are computed where their sessions are to go on, while tools run: the driver's side of it.

A request whose answer may ask for tools is kept, until the conversation's next one comes or there is no room.
If the brain says so, it is sent once more, to another replica, for one token that nobody reads.

Invariants: at most `max_bytes` of requests are kept, heads and bodies, one of each conversation, the oldest
go first; every prefill that the brain asks for ends in one `PrefillEnded`; nothing here raises into the
brain's driver.
"""

from collections import OrderedDict
from collections.abc import Mapping

from gateway.core import events as ev
from gateway.core.commands import Prefill, StopPrefill
from gateway.domain.decision import SessionRef
from gateway.domain.ids import ReplicaId, RequestId, SessionId, ThreadId
from gateway.domain.request import Usage
from gateway.server.driver import Driver
from gateway.server.outbound import Outbound
from gateway.server.request_parser import HttpRequest
from gateway.server.tasks import check_each
from gateway.upstream.connection import UpstreamConnection
from gateway.upstream.errors import UpstreamError
from gateway.upstream.moments import Run
from gateway.upstream.replica import Replica
from gateway.wire.model_name import with_model
from gateway.wire.observer import observe
from gateway.wire.prefill import may_be_prefilled, prefill_body
from gateway.workflow.engine_order import BEHIND


class Prefills:
    def __init__(
        self,
        driver: Driver,
        replicas: Mapping[ReplicaId, Replica],
        outbound: Outbound,
        *,
        max_bytes: int,
    ) -> None:
        """`replicas` may change."""
        self._driver = driver
        self._replicas = replicas
        self._outbound = outbound
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[SessionId, ThreadId], HttpRequest] = OrderedDict()
        self._under_way: dict[RequestId, Run] = {}
        self._answers: dict[UpstreamConnection, Replica] = {}
        """That have begun."""

    def keep(self, session: SessionRef, request: HttpRequest, model: str | None = None) -> None:
        """It is being answered; its client may go on with what the answer asks for. `model`: what it was sent
        to instead of the one that it names."""
        conversation = (session.session, session.thread)
        before = self._kept.pop(conversation, None)
        if before is not None:
            self._bytes -= _size(before)
        if not may_be_prefilled(request.head.visitor.endpoint.protocol):
            return
        body = request.body if model is None else with_model(request.body, model)
        request = self._kept[conversation] = HttpRequest(request.head, body)  # theirs is emptied
        self._bytes += _size(request)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _size(oldest)

    def take(self, command: Prefill | StopPrefill) -> None:
        # Neither on the spot: the brain is in the midst of an event.
        if isinstance(command, Prefill):
            self._driver.call_soon(self._begin, command)
        else:
            self._driver.call_soon(self._stop, command)

    def sweep(self, now: float) -> None:
        """Gives up on answers that have stopped to come; called about once a second."""

        def check(item: tuple[UpstreamConnection, Replica]) -> None:
            upstream, replica = item
            if replica.is_stalled(upstream, now=now):
                upstream.give_up_on_rest()

        check_each("prefill", self._answers.items(), check, lambda item: item[0].give_up_on_rest())

    def close(self) -> None:
        for run in tuple(self._under_way.values()):
            run.cancel()

    def _begin(self, command: Prefill) -> None:
        found: list[Usage] = []

        def over() -> None:
            del self._under_way[command.turn]
            self._driver.send(ev.PrefillEnded(command.turn, found[0] if found else None))

        self._under_way[command.turn] = run = Run(self._compute(command, found), over)
        run.go_on()

    def _stop(self, command: StopPrefill) -> None:
        if command.turn in self._under_way:
            self._under_way[command.turn].cancel()

    async def _compute(self, command: Prefill, found: list[Usage]) -> None:
        """Finds nothing if it was refused, or broke off, or nobody said how long it was."""
        kept = self._kept.get((command.session, command.thread))
        replica = self._replicas.get(command.replica)
        body = prefill_body(kept.body) if kept is not None else None
        if kept is None or replica is None or body is None:
            return
        request, abilities = (
            HttpRequest(kept.head, body),
            self._driver.coordinator.fleet.abilities(replica.id),
        )
        chunks = self._outbound.chunks(
            request,
            replica,
            abilities,
            None,
            is_readable=True,
            hint=command.hint,
            priority=self._outbound.priority(request, replica, abilities, BEHIND),
        )
        try:
            upstream = await replica.exchange(chunks, is_head_request=False, may_repeat=True)
        except UpstreamError:
            return
        is_whole = False
        self._answers[upstream] = replica
        try:
            usage = await _read_usage(upstream, kept)
            is_whole = True
        except UpstreamError:
            return
        finally:
            del self._answers[upstream]
            replica.release(upstream, reuse=is_whole)
        if usage is not None:
            found.append(usage)


def _size(request: HttpRequest) -> int:
    """Bytes; heads are shared within a connection, and counted all the same."""
    return len(request.body) + sum(len(name) + len(value) for name, value in request.head.headers)


async def _read_usage(upstream: UpstreamConnection, request: HttpRequest) -> Usage | None:
    head, endpoint = upstream.head, request.head.visitor.endpoint
    assert head is not None
    observer = observe(endpoint.protocol, endpoint.work, head.content_type, head.content_encoding)

    def see(parts: list[bytes], is_last: bool) -> None:
        observer.feed(b"".join(parts))

    whole = upstream.take_whole()
    if whole is not None:
        see(whole, True)
    else:
        upstream.set_sink(see)
        await upstream.done
    usage = observer.answer(head.status).usage
    return usage if usage.prompt_tokens is not None else None
