"""The secret that the gateways of a store know, as one of them has it: by it they know one another.

A gateway that starts while the store is away draws a secret of its own, with which it is alone. When the
store is there it waits, as any that starts, for those that have one to put it back, and takes theirs; what it
knew by its own hashes is of no use from then on.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from gateway.shared_state.fleet_secret import derived, keep, standing
from gateway.shared_state.protocol import Store, StoreUnavailable

_log: Final = logging.getLogger(__name__)


class PeerSecret:
    token: str
    """By which peers know one another."""
    fleet: int
    """The same at all that know the same secret; nothing else can be told from it."""

    def __init__(self, secret: bytes, on_new: Callable[[bytes], None] | None) -> None:
        """`secret`: the fleet's; or where `on_new` is given, its own until the store has the fleet's, of
        which that is told."""
        self._on_new = on_new
        self._has_warned = False
        self._know(secret)

    @property
    def is_its_own(self) -> bool:
        """It may not be the fleet's."""
        return self._on_new is not None

    def _know(self, secret: bytes) -> None:
        self._secret = secret
        self.fleet = derived(secret, "fleet")
        self.token = f"{derived(secret, 'peers'):x}"

    async def keep(self, store: Store, *, has_settled: bool) -> None:
        """A store that lost it would give who starts another one. `has_settled`: all that know the fleet's
        had the time to put it back."""
        must_wait = self.is_its_own and not has_settled
        with contextlib.suppress(StoreUnavailable):
            there = await (standing(store) if must_wait else keep(store, self._secret))
            if there is None:
                return
            if there == self._secret:
                self._on_new = None
            elif self._on_new is not None:
                self._know(there)
                self._on_new(there)
                self._on_new = None
                _log.warning("the shared store is there: going on with the secret of its gateways")
            elif not self._has_warned:
                self._has_warned = True
                _log.warning("the shared store has another secret: sessions are shared after a restart")
