"""The door for what gateways pass on to one another, and how a request says that it was."""

import hmac
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import TenantId
from gateway.domain.request import Protocol
from gateway.server.direct_talk import PATH
from gateway.server.door import Door, Visitor
from gateway.server.tenants import Tenant
from gateway.wire.endpoints import classify
from gateway.wire.headers import RawHeaders

PASSED: Final = b"x-turnpike-passed"
"""The secret of the fleet, and the client's address."""
INHERITS: Final = b"x-turnpike-inherits"
"""What is passed on is of a session whose gateway is gone, and whose heir is who gets it."""


class PeerDoor(Door):
    """The door for what peers pass on: they say whose request it is, and the tenant's key says the rest."""

    def __init__(self, door: Door, token: Callable[[], str]) -> None:
        self._door = door
        self._token = token

    def judge(self, method: str, target: bytes, headers: RawHeaders, peer: str) -> Visitor | Refusal:
        ours = {name.lower(): value for name, value in headers}
        secret, _, client = ours.get(PASSED, b"").partition(b" ")
        if not client or not hmac.compare_digest(secret, self._token().encode("ascii")):
            message = "This port is for the gateways alone."
            return Refusal(reason=RefusalReason.FORBIDDEN, message=message)
        if target == PATH.encode("ascii"):
            return Visitor(_A_PEER, PATH, classify(method, PATH), was_passed_on=True)
        found = self._door.judge_client(method, target, headers, client.decode("ascii", "replace"))
        if isinstance(found, Visitor):
            return msgspec.structs.replace(found, was_passed_on=True, inherits=INHERITS in ours)
        return found

    def protocol_of(self, path: str) -> Protocol:
        return self._door.protocol_of(path)


_A_PEER: Final = Tenant(TenantId("a peer"), may_control_engines=False)
