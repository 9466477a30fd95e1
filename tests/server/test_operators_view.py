"""What an operator sees of the gateway's own certificates, of files that are read again, and of its store."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from gateway.config.tenants import StoredKey
from gateway.server.certificates import CertificateEnds
from gateway.server.tenants import hash_key
from tests.server.bench import bearer, eventually, get, post
from tests.server.test_failures import metrics_of
from tests.server.test_reload import reload
from tests.server.test_several_gateways import SECRET

DAY_S = 86_400.0


def renew(authority: trustme.CA, files: dict[str, str], *, days: int) -> float:
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    own = authority.issue_cert("127.0.0.1", not_before=end - timedelta(days=400), not_after=end)
    own.private_key_pem.write_to_path(files["tls_key"])
    own.cert_chain_pems[0].write_to_path(files["tls_certificate"])
    return end.timestamp()


async def expires(bench: Any) -> float:
    metrics = (await metrics_of(bench)).splitlines()
    (line,) = [each for each in metrics if each.startswith("turnpike_certificate")]
    name, value = line.rsplit(" ", 1)
    assert name == 'turnpike_certificate_expires_seconds{setting="server.tls_certificate"}'
    return float(value)


@pytest.mark.parametrize(("days", "word"), [(13, "expires"), (-1, "expired")])
async def test_the_end_of_its_own_certificate_is_told_and_a_renewed_one_is(
    start, tls, certificates, caplog, days, word
):
    authority, (server, trust) = certificates[0], tls
    end = renew(authority, server, days=days)
    bench = await start(server=server)
    await eventually(lambda: f"server.tls_certificate {word} at" in caplog.text)
    assert await expires(bench) == end
    (failing,) = (await bench.control(get(b"/turnpike/readyz"))).json()["failing"]
    assert failing.startswith(f"server.tls_certificate {word} at")
    caplog.clear()
    end = renew(authority, server, days=90)
    assert await expires(bench) != end, "what is shown is the old one until it is read again"
    told = {each["key"]: each["after"] for each in (await reload(bench))["changes"]}
    assert told == dict.fromkeys(("server.tls_certificate", "server.tls_key"), "read anew")
    assert await expires(bench) == end and (await reload(bench))["changes"] == []
    client = await bench.connect(ssl=trust)
    assert (await client.ask(post())).status == 200
    assert "certificate_expires" not in caplog.text


def test_it_is_logged_once_a_day_from_two_weeks_before_the_end(caplog):
    caplog.set_level(logging.WARNING)
    ends = CertificateEnds({"picker.tls_certificate": 20 * DAY_S})
    for quarter in range(4 * 22):
        ends.warn(now=quarter * DAY_S / 4)
    assert caplog.text.count("certificate_expires") == 15
    assert "expired" in caplog.records[-1].getMessage()


async def test_a_key_file_that_was_read_anew_is_named(start, tmp_path):
    (file := Path(tmp_path / "key")).write_text("old")
    bench = await start()
    replica = bench.settings["pools"][0]["replicas"][0]
    replica["api_key_file"] = str(file)
    key = "pools[default].replicas[default-0].api_key_file"
    assert {each["key"] for each in (await reload(bench))["changes"]} == {key}
    file.write_text("new")
    (told,) = (await reload(bench))["changes"]
    assert told["key"] == key and told["after"] == "read anew"


async def test_a_store_that_is_down_is_seen(start, redis):
    bench = await start(fleet_secret=SECRET, shared={"url": f"{redis.url}/0", "deadline_ms": 1000})
    await eventually(lambda: bench.gateway._peers.store.is_up)
    assert "\nturnpike_store_up 1.0\n" in await metrics_of(bench)
    redis.kill()
    try:
        await the_store_is_seen_to_be_down(bench)
    finally:
        redis.start()


async def the_store_is_seen_to_be_down(bench: Any) -> None:
    await eventually(lambda: not bench.gateway._peers.store.is_up, "the store is still up")
    assert "\nturnpike_store_up 0.0\n" in await metrics_of(bench)
    ready = await bench.control(get(b"/turnpike/readyz"))
    assert ready.status == 200 and ready.json()["failing"] == ["the shared store"]
    assert (await bench.control(get(b"/turnpike/snapshot"))).json()["store_down"] is True
    assert (await bench.ask(post())).status == 200


async def test_where_no_key_counts_the_operator_sees_it(start, tmp_path):
    (file := Path(tmp_path / "keys")).touch(0o600)
    bench = await start(server={"keys_path": str(file)}, tenants=[{"name": "default"}])
    assert (await bench.ask(post(headers=bearer("any")))).status == 401
    (failing,) = (await bench.control(get(b"/turnpike/snapshot"))).json()["failing"]
    assert "no client key is valid" in failing
    key = StoredKey(name="a", tenant="default", hash=hash_key("any"), created=datetime.now(UTC))
    file.write_bytes(msgspec.json.encode(key) + b"\n")
    await eventually(lambda: not bench.gateway._tenants.has_no_key)
    assert (await bench.control(get(b"/turnpike/readyz"))).json()["failing"] == []


async def test_without_a_store_none_is_told_of(start):
    bench = await start()
    assert "turnpike_store_up" not in await metrics_of(bench)
    assert (await bench.control(get(b"/turnpike/snapshot?sessions=0"))).json()["store_down"] is False
