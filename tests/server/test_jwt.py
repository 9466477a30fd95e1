"""Tokens of an identity provider: whose they are, and that nothing but a right one lets anybody in."""

import base64
import hashlib
import hmac
import json
import sys
import time

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.config.jwt import JwtConfig
from gateway.config.load import ConfigError, load_config
from gateway.server.admin.loaded_references import read_references
from gateway.server.auth.jwt_tokens import JwtTokens, read_jwks, require_pyjwt
from tests.server.bench import Backend, answer, bearer, post
from tests.server.test_reload import reload, tenant

ISSUER, AUDIENCE = "https://idp.example", "turnpike"
RSA, OTHER_RSA = (rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))
EC = ec.generate_private_key(ec.SECP256R1())
NOW = 1_700_000_000.0


def jwk(key, kid: str) -> dict:
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


def jwks(**keys) -> str:
    return json.dumps({"keys": [jwk(key, kid) for kid, key in keys.items()]})


def token(key=RSA, kid="r", algorithm="RS256", *, at: float, **claims) -> str:
    told = {"iss": ISSUER, "aud": AUDIENCE, "tenant": "team-a", "exp": int(at) + 60, **claims}
    stated = {name: value for name, value in told.items() if value is not None}
    return jwt.encode(stated, key, algorithm, {"kid": kid})


def settings(path, **more) -> dict:
    return {"jwks": str(path), "issuer": ISSUER, "audience": AUDIENCE, "leeway_s": 0.0, **more}


async def status_of(bench, text: str) -> int:
    return (await bench.ask(post(headers=bearer(text)))).status


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "jwks.json"
    file.write_text(jwks(r=RSA, e=EC))
    return file


TEAMS = [tenant("team-a"), tenant("team-b", "tp-b")]


async def test_tokens_of_both_kinds_and_keys_side_by_side(start, path):
    bench = await start(tenants=TEAMS, jwt=settings(path))
    now = bench.gateway._clock()
    for right in (token(at=now), token(EC, "e", "ES256", at=now, aud=["x", AUDIENCE]), "tp-b"):
        assert await status_of(bench, right) == 200
    assert len(bench.gateway.listener.heads._known) == 1, "a token is proven on each connection"
    bench.backend.seen.clear()
    await status_of(bench, token(at=now))
    assert bench.backend.seen[0].get(b"authorization") is None, "the token is not passed on"
    both = b"X-API-Key: tp-b\r\n" + bearer(token(at=now))
    assert (await bench.ask(post(headers=both))).status == 401, "two tenants' credentials"


async def test_nothing_else_is_let_in(start, path):
    bench = await start(tenants=TEAMS, jwt=settings(path))
    now = bench.gateway._clock()
    public = RSA.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    right = token(at=now)
    head, body, signature = right.split(".")
    wrong = {
        "expired": token(at=now - 120),
        "without expiry": token(at=now, exp=None),
        "not yet": token(at=now, nbf=int(now) + 50),
        "another issuer": token(at=now, iss="https://evil.example"),
        "another audience": token(at=now, aud="other"),
        "no audience": token(at=now, aud=None),
        "an unknown tenant": token(at=now, tenant="team-z"),
        "no tenant": token(at=now, tenant=None),
        "two tenants": token(at=now, tenant=["team-a", "team-b"]),
        "another key": token(OTHER_RSA, at=now),
        "an unknown key": token(kid="x", at=now),
        "the wrong key": token(kid="e", at=now),
        "none": jwt.encode({"tenant": "team-a", "exp": int(now) + 60}, "", "none", {"kid": "r"}),
        "hmac with the public key": _hmac(body, pem),
        "another algorithm": token(algorithm="RS512", at=now),
        "cut": right[:-8],
        "changed": f"{head}.{body[:-2]}xx.{signature}",
        "long": "eyJ" + "a" * 20_000 + "..",
        "nonsense": "eyJ..",
    }
    let_in = [name for name, text in wrong.items() if await status_of(bench, text) != 401]
    assert let_in == []


