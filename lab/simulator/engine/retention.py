"""Blocks that a policy holds between the turns of a conversation, with vLLM's own `touch` and `free_blocks`.

Released when the conversation's next turn has begun to run here, when their time is over, or under pressure:
for a running request that needs a block at once, as for a waiting one if nothing runs; for one that waits
while others run after the policy's grace, and only if there is enough to release.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from vllm.v1.request import RequestStatus

from lab.simulator.engine.policy import EnginePolicy, Retained, overridden
from lab.simulator.engine.turn import EngineTurn
from lab.simulator.kernel import Alarm, Kernel

_Conversation = tuple[str, int]

_RUNNING: Final = RequestStatus.RUNNING


class _Held(msgspec.Struct, eq=False):
    told: Retained
    blocks: list[Any]
    alarm: Alarm | None


class Retention:
    def __init__(
        self,
        scheduler: Any,
        policy: EnginePolicy,
        kernel: Kernel,
        block_size: int,
        *,
        before_release: Callable[[], None],
        after_release: Callable[[], None],
    ) -> None:
        """`before_release` and `after_release` are called around a release that is no part of a step."""
        self._scheduler = scheduler
        self._policy = policy
        self._kernel = kernel
        self._block_size = block_size
        self._before_release = before_release
        self._after_release = after_release
        self._pool = scheduler.kv_cache_manager.block_pool
        self._held: dict[_Conversation, _Held] = {}
        self._held_blocks = 0
        self._refused: tuple[int, float] | None = None
        """Who waits at the head of the queue, and since when it was refused."""
        self._has_order = overridden(policy, "release_order")
        self._allocate = scheduler.kv_cache_manager.allocate_slots
        scheduler.kv_cache_manager.allocate_slots = self._allocate_under_pressure

    def __len__(self) -> int:
        return len(self._held)

    def retained_blocks(self) -> int:
        return self._held_blocks

    def ended(self, turn: EngineTurn, blocks: list[Any]) -> None:
        """A turn ended; its blocks are about to be freed."""
        now = self._kernel.now
        until_s = self._policy.retain_until(turn, now=now)
        if until_s is None or until_s <= now:
            return
        full = [block for block in blocks if block.block_hash is not None]
        self.let_go(turn)
        self._pool.touch(full)
        told = Retained(turn=turn, since_s=now, until_s=until_s, blocks=len(full))
        alarm = self._kernel.at(until_s, self._expired, turn) if until_s != float("inf") else None
        self._held[_conversation(turn)] = _Held(told, full, alarm)
        self._held_blocks += len(full)

    def let_go(self, turn: EngineTurn) -> None:
        """What is held of the turn's conversation is held no more."""
        held = self._held.pop(_conversation(turn), None)
        if held is None:
            return
        if held.alarm is not None:
            held.alarm.call_off()
        self._held_blocks -= len(held.blocks)
        self._pool.free_blocks(reversed(held.blocks))

    def let_all_go(self) -> None:
        """Nothing is held any more."""
        for held in tuple(self._held.values()):
            self.let_go(held.told.turn)

    def grace_ends_s(self) -> float | None:
        """When a request that waits gets its way; None while none must wait for it."""
        if not self._held or self._refused is None:
            return None
        return self._refused[1] + self._policy.waiting_grace_s

    def _expired(self, turn: EngineTurn) -> None:
        self._before_release()
        self.let_go(turn)
        self._after_release()

    def _allocate_under_pressure(self, request: Any, *arguments: Any, **named: Any) -> Any:
        given = self._allocate(request, *arguments, **named)
        if given is None and self._held and self._gets_its_way(request, named):
            for retained in self._in_order():
                self.let_go(retained.turn)
                given = self._allocate(request, *arguments, **named)
                if given is not None:
                    break
        if given is not None and self._refused is not None and self._refused[0] == request.request_id:
            self._refused = None
        return given

    def _gets_its_way(self, request: Any, named: dict[str, Any]) -> bool:
        if request.status == _RUNNING:
            return True
        now = self._kernel.now
        if self._refused is None or self._refused[0] != request.request_id:
            self._refused = request.request_id, now
        if self._scheduler.running and now < self._refused[1] + self._policy.waiting_grace_s:
            return False
        hits = named.get("new_computed_blocks")
        missing = -(-request.num_tokens // self._block_size) - (
            len(hits.blocks[0]) if hits is not None else 0
        )
        enough: bool = missing <= self._pool.get_num_free_blocks() + self._held_blocks
        return enough

    def _in_order(self) -> list[Retained]:
        retained = [held.told for held in self._held.values()]
        if self._has_order:
            return list(self._policy.release_order(retained, now=self._kernel.now))
        return sorted(retained, key=lambda each: each.until_s)


def _conversation(turn: EngineTurn) -> _Conversation:
    return turn.session.id, turn.ref.thread
