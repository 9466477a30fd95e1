"""Who asks with a key follows no redirect."""

import argparse
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.config.otel import OtelConfig
from gateway.dashboard import cli
from gateway.domain.host import HostSignals
from gateway.telemetry.collector import Collector, Verdict
from gateway.upstream.host_probe import tell


@pytest.fixture(params=[301, 302, 303, 307, 308])
def redirecting(request):
    """Its URL, and what was asked beyond what it answers itself."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_elsewhere = self.path == "/elsewhere"
            asked.extend([self.headers["Authorization"]] * is_elsewhere)
            self.send_response(200 if is_elsewhere else request.param)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_commands_do_not(redirecting, monkeypatch):
    url, asked = redirecting
    monkeypatch.setenv("KEY", "secret")
    arguments = argparse.Namespace(control=url, key_env="KEY")
    for body in (None, b"{}"):
        with pytest.raises(ValueError, match=": 30"):
            cli.ask(arguments, "/turnpike/snapshot", body)
    with pytest.raises(OSError, match="30"):
        tell(url, "host", HostSignals(cores=1, runnable=0.5), key="secret")
    assert asked == []


async def test_the_sender_of_traces_does_not(redirecting):
    url, asked = redirecting
    collector = Collector(OtelConfig(endpoint=url, headers={"Authorization": "secret"}), {})
    collector.open()
    assert await collector.post(b"spans") is Verdict.REFUSED and asked == []
    await collector.close()