def _hmac(body: str, secret: bytes) -> str:
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"r"}').rstrip(b"=").decode()
    mac = hmac.new(secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


async def test_a_tenant_or_a_key_that_is_taken_away_counts_no_more(start, path):
    bench = await start(tenants=TEAMS, jwt=settings(path))
    client, right = await bench.connect(), token(at=bench.gateway._clock())
    assert (await client.ask(post(headers=bearer(right)))).status == 200
    path.write_text(jwks(e=EC))
    await reload(bench)
    assert (await client.ask(post(headers=bearer(right)))).status == 401
    path.write_text(jwks(r=RSA))
    await reload(bench)
    client = await bench.connect()
    assert (await client.ask(post(headers=bearer(right)))).status == 200
    bench.settings["tenants"] = [tenant("team-b", "tp-b")]
    await reload(bench)
    assert (await client.ask(post(headers=bearer(right)))).status == 401
    path.write_text("{}")
    assert "jwt.jwks" in (await reload(bench, 409))["error"]


async def test_keys_come_from_a_url_and_fail_closed(start):
    served = [answer(b"", status=b"503 Unavailable")]

    class Idp(Backend):
        async def _answer_check(self, request, writer) -> bool:
            writer.write(served[0])
            return True

    idp = Idp()
    await idp.open()
    bench = await start(tenants=TEAMS, jwt=settings(f"http://127.0.0.1:{idp.port}/keys"))
    bench.may_log_errors = True
    tokens, right = bench.gateway._client_keys.tokens, token(at=bench.gateway._clock())
    assert await status_of(bench, right) == 401, "no keys are known"
    assert await status_of(bench, "tp-b") == 200
    served[0] = answer(jwks(r=RSA).encode())
    await tokens.fetch()
    assert await status_of(bench, right) == 200
    served[0] = answer(b"nonsense")
    await tokens.fetch()
    assert await status_of(bench, right) == 200, "known keys stay"
    served[0] = answer(jwks(r=OTHER_RSA).encode())
    await tokens.fetch()
    assert await status_of(bench, right) == 401, "the key was replaced under its name"
    await idp.close()


def tokens_of(now: list[float], **more) -> JwtTokens:
    config = msgspec.convert(settings("/x") | more, JwtConfig)
    return JwtTokens(config, read_jwks(jwks(r=RSA)), clock=lambda: now[0])


def test_what_is_remembered_is_bounded_and_whoever_is_forgotten_is_asked_anew(monkeypatch):
    now = [time.time()]
    tokens = tokens_of(now, max_cached=2)
    verified = []
    real = tokens._verify

    def counted(*arguments):
        verified.append(1)
        return real(*arguments)

    monkeypatch.setattr(tokens, "_verify", counted)
    some = [token(at=now[0], jti=str(number)) for number in range(3)]
    for each in some:
        assert tokens.tenant_of(each, {"team-a": 1}) == tokens.tenant_of(each, {"team-a": 1}) == "team-a"
    assert len(verified) == 3 and len(tokens._verified) == 2
    assert tokens.must_reauthenticate() and not tokens.must_reauthenticate()
    now[0] += 61
    assert tokens.tenant_of(some[2], {"team-a": 1}) is None
    assert tokens.must_reauthenticate() and not tokens._verified


def test_old_keys_of_a_url_are_not_believed_for_ever():
    now = [NOW]
    tokens = tokens_of(now)
    assert not tokens.must_reauthenticate()
    tokens = tokens_of(now, jwks="https://idp.example/keys")
    now[0] += 86_401
    assert tokens.must_reauthenticate() and not tokens._keys


def test_without_pyjwt_the_settings_are_refused(monkeypatch, path):
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(ConfigError, match=r"pip install turnpike-gateway\[jwt\]"):
        require_pyjwt()
    tree = {"pools": [{"replicas": [{"url": "http://a"}]}], "tenants": TEAMS, "jwt": settings(path)}
    config = load_config(None, {}, tree)
    with pytest.raises(ConfigError, match="PyJWT"):
        read_references(config, {})


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"tenants": TEAMS}, "team-a has no key_hashes"),
        ({"jwt": settings("/x")}, "no \\[\\[tenants\\]\\]"),
        ({"tenants": TEAMS, "jwt": settings("http://idp.example/keys")}, "jwt.jwks"),
        ({"tenants": TEAMS, "jwt": settings("ftp://x/keys")}, "jwt.jwks"),
    ],
)
def test_settings_that_would_let_in_too_much(more, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_config(None, {}, {"pools": [{"replicas": [{"url": "http://a"}]}], **more})
