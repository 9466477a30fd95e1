"""`turnpike sessions`, `turnpike explain REQUEST_ID`, `turnpike trace SESSION`: the dashboard's answers in a
terminal, and as a file for Perfetto; and `turnpike sessions stop ID`, `turnpike sessions finish ID`, for who
may act there.

They call a running gateway's control listener. `explain` can read the stream's file instead, for what a
gateway has forgotten, or of one that is gone.
"""

import argparse
import contextlib
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config.addresses import check_url
from gateway.config.load import DEFAULT_FILE, ConfigError, load_config
from gateway.config.no_redirects import open_straight
from gateway.dashboard.explain import Explainer, Explanation
from gateway.dashboard.sentences import outcome_lines
from gateway.dashboard.terminal import print_table
from gateway.dashboard.trace import trace_of
from gateway.domain.ids import RequestId, shown_tenant
from gateway.domain.printable import printable
from gateway.domain.records import Record
from gateway.telemetry.ring import decode_record

_CONTROL_VARIABLE: Final = "TURNPIKE_CONTROL"
_TIMEOUT_S: Final = 10.0
_OVER: Final = ("idle", "finished", "stopped")
_COLUMNS: Final = tuple(
    "session client state for class tenant replica turns failed lasted cached source".split()
)


def add_look(commands: Any) -> None:
    what = "list the sessions of a running gateway, with their states"
    sessions = commands.add_parser("sessions", help=what)
    add = sessions.add_argument
    add("--state", choices=("active", "waiting", "generating", "tool", *_OVER), help="only those")
    add("--limit", type=int, default=50, metavar="N", help="at most so many (default 50)")
    what = "stop: refuse the session's turns for a while; finish: mark it as ended, free its slot"
    add("act", nargs="?", choices=("stop", "finish"), help=what)
    add("session", nargs="?", metavar="ID", help="which session, for stop and finish")
    what = "stop for S seconds (default 3600)"
    add("--for", dest="for_s", type=float, default=3600.0, metavar="S", help=what)
    add("--let-finish", action="store_true", help="stop: what runs may end; else it is cancelled")
    sessions.set_defaults(command=_sessions)
    explain = commands.add_parser("explain", help="why a request waited, and why it went where it went")
    add = explain.add_argument
    add("request", metavar="REQUEST_ID", help="x-turnpike-request of the answer")
    add("--stream", metavar="FILE", help="read it from the stream's file, not from a gateway")
    explain.set_defaults(command=_explain)
    trace = commands.add_parser("trace", help="a session as a trace, for https://ui.perfetto.dev")
    trace.add_argument("session", metavar="SESSION", help="as the answer's x-turnpike-session says")
    what = "where to write it (default SESSION.perfetto-trace); - prints it"
    trace.add_argument("-o", "--output", metavar="FILE", help=what)
    trace.set_defaults(command=_trace, json=False)
    for parser in (sessions, explain, trace):
        add_control_options(parser, has_json=parser is not trace)


def add_control_options(parser: argparse.ArgumentParser, *, has_json: bool = True) -> None:
    parser.add_argument(
        "--control",
        metavar="URL",
        default=os.environ.get(_CONTROL_VARIABLE),
        help=f"default {_CONTROL_VARIABLE}, or as {DEFAULT_FILE} says, or http://127.0.0.1:8081",
    )
    parser.add_argument(
        "--key-env", metavar="VARIABLE", help="the environment variable that holds the control key"
    )
    if has_json:
        parser.add_argument("--json", action="store_true", help="as JSON")


def _sessions(arguments: argparse.Namespace) -> int:
    if arguments.act is not None:
        return _act(arguments)
    now = call_control(arguments, "/turnpike/snapshot")
    active = [each for each in now["sessions"] if each.get("is_active")]
    some = active if arguments.state == "active" else now["sessions"]
    shown = [each for each in some if arguments.state in (None, "active", each["state"])][: arguments.limit]
    if arguments.json:
        print(json.dumps(shown))
        return 0
    print_table([_COLUMNS, *(tuple(map(printable, _row(each, now["at_s"]))) for each in shown)])
    print(
        f"{len(shown)} of {now['session_count']} sessions shown; {len(active)} active; {now['running']} "
        f"turns run, {now['waiting']} wait, the tools of {now['active_tools']} sessions run"
    )
    for line in outcome_lines(now.get("outcome")):
        print(printable(line))
    return 0


