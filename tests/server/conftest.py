import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme
import uvloop

from gateway.server import app
from gateway.server.admin import api as control
from gateway.server.http import listener
from lab.simulator.replay import replay
from tests.server.bench import Bench
from tests.server.envoy_stream import PickerBench
from tests.shared_state.servers import RedisServer
from tests.telemetry.otlp_receiver import Receiver

StartBench = Callable[..., Awaitable[Bench]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[StartBench]:
    """Starts a bench. When the test is over, its books are checked, and its brain is asked again."""
    # Timeouts are looked after once a second; tests have less time.
    monkeypatch.setattr(app, "_SWEEP_PERIOD_S", 0.05)
    monkeypatch.setattr(listener, "_SWEEP_PERIOD_S", 0.05)
    # Tests read metrics right behind what these tell of.
    monkeypatch.setattr(control, "_MAX_AGE_S", 0.0)
    benches: list[Bench] = []

    async def start_bench(**settings: Any) -> Bench:
        bench = Bench()
        recording = {"path": str(tmp_path / f"events-{len(benches)}")}
        await bench.start(**{"recording": recording, **settings})
        benches.append(bench)
        return bench

    yield start_bench
    for number, bench in reversed(list(enumerate(benches))):
        await bench.finish(is_last=number == 0)
        if (log := tmp_path / f"events-{number}").exists():
            assert replay(log).events > 0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest_asyncio.fixture
async def store_url(redis: RedisServer) -> str:
    with redis.admin() as admin:
        admin.flushall()
    return redis.url


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest_asyncio.fixture
async def begin() -> AsyncIterator[Callable[..., Awaitable[PickerBench]]]:
    """Starts a picker, to be asked by gRPC's own client."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(**settings: Any) -> PickerBench:
            bench = PickerBench()
            picker = {"listen": "127.0.0.1:0", **settings.pop("picker", {})}
            await bench.start(replicas=1, picker=picker, **settings)
            stack.push_async_callback(bench.finish, is_last=False)
            return bench

        yield start


@pytest.fixture
def tls(certificates: tuple[trustme.CA, dict[str, str]]) -> tuple[dict[str, str], ssl.SSLContext]:
    authority, files = certificates
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return {name: files[name] for name in ("tls_certificate", "tls_key")}, trust


@pytest.fixture
def tls_upstream(certificates: tuple[trustme.CA, dict[str, str]]) -> dict[str, Any]:
    """What a bench is started with whose backends speak TLS."""
    authority, files = certificates
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    return {"backend_tls": context, "upstream": {"ca_file": files["tls_client_ca"]}}


@pytest.fixture
def peer_tls(tmp_path: Path) -> dict[str, str]:
    """The settings with which gateways speak TLS with one another, by a name that their addresses are not."""
    authority = trustme.CA()
    own, ca = str(tmp_path / "own.pem"), str(tmp_path / "peers.pem")
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("gateways.internal").private_key_and_cert_chain_pem.write_to_path(own)
    files = {"peer_tls_certificate": own, "peer_tls_key": own, "peer_tls_ca": ca}
    return {**files, "peer_tls_server_name": "gateways.internal"}


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[trustme.CA, dict[str, str]]:
    """Of a server's certificate, and of the authority that issued it."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    own.private_key_pem.write_to_path(os.fspath(tmp_path / "key.pem"))
    own.cert_chain_pems[0].write_to_path(os.fspath(tmp_path / "chain.pem"))
    authority.cert_pem.write_to_path(os.fspath(tmp_path / "ca.pem"))
    return authority, {
        "tls_certificate": str(tmp_path / "chain.pem"),
        "tls_key": str(tmp_path / "key.pem"),
        "tls_client_ca": str(tmp_path / "ca.pem"),
    }
