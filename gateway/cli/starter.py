"""`turnpike init`: a first settings file for the backends that are there. No existing file is touched."""

import argparse
import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gateway.cli.doctor import examine_url
from gateway.cli.examine import BackendProbe
from gateway.cli.findings import findings
from gateway.config.load import DEFAULT_FILE, load_config
from gateway.config.upstream import UpstreamConfig
from gateway.domain.printable import printable
from gateway.upstream.replica import Address

_PLACES: Final = (
    *(f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002, 8003)),  # vLLM
    "http://127.0.0.1:30000",  # SGLang
    "http://127.0.0.1:11434",  # Ollama
)
_PATIENCE: Final = UpstreamConfig(connect_timeout_s=2.0, health_timeout_s=3.0)
_MAX_POOL_NAME: Final = 40
_KEY_VARIABLE: Final = "BACKEND_API_KEY"


def add_init(commands: Any) -> None:
    init = commands.add_parser("init", help="write a first settings file for the backends that are there")
    init.add_argument("--output", default=DEFAULT_FILE, metavar="FILE", help=f"default {DEFAULT_FILE}")
    what = "an LLM server; again for more (default: looks at the usual ports of this machine)"
    init.add_argument("--backend", action="append", metavar="URL", help=what)
    init.set_defaults(command=_init)


def _init(arguments: argparse.Namespace) -> int:
    path = Path(arguments.output)
    if path.exists():
        raise FileExistsError(f"{path} is there already, and stays as it is; --output names another file")
    urls = list(dict.fromkeys(Address.of_backend(url).url for url in arguments.backend or _PLACES))
    found = dict(zip(urls, asyncio.run(_look_at(urls)), strict=True))
    if not arguments.backend:
        found = {url: seen for url, seen in found.items() if seen.facts is not None}
        if not found:
            raise ValueError(f"no LLM server answers at {', '.join(urls)}; name one with --backend URL")
    text = settings_for(found)
    load_config(None, {}, {}, text=text)  # never write what would be refused
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    print(f"wrote {path}")
    for url, seen in found.items():
        print(printable(f"  {url}: {_in_words(seen)}"))
    silent = [url for url, seen in found.items() if seen.facts is None and not seen.wants_key]
    if silent:
        notice = f"{', '.join(silent)}: not usable yet; start it, or mend its url in {path}"
        print(printable(f"turnpike: warning: {notice}, and see `turnpike doctor {path}`"), file=sys.stderr)
        return 1
    print(f"next: turnpike doctor {path}    what is missing, and what it would gain")
    print(f"      turnpike serve {path}     agents then use http://127.0.0.1:8080/v1")
    return 0


async def _look_at(urls: Sequence[str]) -> list[BackendProbe]:
    return await asyncio.gather(*(examine_url(url, _PATIENCE) for url in urls))


def settings_for(found: Mapping[str, BackendProbe]) -> str:
    """As TOML: a pool for those that serve the same models. `found`: by URL."""
    pools: dict[tuple[str, ...], list[str]] = {}
    for url, seen in found.items():
        pools.setdefault(tuple(sorted(seen.models)), []).append(url)
    if len(pools) == 2 and () in pools:  # taken for more of the same
        pools[next(models for models in pools if models)] += pools.pop(())
    names: set[str] = set()
    parts = [_HEAD]
    for models, members in pools.items():
        name = _pool_name(models, names) if len(pools) > 1 else "default"
        names.add(name)
        lines = [f'\n[[pools]]\nname = "{name}"\nreplicas = [']
        for url in members:
            key = f', api_key_env = "{_KEY_VARIABLE}"' if found[url].wants_key else ""
            lines += [f"  # {printable(_in_words(found[url]))}", f'  {{ url = "{url}"{key} }},']
        parts.append("\n".join([*lines, "]\n"]))
    return "".join([*parts, _TAIL])


def _in_words(seen: BackendProbe) -> str:
    results = findings(seen)
    return "; ".join(each.what for each in results if each.level != "off") or results[0].what


def _pool_name(models: tuple[str, ...], taken: set[str]) -> str:
    last = models[0].rpartition("/")[2].lower() if models else "unknown"
    stem = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:_MAX_POOL_NAME] or "pool"
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


_HEAD: Final = """\
# Written by `turnpike init`. `turnpike check-config FILE` says what is wrong with it. All other settings have
# defaults that suit most fleets; docs/reference/configuration.md lists them.

[server]
listen = "127.0.0.1:8080"   # where agents connect: http://127.0.0.1:8080/v1
control = "127.0.0.1:8081"  # for you: dashboard, metrics, `turnpike sessions`
"""
_TAIL: Final = """
# For more than yourself: listen on 0.0.0.0:8080, and give each tenant a key (`turnpike hash-key --generate`).
#
# [[tenants]]
# name = "team-a"
# key_hashes = ["sha256:..."]
# quota = { weight = 1.0 }    # its share where tenants compete

# [stream]
# path = "turnpike.jsonl"     # one record for each state change, also for `turnpike explain --stream`
"""