def _act(arguments: argparse.Namespace) -> int:
    if arguments.session is None:
        raise ConfigError(f"turnpike sessions {arguments.act}: which session? `turnpike sessions` lists them")
    body: dict[str, Any] = {}
    if arguments.act == "stop":
        in_flight = "finish" if arguments.let_finish else "cancel"
        body = {"for_s": arguments.for_s, "in_flight": in_flight}
    session = urllib.parse.quote(arguments.session, safe="")
    reply = call_control(arguments, f"/turnpike/sessions/{session}/{arguments.act}", body)
    if arguments.json:
        print(json.dumps(reply))
    elif arguments.act == "stop":
        print(f"{printable(reply['session'])} is stopped for {reply['stopped_for_s']:g} s")
    else:
        print(f"{printable(reply['session'])} is over")
    return 0


def _row(session: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    prompt, cached = session["prompt_tokens"], session["cached_tokens"]
    share = "-" if not prompt else "not reported" if cached is None else f"{100 * cached / prompt:.0f} %"
    return (
        session["id"],
        session.get("client") or session["schema"] or "-",
        session["state"] + (f" ({session['open_tools'][0]})" if session["open_tools"] else ""),
        f"{max(0.0, now_s - session['since_s']):.1f} s",
        session["class"] or "-",
        shown_tenant(session["tenant"]),
        session["replica"] or "-",
        str(session["turns"]),
        str(session.get("troubles") or "-"),
        f"{max(0.0, session['last_seen_s'] - session['started_s']):.1f} s",
        share,
        f"{session['source']} {session['confidence']:.2f}",
    )


def _explain(arguments: argparse.Namespace) -> int:
    request = RequestId(arguments.request)
    if arguments.stream is not None:
        found = explain_from_file(Path(arguments.stream), request)
        if found is None:
            raise ValueError(f"{arguments.stream}: nothing is in there of {request}")
        explanation = json.loads(msgspec.json.encode(found))
    else:
        explanation = call_control(arguments, f"/turnpike/turns/{request}")
    if arguments.json:
        print(json.dumps(explanation))
    else:
        print("\n".join(map(printable, _lines(explanation))))
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    page = _whole_session(arguments, arguments.session)
    below = [row["session"] for row in page["kin"] if row["parent"] == arguments.session]
    trace = trace_of([page, *(_whole_session(arguments, each) for each in below)])
    text = json.dumps(trace)
    if arguments.output == "-":
        print(text)
        return 0
    name = "".join(each if each.isalnum() or each in "-_." else "_" for each in arguments.session)
    path = Path(arguments.output or f"{name}.perfetto-trace")
    path.write_text(text)
    print(f"{path}: {len(trace['traceEvents'])} events of {1 + len(below)} sessions")
    return 0


def _whole_session(arguments: argparse.Namespace, session: str) -> dict[str, Any]:
    path = f"/turnpike/sessions/{urllib.parse.quote(session, safe='')}"
    page: dict[str, Any] = call_control(arguments, path)
    part = page
    while part["is_cut"] and part["turns"]:
        arrived_s = min(
            each["at_s"] for each in part["turns"][0]["records"] if each["type"] != "session_start"
        )
        part = call_control(arguments, f"{path}?before_s={arrived_s!r}")
        page["turns"] = [*part["turns"], *page["turns"]]
    return page


def explain_from_file(path: Path, request: RequestId) -> Explanation | None:
    explainer = Explainer(request)
    older = (path.with_name(f"{path.name}.{number}") for number in count(1))
    for file in chain((path,), takewhile(Path.exists, older)):
        explainer.read(_records(reversed(file.read_bytes().splitlines())))
    return explainer.explanation()


def _records(lines: Iterator[bytes]) -> Iterator[Record]:
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):  # of a newer gateway, or cut off
            yield decode_record(line)


