"""What the control port answers where nothing is, or not by that method: as JSON, with what was meant."""

from difflib import get_close_matches

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.server.admin.settings_reload import DIFF_PATH, RELOAD_PATH

# Of a path that is compared; the work grows with its square.
_LONGEST = 128

# All begin alike, so less is no likeness.
_LIKENESS = 0.85


@web.middleware
async def explain_unknown(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        meant = _meant(request)
        what = f"did you mean {meant}?" if meant else "the dashboard is at /turnpike/"
        what = f"nothing is here; {what}"
        if request.path.startswith("/v1/"):
            what = "this is the control port; agents' requests go to `server.listen` (--listen)"
        elif request.path in (DIFF_PATH, RELOAD_PATH):
            what = "this gateway was started without a file of settings"
        return web.json_response({"error": what}, status=404)
    except web.HTTPClientError as error:
        allowed = error.headers.get("Allow")
        what = f"{request.method} is not for this path, but {allowed}" if allowed else error.reason
        headers = {"Allow": allowed} if allowed else None
        return web.json_response({"error": what}, status=error.status, headers=headers)


def _meant(request: web.Request) -> str | None:
    """The path that begins like this one, or almost; its variables stand for whatever stands there."""
    known = [each.canonical for each in request.app.router.resources() if isinstance(each, web.Resource)]
    begins = {_beginning(each): each for each in reversed(known)}
    path = _beginning(request.path[:_LONGEST])
    other = path.removeprefix("/turnpike") if path.startswith("/turnpike/") else f"/turnpike{path}"
    found = [each for tried in (path, other) for each in get_close_matches(tried, begins, 1, _LIKENESS)]
    return begins[found[0]] if found else None


def _beginning(path: str) -> str:
    return "/".join(path.split("/")[:3])
