"""Whose token is it? Bearer tokens that an identity provider signed, verified here.

PyJWT does the verifying. What is not right in every respect is nobody's: unknown key, other algorithm, no
expiry, other issuer or audience, a tenant that is not configured; and everything while no keys are known.

Invariants: the algorithm follows from the key, never from the token; a token that was verified is not
verified again until it expires, and not accepted longer; at most `max_cached` of them are remembered; the
identities of connections are verified again when any remembered token expires or is forgotten.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from gateway.config.jwt import JwtConfig
from gateway.config.load import ConfigError
from gateway.telemetry.log_lines import ChangeLog, log_event
from gateway.upstream.bounded_answers import read_at_most
from gateway.upstream.replica import open_session

# By the key's type; of EC keys, those of P-256.
_ALGORITHMS: Final = {"RSA": "RS256", "EC": "ES256"}
_MAX_TOKEN: Final = 8192
_MAX_JWKS: Final = 1 << 20
_FETCH_S: Final = 10.0
# Between two looks because a token names a key that is not known.
_SOONEST_S: Final = 5.0
_KEYS_STAY_S: Final = 86_400.0

# By key id: the algorithm, and the key as PyJWT wants it.
Keys = Mapping[str | None, tuple[str, Any]]


class _Verified(NamedTuple):
    tenant: str
    expires_s: float
    """Unix time."""


def require_pyjwt() -> Any:
    try:
        import jwt  # noqa: PLC0415 - only who asks needs it

        jwt.get_algorithm_by_name("RS256")
    except (ImportError, NotImplementedError):
        raise ConfigError("jwt: needs PyJWT with cryptography: pip install turnpike-gateway[jwt]") from None
    return jwt


def read_jwks(text: bytes | str) -> Keys:
    """The keys that may sign. Raises ConfigError if there are none."""
    jwt = require_pyjwt()
    try:
        keys = jwt.PyJWKSet.from_json(text.decode() if isinstance(text, bytes) else text).keys
    except (jwt.PyJWTError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"jwt.jwks: is no set of keys: {error}") from None
    found: dict[str | None, tuple[str, Any]] = {}
    for key in keys:
        algorithm = _ALGORITHMS.get(key.key_type)
        is_for_signing = key.public_key_use in (None, "sig")
        if algorithm is not None and key.algorithm_name == algorithm and is_for_signing:
            found[key.key_id] = (algorithm, key.key)
    if not found:
        raise ConfigError("jwt.jwks: holds no key for RS256 or ES256")
    return found


def read_jwks_file(config: JwtConfig) -> Keys | None:
    """None for a URL. Blocks; raises ConfigError."""
    require_pyjwt()
    if config.is_url:
        return None
    try:
        return read_jwks(Path(config.jwks).read_bytes())
    except OSError as error:
        raise ConfigError(f"jwt.jwks: {error.strerror}: {config.jwks}") from None


def looks_like_jwt(key: str) -> bool:
    return key.startswith("eyJ") and key.count(".") == 2


class JwtTokens:
    def __init__(self, config: JwtConfig, keys: Keys | None, *, clock: Callable[[], float]) -> None:
        """`keys`: of a file; `clock`: Unix time."""
        self.config = config
        self._jwt = require_pyjwt()
        self._clock = clock
        self._keys: Keys = keys or {}
        self._verified: dict[bytes, _Verified] = {}
        self._has_forgotten = False
        self._log = ChangeLog()
        self._is_key_missing = asyncio.Event()
        # When keys last came.
        self._set_s = clock()

    def tenant_of(self, token: str, known: Mapping[str, object]) -> str | None:
        """The name of one of the `known` tenants, or None."""
        if len(token) > _MAX_TOKEN:
            return None
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        verified = self._verified.get(digest)
        if verified is None:
            verified = self._verify(token, known)
            if verified is None:
                return None
            if len(self._verified) >= self.config.max_cached:
                self._verified.pop(next(iter(self._verified)))
                self._has_forgotten = True
            self._verified[digest] = verified
        is_fresh = verified.expires_s > self._clock()
        return verified.tenant if is_fresh and verified.tenant in known else None

    def set_keys(self, keys: Keys) -> None:
        self._set_s = self._clock()
        if keys.keys() != self._keys.keys() or any(keys[kid][1] != self._keys[kid][1] for kid in keys):
            self._keys = keys
            self._verified.clear()
            self._has_forgotten = True

    def must_reauthenticate(self) -> bool:
        """Whether a token that may identify a connection has expired, or was forgotten, since the last
        call."""
        now = self._clock()
        if self.config.is_url and self._keys and now - self._set_s > _KEYS_STAY_S:
            log_event(logging.ERROR, "jwt_keys_too_old", refused="all tokens")
            self.set_keys({})
        expired = [digest for digest, each in self._verified.items() if each.expires_s <= now]
        for digest in expired:
            del self._verified[digest]
        has_forgotten, self._has_forgotten = self._has_forgotten or bool(expired), False
        return has_forgotten

    def _verify(self, token: str, known: Mapping[str, object]) -> _Verified | None:
        config, jwt = self.config, self._jwt
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            found = self._keys.get(kid)
            if found is None and kid is None and len(self._keys) == 1:
                found = next(iter(self._keys.values()))
            if found is None:
                self._is_key_missing.set()
                return None
            algorithm, key = found
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=config.audience,
                issuer=config.issuer,
                leeway=config.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        named = claims.get(config.tenant_claim)
        names = named if isinstance(named, list) else [named]
        tenants = [name for name in names if isinstance(name, str) and name in known]
        if len(tenants) != 1:
            return None
        return _Verified(tenants[0], float(claims["exp"]) + config.leeway_s)

    async def keep_keys(self) -> None:
        while True:
            await self.fetch()
            await asyncio.sleep(_SOONEST_S)
            self._is_key_missing.clear()
            try:
                async with asyncio.timeout(max(0.0, self.config.refresh_s - _SOONEST_S)):
                    await self._is_key_missing.wait()
            except TimeoutError:
                continue

    async def fetch(self) -> None:
        try:
            async with (
                open_session(_FETCH_S) as session,
                session.get(self.config.jwks, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise ConfigError(f"jwt.jwks: the answer is {response.status}")
                body = await read_at_most(response.content, _MAX_JWKS)
                if body is None:
                    raise ConfigError("jwt.jwks: is too large")
                keys = read_jwks(body)
        except (ConfigError, aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            self._log.log("keys", logging.WARNING, "jwt_keys_unread", cause=why)
        else:
            self.set_keys(keys)
