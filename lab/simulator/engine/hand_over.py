"""KV caches that come from another replica: a connector of vLLM's, and what its workers would do.

The scheduler's side of it, `HandOver`, does what NIXL's pulling connector does: the blocks of a prefill leg
are kept when it ends, until they were pulled or their lease has ended; a turn that was told of them waits,
with blocks of its own, until they have come. The workers' side, `KvExchange`, is played: bytes go over the
simulated network.

Deviations: asking for blocks takes no time of its own but the network's latency.

Invariants: what is sent cannot be overwritten before it has come; a lease ends once; a turn pulls at most
once: whatever it lacks then, it computes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from lab.simulator.engine.options import EngineSpec
from lab.simulator.engine.turn import EngineTurn, KvSource
from lab.simulator.kernel import Alarm, Kernel
from lab.simulator.network import Network, Transfer

LEASE_S: Final = 30.0
"""As vLLM's NIXL connector keeps what nobody pulls."""


def exchange_config(spec: EngineSpec) -> Any:
    """What `vllm serve` would be given."""
    return KVTransferConfig(
        kv_connector=HandOver.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        engine_id=str(spec.name),
    )


class HandOver(KVConnectorBase_V1):  # type: ignore[misc]
    """The scheduler's side. Workers' methods are never called."""

    exchange: "KvExchange"
    """To be set before the first request."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = self.exchange.matched(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.exchange.allocated(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Sequence[int]) -> tuple[bool, None]:
        return self.exchange.keeps(request), None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def wait_for_save(self) -> None:
        raise NotImplementedError


class _Coming(msgspec.Struct, eq=False):
    """What a turn of this engine pulls."""

    number: int
    source: KvSource
    transfer: Transfer | None = None


class KvExchange:
    """The workers' side of one engine's connector, both as it sends and as it receives."""

    stores_full_blocks = False

    def __init__(
        self,
        spec: EngineSpec,
        scheduler: Any,
        *,
        kernel: Kernel,
        turn_of: Callable[[int], EngineTurn],
        before: Callable[[], None],
        changed: Callable[[], None],
        arrived: Callable[[], None],
    ) -> None:
        """`turn_of`: a turn in the engine, by its number; `before`: brings the books to now, before blocks
        are kept or released; `changed`: there are more or fewer of them; `arrived`: somebody who waits may go
        on."""
        self.name = spec.name
        self._scheduler = scheduler
        self._kernel = kernel
        self._turn_of = turn_of
        self._before = before
        self._changed = changed
        self._arrived = arrived
        self._token_bytes = spec.profile.model.kv_bytes_per_token
        self.network: Network | None = None
        """To be set before the first request that has a source."""
        self._leases: dict[int, Alarm | None] = {}
        """Of legs that have ended, by number; without an alarm while they are being pulled."""
        self._coming: dict[int, _Coming] = {}
        self._sending: dict[_Coming, KvExchange] = {}
        """From here, and to whom."""
        self._received: set[int] = set()
        self._failed: set[int] = set()
        self.pulled_tokens = 0
        scheduler.connector.exchange = self

    # --- as it receives ----------------------------------------------------------------------------

    def matched(self, request: Any, local_tokens: int) -> int:
        """Tokens behind the local ones that can be had."""
        source = self._turn_of(request.request_id).source
        if source is None or source.is_over:
            return 0
        if not source.exchange.holds(source.leg):
            source.is_over = True
            return 0
        return max(0, int(request.num_prompt_tokens) - local_tokens)

    def allocated(self, request: Any, tokens: int) -> None:
        """It has blocks for so many that it was told it can have."""
        turn = self._turn_of(request.request_id)
        source = turn.source
        if source is None or source.is_over:
            return
        source.is_over = True
        if not tokens:
            source.exchange.release(source.leg)
            return
        assert self.network is not None
        source.exchange.lend(source.leg)
        coming = self._coming[turn.number] = _Coming(turn.number, source)
        source.exchange._sending[coming] = self  # noqa: SLF001 - its twin
        self.pulled_tokens += tokens
        coming.transfer = self.network.send(
            source.exchange.name, self.name, tokens * self._token_bytes, partial(self._came, coming)
        )

    def _came(self, coming: _Coming, *, is_whole: bool = True) -> None:
        del self._coming[coming.number]
        coming.source.exchange.sent(coming)
        self._received.add(coming.number)
        if not is_whole:
            self._failed.add(coming.number)
        self._arrived()

    def take_ended(self, *, now: float) -> Any:
        """What workers report of what has come: a step's output; None if nothing has."""
        if not self._received:
            return None
        report = KVConnectorOutput(finished_recving=self._received, failed_recving=self._failed)
        self._received, self._failed = set(), set()
        return ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=report)

    def begin_step(self, meta: Any, *, now: float) -> tuple[float, list[float]]:
        """As `HostTier`: nothing holds a step up."""
        return now, []

    def send_deferred(self, *, now: float) -> None:
        """As `HostTier`: nothing is put off."""

    def next_end_s(self) -> float | None:
        """As `HostTier`: whoever waits is told."""
        return None

    # --- as it sends -------------------------------------------------------------------------------

    def keeps(self, request: Any) -> bool:
        """Whether the blocks of a request that has ended are kept for another engine."""
        number = request.request_id
        if not self._turn_of(number).hands_over or request.status is RequestStatus.FINISHED_ABORTED:
            return False
        self._leases[number] = self._kernel.after(LEASE_S, self.release, number)
        return True

    def holds(self, leg: int) -> bool:
        return leg in self._leases

    def release(self, leg: int) -> None:
        """What it computed is not kept any more. Nothing happens if it is not."""
        if leg not in self._leases:
            return
        alarm = self._leases.pop(leg)
        if alarm is not None:
            alarm.call_off()
        self._before()
        self._scheduler._update_from_kv_xfer_finished(  # noqa: SLF001 - as a step's output would
            KVConnectorOutput(finished_sending={leg})
        )
        self._changed()

    def lend(self, leg: int) -> None:
        """Keeps what is pulled now until it was `sent`."""
        alarm = self._leases[leg]
        assert alarm is not None
        alarm.call_off()
        self._leases[leg] = None

    def sent(self, coming: _Coming) -> None:
        """Or not, as it turns out."""
        del self._sending[coming]
        self.release(coming.source.leg)

    def lost(self) -> None:
        """The replica is gone: nothing that others pull from it will come."""
        for coming, target in tuple(self._sending.items()):
            assert coming.transfer is not None and target.network is not None
            target.network.call_off(coming.transfer)
            target._came(coming, is_whole=False)  # noqa: SLF001 - its twin
        self.end()

    def end(self) -> None:
        """Nothing is pulled any more."""
        for leg in tuple(self._leases):
            self.release(leg)
