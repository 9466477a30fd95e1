"""`GET /turnpike/usage`: what tenants used, by key and model, as JSON or as CSV.

A name of a model may be any text of a client's. In a spreadsheet it is text, too: an apostrophe stands before
whatever might be taken for the beginning of a formula, also where another separator than the comma is read.
"""

import csv
import io
import re
from typing import Any, Final

from aiohttp import web

from gateway.telemetry.usage import COLUMNS, WHOSE

USAGE_PATH: Final = "/turnpike/usage"
_NO_STORE: Final = {"Cache-Control": "no-store"}
_FORMULA: Final = re.compile(r"""(?:^|(?<=[,;|"'\s]))(?=[=+@\-\uff1d\uff0b\uff20\uff0d])""")


def usage_response(request: web.Request, view: dict[str, Any]) -> web.Response:
    """`view`: of all tenants and models; the query selects some."""
    query, accepted = request.query, request.headers.get("Accept", "")
    form = query.get("format") or ("csv" if "text/csv" in accepted and "json" not in accepted else "json")
    wanted = {name: query[name] for name in WHOSE if name in query}
    rows = [row for row in view["usage"] if all(row[name] == value for name, value in wanted.items())]
    if form == "json":
        return web.json_response({**view, "usage": rows}, headers=_NO_STORE)
    if form == "csv":
        return web.Response(text=_csv(rows), content_type="text/csv", charset="utf-8", headers=_NO_STORE)
    return web.json_response({"error": "format: json or csv is expected"}, status=400)


def _csv(rows: list[dict[str, Any]]) -> str:
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, COLUMNS)
    writer.writeheader()
    writer.writerows({**row, **{name: _FORMULA.sub("'", row[name]) for name in WHOSE}} for row in rows)
    return table.getvalue()
