"""Authentication of what gateways pass on to one another, and the header that marks it."""

import hmac
from typing import Final

import msgspec

from gateway.domain.decision import Refusal, RefusalReason
from gateway.domain.ids import TenantId
from gateway.server.auth.authenticator import Authenticator, Caller
from gateway.server.auth.client_keys import Tenant
from gateway.shared_state.fleet_secret import Seal
from gateway.wire.endpoints import Endpoint, classify
from gateway.wire.headers import RawHeaders

PATH: Final = "/turnpike/peer"
# The client's address, sealed for the gateway that is to get it: it is of no use at another one.
PASSED: Final = b"x-turnpike-passed"
# What is passed on is of a session whose gateway is gone, and whose heir is who gets it.
INHERITS: Final = b"x-turnpike-inherits"


class Passing:
    """The header that names the client of what a gateway of the fleet passes on."""

    def __init__(self, secret: bytes) -> None:
        self._seal = Seal(secret, "passing")

    def header(self, to: str, client: str) -> bytes:
        """The value of `PASSED` for a gateway of that origin."""
        value = client.encode("ascii", "replace")
        return self._seal.of(to.encode(), value).hex().encode() + b" " + value

    def client_of(self, header: bytes, origin: str) -> str | None:
        """None if no gateway of the fleet sealed it for this origin."""
        name = header.partition(b" ")[2].decode("ascii", "replace")
        return name if name and hmac.compare_digest(header, self.header(origin, name)) else None


class PeerAuthenticator(Authenticator):
    """For what peers pass on: the header names the client, and its key the tenant."""

    def __init__(self, authenticator: Authenticator, passing: Passing, origin: str) -> None:
        self._authenticator = authenticator
        self._passing = passing
        self._origin = origin

    def authorize(self, method: str, target: bytes, headers: RawHeaders, peer: str) -> Caller | Refusal:
        ours = {name.lower(): value for name, value in headers}
        client = self._passing.client_of(ours.get(PASSED, b""), self._origin)
        if client is None:
            message = "This port is for the gateways alone."
            return Refusal(reason=RefusalReason.FORBIDDEN, message=message)
        if target == PATH.encode("ascii"):
            return Caller(_A_PEER, PATH, classify(method, PATH), is_from_peer=True)
        found = self._authenticator.judge_client(method, target, headers, client)
        if isinstance(found, Caller):
            return msgspec.structs.replace(found, is_from_peer=True, takes_over_session=INHERITS in ours)
        return found

    def endpoint(self, method: str, target: bytes) -> Endpoint:
        return self._authenticator.endpoint(method, target)


_A_PEER: Final = Tenant(TenantId("a peer"), may_control_engines=False)
