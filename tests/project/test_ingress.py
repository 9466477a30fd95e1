"""`docker/ingress/envoy.yaml`, in a real Envoy: it takes the file, and passes events on as they come."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme
import yaml

from scripted_engine.ports import free_port
from tests.prerequisites import require_command
from tests.project.layout import ROOT
from tests.server.bench import DELTA, DONE, STREAM_HEAD, Backend, chunk, pauses, post

EXAMPLE = ROOT / "docker/ingress/envoy.yaml"


def on_this_machine(folder: Path, port: int, gateway: int) -> Path:
    """The example with other addresses and files; nobody is there to be asked for its health."""
    own = trustme.CA().issue_cert("localhost")
    own.private_key_and_cert_chain_pem.write_to_path(str(folder / "own.pem"))
    text = EXAMPLE.read_text()
    for name in ("pem", "key"):
        text = text.replace(f"/etc/envoy/tls/llm.{name}", str(folder / "own.pem"))
    told = yaml.safe_load(text)
    told["static_resources"]["listeners"][0]["address"]["socket_address"]["port_value"] = port
    (cluster,) = told["static_resources"]["clusters"]
    del cluster["health_checks"]
    for each in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        each["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": gateway}
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


@pytest.mark.slow  # not slow, but `make check` does without Envoy
async def test_envoy_passes_events_on_at_once(tmp_path):
    backend, goes_on, port = Backend(), asyncio.Event(), free_port()
    await backend.open()
    backend.script = pauses(STREAM_HEAD + chunk(DELTA), goes_on, chunk(DONE) + b"0\r\n\r\n")
    path = on_this_machine(tmp_path, port, backend.port)
    command = [require_command("envoy"), "-c", str(path), "--disable-hot-restart", "--concurrency", "1"]
    with (tmp_path / "log").open("wb") as log:
        envoy = subprocess.Popen(command, stderr=log)
    try:
        trusts_all = ssl._create_unverified_context()
        async with asyncio.timeout(30):
            while b"starting main dispatch loop" not in (tmp_path / "log").read_bytes():
                assert envoy.poll() is None, (tmp_path / "log").read_text()
                await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusts_all)
            writer.write(post())
            assert DELTA in await reader.readuntil(DELTA)
            assert not goes_on.is_set()
            goes_on.set()
            assert DONE in await reader.readuntil(DONE)
        writer.close()
        assert b"x-forwarded-for" in backend.seen[0].head
    finally:
        envoy.terminate()
        envoy.wait()
        await backend.close()