def _lines(explanation: Mapping[str, Any]) -> Iterator[str]:
    known, decided, became = explanation["known"], explanation["decided"], explanation["became"]
    if known is not None:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known["at_s"]))
        tenant = shown_tenant(known["tenant"])
        yield f"{explanation['turn']}  {at}  tenant {tenant}, model {known['model'] or '-'}"
        follows = "first turn of a new session"
        if known["source"] != "new":
            edge = f"{known.get('edge', 'opens')} {known.get('parent') or 'a conversation'}"
            follows = f"by {known['source']}, confidence {known['confidence']:.2f}; it {edge}"
        yield f"known    session {known['session']}, {follows}"
        if (guess := known.get("guess")) is not None:
            yield (
                f"guess    session {guess['session']}, by {guess['source']}, confidence "
                f"{guess['confidence']:.2f}; only its placement follows it"
            )
    else:
        why = "refused unread" if decided["outcome"] == "refused" else "when it came is not known any more"
        yield f"{explanation['turn']}  ({why})"
    where = decided["refusal"] or f"{decided['replica'] or '-'} ({decided['reason'] or '-'})"
    yield f"decided  {decided['outcome']}: {where}"
    yield from (f"why      {sentence}" for sentence in explanation["why"])
    for other in explanation["alternatives"]:
        first_ms = other["first_token_ms"]
        cost = f", first token in about {first_ms:.0f} ms" if first_ms is not None else ""
        yield f"instead  {other['replica']}, which ran {other['running']}{cost}: {other['why_not']}"
    expected = explanation["expected"]
    if expected is not None:
        yield (
            f"expected first token after {expected['first_token_ms']:.0f} ms, end after "
            f"{expected['completion_ms']:.0f} ms; {expected['cached_tokens']} of "
            f"{expected['prompt_tokens']} tokens cached"
        )
    if became is not None:
        usage = became["usage"]
        prompt, cached, tokens = usage.get("prompt_tokens"), usage.get("cached_tokens"), ""
        if prompt is not None:
            cached_part = "cached ones not reported" if cached is None else f"{cached} of them cached"
            tokens = f"; {prompt} prompt tokens, {cached_part}"
        failure = f": {became['failure']}" if became.get("failure") else ""
        end = f"answered with status {s}" if (s := became["status"] or 0) >= 400 else became["outcome"]
        yield f"became   {end} on {became['replica']} after {became['duration_ms']:.0f} ms{tokens}{failure}"


def call_control(
    arguments: argparse.Namespace,
    path: str,
    body: bytes | Mapping[str, Any] | None = None,
    *,
    timeout_s: float = _TIMEOUT_S,
) -> Any:
    """What a running gateway answers; `body`, as it is or as JSON: it is a POST. Raises ConfigError, OSError
    or ValueError, with the gateway's error message."""
    if arguments.control is None:
        file = DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None
        try:
            arguments.control = f"http://{load_config(file, os.environ, {}, serves=False).server.control}"
        except ConfigError as error:
            raise ConfigError(f"{error}; or name the gateway: --control http://HOST:PORT") from None
    check_url("--control", arguments.control)
    headers = {}
    if arguments.key_env is not None:
        key = os.environ.get(arguments.key_env, "").strip()
        if not key:
            raise ConfigError(f"--key-env: the environment variable {arguments.key_env} is not set, or empty")
        headers["Authorization"] = f"Bearer {key}"
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    url = arguments.control.rstrip("/") + path
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310
    try:
        with open_straight(request, timeout=timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        try:
            why = json.load(error)["error"]
            why = f"{why['message']} Is this the control port?" if isinstance(why, dict) else why
        except (ValueError, KeyError, TypeError):
            why = error.reason
        raise ValueError(f"{arguments.control}: {error.code}: {why}") from None
    except urllib.error.URLError as error:
        why = getattr(error.reason, "strerror", None) or error.reason
        raise OSError(f"{arguments.control}: {why}; --control URL names another gateway") from None
