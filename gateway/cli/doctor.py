"""`turnpike doctor`: what was detected of each backend, what is missing, and what it would gain."""

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.cli.examine import BackendProbe, examine
from gateway.cli.findings import Finding, findings
from gateway.cli.running import client_findings
from gateway.config import Config
from gateway.config.load import DEFAULT_FILE, ConfigError, load_config, read_api_key
from gateway.config.upstream import PoolConfig, ReplicaConfig, UpstreamConfig
from gateway.domain.ids import PoolId, ReplicaId
from gateway.domain.printable import printable
from gateway.upstream.replica import Address, Replica, Transport
from gateway.upstream.tls import upstream_tls

_AT_ONCE: Final = 32


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    replica: str
    url: str
    findings: list[Finding]


def add_doctor(commands: Any, *, add_options: Callable[..., None], call_control: Callable[..., Any]) -> None:
    doctor = commands.add_parser("doctor", help="what was detected of each backend, and what is missing")
    add = doctor.add_argument
    add(
        "config", nargs="?", metavar="FILE", help=f"settings in TOML (default {DEFAULT_FILE}, if it is there)"
    )
    add("--backend", action="append", metavar="URL", help="look at this one instead")
    add("--ask", action="store_true", help="send a request for two tokens to each, and examine the answer")
    add_options(doctor)
    doctor.set_defaults(command=partial(_doctor, call_control=call_control))


def _doctor(arguments: argparse.Namespace, *, call_control: Callable[..., Any]) -> int:
    """0 if the gateway can use all of them, else 1."""
    flags: dict[str, Any] = {}
    file = arguments.config
    if arguments.backend:
        flags["pools"] = [{"replicas": [{"url": url} for url in arguments.backend]}]
    elif file is None and Path(DEFAULT_FILE).exists():
        file = DEFAULT_FILE
    examined, error = list[Examined](), None
    try:
        config = load_config(file, os.environ, flags)
        examined += asyncio.run(examine_all(config, os.environ, may_generate=arguments.ask))
    except ConfigError as raised:
        if file is not None or arguments.backend:
            raise
        config, error = load_config(None, os.environ, flags, serves=False), raised
    if not arguments.backend:
        arguments.control = arguments.control or f"http://{config.server.control}"
        examined += _of_gateway(arguments, call_control, config.core.max_wait_s)
    if not examined and error is not None:  # nor does a gateway run at the usual port
        raise error
    if arguments.json:
        print(json.dumps(msgspec.to_builtins(examined)))
    else:
        alike: dict[bytes, list[Examined]] = {}
        for each in examined:
            alike.setdefault(msgspec.json.encode(each.findings), []).append(each)
        print("\n\n".join(printable_lines(*group) for group in alike.values()))
        for pool in config.pools:
            if pool.discovery is not None:
                print(f"\npool {pool.name}: replicas that are discovered are not looked at")
    return int(any(found.level == "bad" for each in examined for found in each.findings))


def _of_gateway(
    arguments: argparse.Namespace, call_control: Callable[..., Any], max_wait_s: float
) -> Iterator[Examined]:
    try:
        found = client_findings(call_control(arguments, "/turnpike/snapshot"), max_wait_s=max_wait_s)
    except ValueError as error:  # a key is missing
        found = [Finding(level="off", what=str(error), do="--key-env VARIABLE")]
    except OSError:
        return
    yield Examined(replica="clients", url=f"as the gateway at {arguments.control} sees them", findings=found)


async def examine_all(config: Config, environ: Mapping[str, str], *, may_generate: bool) -> list[Examined]:
    """All replicas that the settings name, in their order. Raises ConfigError or ValueError."""
    some = asyncio.Semaphore(_AT_ONCE)
    tls = upstream_tls(config)

    async def look(name: str, pool: PoolConfig, each: ReplicaConfig) -> Examined:
        address = Address.of_backend(each.url)
        try:
            key = read_api_key(each.api_key_env, each.api_key_file, environ)
        except ConfigError as error:  # a service has other variables than whoever looks at it
            found = Finding(level="bad", what=f"was not looked at: {error}", do="set it here, too")
            return Examined(replica=name, url=each.url, findings=[found])
        upstream, transport = config.upstream, Transport(tls if address.is_tls else None)
        replica = Replica(
            ReplicaId(name), PoolId(pool.name), address, config=upstream, api_key=key, transport=transport
        )
        async with some:
            seen = await examine(replica, upstream, kv_events=each.kv_events, may_generate=may_generate)
        listed = findings(seen, role=each.role, transfer=pool.transfer)
        return Examined(replica=name, url=each.url, findings=listed)

    looks = [
        look(name, pool, each)
        for pool in config.pools
        for name, each in zip(pool.names(), pool.replicas, strict=True)
    ]
    return list(await asyncio.gather(*looks))


async def examine_url(url: str, config: UpstreamConfig) -> BackendProbe:
    """A backend of which nothing but the address is known. Raises ValueError if it is none."""
    address = Address.of_backend(url)
    replica = Replica(ReplicaId("backend"), PoolId("default"), address, config=config, api_key=None)
    return await examine(replica, config, kv_events=None, may_generate=False)


def printable_lines(*alike: Examined) -> str:
    lines = [f"{each.replica}  {each.url}" for each in alike]
    for each in alike[0].findings:
        lines.append(f"  {each.level:<4} {each.what}")
        for word, text in (("gain", each.gain), ("do", each.do)):
            if text is not None:
                lines += [
                    f"       {f'{word}:' if not n else '':<5} {line}"
                    for n, line in enumerate(text.split("\n"))
                ]
    return "\n".join(map(printable, lines))
