"""Tokens that an identity provider signs, beside hashed keys."""

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config.privacy import PRIVATE

# A URL that nobody on the way can change, or a path.
_JWKS = r"^(https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]|[^:]*$)"


class JwtConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bearer tokens (JWT, RS256 or ES256) of one issuer; needs `pip install turnpike-gateway[jwt]`
    (docs/operate/production.md#tokens-of-an-identity-provider)."""

    jwks: Annotated[str, Meta(pattern=_JWKS), PRIVATE]
    """The issuer's public keys (JWKS): a file, or an https URL."""
    issuer: Annotated[str, Meta(min_length=1), PRIVATE]
    """What a token's `iss` must be."""
    audience: Annotated[str, Meta(min_length=1), PRIVATE]
    """What a token's `aud` must be, or hold."""
    tenant_claim: Annotated[str, Meta(min_length=1), PRIVATE] = "tenant"
    """The claim that names the tenant, one of `[[tenants]]`. A list must name exactly one of them."""
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 10.0
    """Tolerated clock difference to the issuer."""
    refresh_s: Annotated[float, Meta(ge=10)] = 300.0
    """Polling interval of the URL. If it fails, the last keys stay for a day."""
    max_cached: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Verified tokens kept until they expire; about 200 bytes each."""

    @property
    def is_url(self) -> bool:
        return "://" in self.jwks
