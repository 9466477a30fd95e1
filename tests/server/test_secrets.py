"""No secret of the settings gets out: not into files, the log, metrics, the snapshot, or the stream."""

import logging

from gateway.server.tenants import hash_key
from tests.server.bench import eventually, get, post

CANARY = "canary"


async def test_no_secret_is_in_anything_that_comes_out(start, tmp_path, caplog):
    key_file = tmp_path / "key"
    key_file.write_text(f"{CANARY}-in-a-file")
    found = tmp_path / "replicas"
    found.write_text(f"http://user:{CANARY}-password@gpu:8000/?key={CANARY}-query\n")
    tenant_key, control_key = f"{CANARY}-tenant", f"{CANARY}-control"
    with caplog.at_level(logging.DEBUG):
        bench = await start(
            pools=[
                {"name": "a", "backends": 1, "replica": {"api_key_env": "REPLICA_KEY"}, "models": ["m"]},
                {"name": "b", "backends": 1, "replica": {"api_key_file": str(key_file)}},
                {"name": "c", "backends": 0, "discovery": {"file": str(found), "period_s": 0.01}},
            ],
            tenants=[{"name": "t", "key_hashes": [hash_key(tenant_key)]}],
            server={"control_key_hashes": [hash_key(control_key)]},
            hints={"cache_salt_secret": f"{CANARY}-salt-of-16-bytes"},
            otel={
                "endpoint": "http://127.0.0.1:9/v1/traces",
                "headers": {"x-key": f"{CANARY}-header"},
                "authorization_env": "COLLECTOR_KEY",
            },
            stream={"path": str(tmp_path / "stream")},
            environ={"REPLICA_KEY": f"{CANARY}-replica", "COLLECTOR_KEY": f"{CANARY}-collector"},
        )
        await eventually(lambda: "discovery_failed pool=c" in caplog.text)
        key = f"Authorization: Bearer {tenant_key}\r\n".encode()
        assert (await bench.ask(post(headers=key))).status == 200
        await bench.backends[1].close()
        control = f"Authorization: Bearer {control_key}\r\n".encode()
        told = b""
        for path in (b"/metrics", b"/turnpike/snapshot", b"/turnpike/readyz", b"/turnpike/graphs"):
            told += (await bench.control(get(path, control))).body
        await bench.gateway.stop()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path not in (key_file, found))
    secrets = [
        CANARY,
        hash_key(tenant_key).removeprefix("sha256:"),
        hash_key(control_key).removeprefix("sha256:"),
    ]
    for secret in secrets:
        assert secret not in caplog.text
        assert secret.encode() not in told + written
    assert b'"type":"gpu_end"' in written and b"turnpike_turns_total" in told
    assert bench.backend.seen[0].get(b"authorization") == f"Bearer {CANARY}-replica".encode()
