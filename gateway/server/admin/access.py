"""Who may do what on the control plane: keys that read, keys that write.

A key comes as a bearer token, or as the password of HTTP Basic authentication, for which a browser has a
dialog. Because a browser then sends it with requests of any page, a page of another origin changes nothing,
key or not.

A web page can have its own name resolve to this address (DNS rebinding), and is then of the same origin. So
the `Host` must be one of ours: an address, which no page can choose, a loopback name, the name that is
listened on, or one from the settings. Where keys are required, that concerns browsers alone; probes' paths
are open to all.
"""

import base64
import ipaddress
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.server.auth.client_keys import hash_key

# Orchestrators' probes carry no key.
OPEN_PATHS: Final = frozenset(("/turnpike/healthz", "/turnpike/readyz"))
_SHORT: Final = 128
READS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="turnpike", charset="UTF-8"'}


class ControlAccess:
    def __init__(
        self, *, write_hashes: Iterable[str], read_hashes: Iterable[str], hosts: Iterable[str]
    ) -> None:
        """`hosts`: names of the control plane, in lower case."""
        self.apply_config(write_hashes, read_hashes, hosts)

    def apply_config(
        self, write_hashes: Iterable[str], read_hashes: Iterable[str], hosts: Iterable[str]
    ) -> None:
        self._hosts = frozenset(hosts)
        self._write = frozenset(write_hashes)
        self._read = frozenset(read_hashes) | self._write

    @web.middleware
    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        of_browser = "Origin" in request.headers or "Sec-Fetch-Site" in request.headers
        is_checked = request.path not in OPEN_PATHS and (not self._read or of_browser)
        if is_checked and not is_own_host(host, self._hosts):
            why = f"the host {host[:_SHORT]!r} is not known here; server.control_hosts lists those that are"
            return web.json_response({"error": why}, status=421)
        is_write = request.method not in READS
        if is_write and _is_of_another_origin(request):
            return web.json_response({"error": "a page of another origin may not do this"}, status=403)
        if request.path in OPEN_PATHS:
            return await handler(request)
        known = key_hash(request)
        if self._read:
            if known not in self._read:
                return web.json_response(
                    {"error": "a control key is required"}, status=401, headers=_CHALLENGE
                )
            if is_write and known not in self._write:
                return web.json_response({"error": "this key may only read"}, status=403)
        response = await handler(request)
        if not response.prepared and (not self._read or known in self._write):
            response.headers["x-turnpike-may-act"] = "true"  # so that the dashboard offers what is possible
        return response


def is_own_host(header: str, names: Collection[str]) -> bool:
    """Whether a `Host` is an address, a loopback name or one of `names`. Browsers always send one."""
    if not header:
        return True
    try:
        name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def has_key(request: web.Request) -> bool:
    return bool(_key_of(request.headers.get("Authorization", "")))


def key_hash(request: web.Request) -> str:
    return hash_key(_key_of(request.headers.get("Authorization", "")))


def _key_of(header: str) -> str:
    scheme, _, credentials = header.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials.strip(), validate=True).decode().partition(":")[2]
    except ValueError:  # what is no base64, and what is no text, too
        return ""


def _is_of_another_origin(request: web.Request) -> bool:
    """Browsers send the page's origin; other programs send nothing."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("Host", "")
