"""Who did what on the control plane, and what came of it: a record in the information stream for each action.

No record is kept of what comes by itself, again and again: heartbeats of replicas that are members already,
reports of hosts, agents' spans. Nothing of a body is kept, nor a key: of a key the beginning of its hash, by
which it is found in the settings.
"""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.domain.allowance import Allowance
from gateway.domain.records import ControlActed
from gateway.server.admin.access import READS, has_key, key_hash

_HASH_SHOWN: Final = len("sha256:") + 12
_PER_S: Final = 5.0
# Records: repeated requests in vain cannot push everything else out of what is kept.
_BURST: Final = 200.0
_MAX_PATH: Final = 256


class Audit:
    def __init__(self, take: Callable[[ControlActed], None], *, clock: Callable[[], float]) -> None:
        self._take = take
        self._clock = clock
        self._allowance = Allowance(per_s=_PER_S, burst=_BURST)
        # Actions without a record: there were too many.
        self.left_out = 0

    def record(self, who: str, what: str, outcome: int) -> None:
        now = self._clock()
        if not self._allowance.take(now=now):
            self.left_out += 1
            return
        self._take(ControlActed(at_s=now, who=who, what=what[:_MAX_PATH], outcome=outcome))

    @web.middleware
    async def watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method in READS or request.path.startswith(_HOSTS):
            return await handler(request)
        status = 500
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            is_heartbeat = request.path == _REPLICAS and status == 200
            if not is_heartbeat and status != 204:
                who = f"key {key_hash(request)[:_HASH_SHOWN]}" if has_key(request) else "no key"
                self.record(who, f"{request.method} {request.path}", status)


_REPLICAS: Final = "/turnpike/replicas"
_HOSTS: Final = "/turnpike/hosts/"
