"""A real Envoy before some engines, which asks a picker where each request goes, as a gateway of the Gateway
API inference extension has it: `override_host` takes the endpoint from the header, else goes round."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from scripted_engine.ports import free_port
from tests.prerequisites import require_command

_TYPE = "type.googleapis.com/envoy.extensions"
DESTINATION = "x-gateway-destination-endpoint"


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def cluster(name: str, ports: list[int], **more: Any) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": address(port)}} for port in ports]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        **more,
    }


def settings(
    port: int,
    picker: int,
    engines: list[int],
    *,
    fails_open: bool,
    message_timeout_s: float,
    request_body: str,
    response_body: str,
    certificate: dict[str, str] | None,
) -> dict[str, Any]:
    """`request_body`, `response_body`: in which mode bodies are looked at; `certificate`: as the picker's
    settings have it, to be shown to the picker, by TLS."""
    asking = {
        "name": "picker",
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}, "timeout": "3600s"},
            "failure_mode_allow": fails_open,
            "message_timeout": f"{message_timeout_s}s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": request_body,
                "response_body_mode": response_body,
                "request_trailer_mode": "SEND" if request_body == "FULL_DUPLEX_STREAMED" else "SKIP",
                "response_trailer_mode": "SEND" if response_body == "FULL_DUPLEX_STREAMED" else "SKIP",
            },
        },
    }
    router = {"name": "router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "use_remote_address": True,
        "http_filters": [asking, router],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }
    listener = {
        "name": "in",
        "address": address(port),
        "per_connection_buffer_limit_bytes": 64 << 20,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    round_robin = {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "round_robin",
                    "typed_config": {"@type": f"{_TYPE}.load_balancing_policies.round_robin.v3.RoundRobin"},
                }
            }
        ]
    }
    override = {
        "@type": f"{_TYPE}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": DESTINATION}],
        "fallback_policy": round_robin,
    }
    policy = {"typed_extension_config": {"name": "override_host", "typed_config": override}}
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    by_tls = {"transport_socket": transport(certificate)} if certificate is not None else {}
    return {
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                cluster("engines", engines, load_balancing_policy={"policies": [policy]}),
                cluster("picker", [picker], typed_extension_protocol_options=http2, **by_tls),
            ],
        }
    }


def transport(certificate: dict[str, str]) -> dict[str, Any]:
    chain, key, authority = (
        {"filename": certificate[f"tls_{name}"]} for name in ("certificate", "key", "client_ca")
    )
    common = {
        "alpn_protocols": ["h2"],
        "tls_certificates": [{"certificate_chain": chain, "private_key": key}],
        "validation_context": {"trusted_ca": authority},
    }
    kind = f"{_TYPE}.transport_sockets.tls.v3.UpstreamTlsContext"
    return {"name": "tls", "typed_config": {"@type": kind, "common_tls_context": common}}


@contextlib.asynccontextmanager
async def envoy(
    folder: Path,
    picker: int,
    engines: list[int],
    *,
    fails_open: bool = False,
    message_timeout_s: float = 60.0,
    request_body: str = "BUFFERED",
    response_body: str = "STREAMED",
    certificate: dict[str, str] | None = None,
    workers: int = 1,
) -> AsyncIterator[int]:
    """The port that clients use. Ports of engines and of the picker are on the loopback."""
    program, port = require_command("envoy"), free_port()
    told = settings(
        port,
        picker,
        engines,
        fails_open=fails_open,
        message_timeout_s=message_timeout_s,
        request_body=request_body,
        response_body=response_body,
        certificate=certificate,
    )
    (folder / "envoy.json").write_text(json.dumps(told))
    log = (folder / "envoy.log").open("wb")
    words = ["-c", str(folder / "envoy.json"), "--concurrency", str(workers), "--disable-hot-restart"]
    process = await asyncio.create_subprocess_exec(program, *words, "-l", "warning", stdout=log, stderr=log)
    try:
        for _ in range(500):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            assert process.returncode is None, (folder / "envoy.log").read_text()
            await asyncio.sleep(0.02)
        else:
            raise AssertionError((folder / "envoy.log").read_text())
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        log.close()
