"""What tenants use of their bounds, beyond this process: in the shared store, and in a file.

Where there are other gateways, a turn of a tenant whose day or month is bounded is reserved in the store
before the brain decides on it, and settled when it is over. The store adds and returns the sum in one step,
so of turns that arrive at several gateways at once each sees those before it. While the store is away each
gateway goes on by what it knows, and sends its amounts later.

Without other gateways the brain alone keeps the sums. In both cases a file remembers them over a restart: a
line is an account's sum, and the file is written anew within a second.

Invariants: without bounds per day or month neither does anything; unsent amounts are bounded by the accounts;
what is in doubt is counted (a call whose answer was lost; turns that ran when a process was killed).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import astuple

from gateway.core import events as ev
from gateway.core.commands import Spend
from gateway.core.turn_records import GPU_WORK
from gateway.domain.ids import TenantId
from gateway.domain.request import RequestFacts
from gateway.domain.spending import NOTHING, Account, Amounts, Reserved, Spent
from gateway.server.cluster.peers import Peers
from gateway.server.proxy.driver import Driver
from gateway.server.storage.state_file import write_anew
from gateway.shared_state.protocol import StoreUnavailable
from gateway.telemetry.log_lines import log_event

_log: Final = logging.getLogger(__name__)
# Longer than any month.
_TTL_S: Final = 40 * 86_400.0
# Before the next attempt after the store did not answer.
_AGAIN_S: Final = 0.5
_PERIOD_S: Final = 1.0


class UsageReservations:
    """In the shared store."""

    def __init__(self, driver: Driver, peers: Peers, now: Callable[[], float]) -> None:
        """`now`: the brain's clock."""
        self._bounds = driver.coordinator.session_limits.bounds
        self._peers = peers
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._pending: dict[Account, Amounts] = {}
        self._tasks: set[asyncio.Task[Reserved | None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._is_closed = False
        driver.on_spend = self._spend

    async def reserve(self, tenant: TenantId, facts: RequestFacts) -> Reserved | None:
        """What the request is expected to take; None if it needs none, or the store does not answer."""
        if facts.work not in GPU_WORK or not self._bounds.has_accounts:
            return None
        agent = facts.transcript.agent_type
        accounts, amounts = self._bounds.quote(tenant, agent, facts.model, facts.text_bytes, now=self._now())
        if not accounts:
            return None
        # In a task of its own: who waits is none, and a store's client needs one.
        task = self._loop.create_task(self._reserve(accounts, amounts))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:  # the client left
            task.add_done_callback(self._give_back)
            raise

    def _spend(self, command: Spend) -> None:
        self._wait(command.more.account, command.more.amounts)

    async def close(self) -> None:
        """Sends unsent amounts to the store, if it answers."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.wait([self._sender])
        with contextlib.suppress(StoreUnavailable):
            await self._send_pending()
        if self._pending:
            log_event(logging.WARNING, "spending_lost", accounts=len(self._pending))

    async def _reserve(self, accounts: Sequence[Account], amounts: Amounts) -> Reserved | None:
        spent: list[Spent] = []
        try:
            for account in accounts:
                total = await self._add(account, amounts)
                spent.append(Spent(account, total))
        except StoreUnavailable:
            for each in spent:
                self._wait(each.account, NOTHING.minus(amounts))
            return None
        return Reserved(tuple(spent), amounts)

    def _give_back(self, task: "asyncio.Task[Reserved | None]") -> None:
        reserved = None if task.cancelled() else task.result()
        if reserved is not None:
            for each in reserved.spent:
                self._wait(each.account, NOTHING.minus(reserved.amounts))

    async def _add(self, account: Account, more: Amounts) -> Amounts:
        """The store's sum, with `more` and unsent amounts."""
        waiting = self._pending.pop(account, NOTHING)
        least = self._bounds.ledger.get(account, NOTHING).minus(waiting)
        try:
            more, least = more.plus(waiting), least.most(NOTHING)
            row = await self._peers.store.add(_key(account), astuple(more), astuple(least), _TTL_S)
        except BaseException:
            self._pending[account] = self._pending.get(account, NOTHING).plus(waiting)
            raise
        return Amounts(*row)

    def _wait(self, account: Account, more: Amounts) -> None:
        self._pending[account] = self._pending.get(account, NOTHING).plus(more)
        if not self._is_closed and (self._sender is None or self._sender.done()):
            self._sender = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        while self._pending:
            try:
                await self._send_pending()
            except StoreUnavailable:
                await asyncio.sleep(_AGAIN_S)

    async def _send_pending(self) -> None:
        while self._pending:
            await self._add(next(iter(self._pending)), NOTHING)


def _key(account: Account) -> bytes:
    return f"{account.tenant} {account.agent:x} {account.period}".encode()


class UsageFile:
    def __init__(self, path: str, driver: Driver) -> None:
        """Sends the brain the sums of earlier processes. Raises OSError if the file cannot be read or
        written."""
        self._path = Path(path)
        self._bounds = driver.coordinator.session_limits.bounds
        if spent := _read(self._path):
            driver.send(ev.SpendRemembered(tuple(spent)))
        self._written: dict[Account, Amounts] = {}
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        if self._bounds.has_accounts:
            write_anew(self._path, self._lines())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.flush()

    async def flush(self) -> None:
        """Raises OSError, and tries again the next time."""
        if self._bounds.ledger != self._written:
            written = dict(self._bounds.ledger)
            self._begun += 1
            await asyncio.to_thread(self._write, self._begun, self._lines())
            self._written = written

    async def close(self) -> None:
        try:
            await self.flush()
        except OSError:
            _log.exception("what tenants used last was not written")

    def _write(self, number: int, lines: list[bytes]) -> None:
        with self._lock:
            if number > self._ended:
                write_anew(self._path, lines)
                self._ended = number

    def _lines(self) -> list[bytes]:
        spent = (Spent(account, amounts) for account, amounts in self._bounds.ledger.items())
        return [_ENCODER.encode(each) + b"\n" for each in spent]


def _read(path: Path) -> list[Spent]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(_DECODER.decode(line))
    return found


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Spent)
