"""What a path is: its protocol, what it makes an engine do, and whether it may run twice.

One table of patterns, read from top to bottom; the first row that fits wins. Paths are compared the
way a backend compares them: percent-decoded once, without repeated or trailing slashes. Whatever two
parsers could read differently is *ambiguous* (`is_ambiguous_path`), and the server refuses it before
it classifies the path: a path that is harmless here must not be `/sleep` to a server behind us.
"""

import re
from urllib.parse import unquote

import msgspec

from gateway.domain.request import Protocol, Work


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a request from its method and path alone."""

    protocol: Protocol
    work: Work
    is_replayable: bool
    """It may run twice, by its path; a body that stores overrules it."""
    state_id: str | None = None
    """The stored thing that the path names."""
    is_control: bool = False
    """It steers the engine, or shows or stops what other tenants do."""
    name: str
    """The route, for metrics and logs; never a client's text."""


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_CHAT, _COMPLETIONS, _RESPONSES = Protocol.CHAT, Protocol.COMPLETIONS, Protocol.RESPONSES
_MESSAGES, _OTHER = Protocol.MESSAGES, Protocol.OTHER

# Paths that end a session; no engine has them.
RELEASES = ("/finish_session", "/programs/release", "/v1/finish_session", "/v1/programs/release")

# vLLM's demo server, SGLang, llama.cpp.
_OF_OTHER_ENGINES = ("/generate", "/api/chat", "/api/generate", "/vertex_generate", "/completion", "/infill")

# One prefill each. Audio decodes for a while, but no later request builds on it: there is no session to join
# and no KV to keep. It stores nothing, so it may run again.
_PREFILLS = """
    /v1/embeddings /v2/embed /classify /pooling /generative_scoring /v1/systemone
    /rerank /v1/rerank /v2/rerank /score /v1/score
    /v1/audio/transcriptions /v1/audio/translations /v1/audio/speech
""".split()

_RENDERS = """
    /tokenize /detokenize /v1/chat/completions/render /v1/completions/render /v1/responses/render
    /v1/chat/completions/derender /v1/completions/derender
""".split()

_Row = tuple[str, str, Protocol, Work, bool]

# Methods, template, protocol, work, replayable. `{id}` is a segment that names a stored thing,
# `{any}` whatever follows.
_ROUTES: tuple[_Row, ...] = (
    # Generation. These keep nothing (`/v1/responses` may: see facts), so an unanswered one may run again.
    ("POST", "/v1/chat/completions", _CHAT, Work.GENERATE, True),
    ("POST", "/v1/completions", _COMPLETIONS, Work.GENERATE, True),
    ("POST", "/v1/responses", _RESPONSES, Work.GENERATE, True),
    ("POST", "/v1/responses/compact", _RESPONSES, Work.GENERATE, True),
    ("POST", "/v1/messages", _MESSAGES, Work.GENERATE, True),
    # Other doors to the same engine: not protocols that we read, but they must queue like the rest.
    ("POST", "/v1/chat/completions/batch", _OTHER, Work.GENERATE, True),
    ("POST", "/inference/v1/generate", _OTHER, Work.GENERATE, True),
    ("POST", "/invocations", _OTHER, Work.GENERATE, False),
    ("POST", "/cohere/v2/chat", _OTHER, Work.GENERATE, True),
    *(("POST|PUT", path, _OTHER, Work.GENERATE, True) for path in _OF_OTHER_ENGINES),
    # Stored things.
    ("GET|HEAD", "/v1/responses/{id}", _RESPONSES, Work.STATE, True),
    ("DELETE", "/v1/responses/{id}", _RESPONSES, Work.STATE, False),
    ("POST", "/v1/responses/{id}/cancel", _RESPONSES, Work.STATE, False),
    ("GET|HEAD", "/v1/responses/{id}/input_items", _RESPONSES, Work.STATE, True),
    ("POST", "/v1/conversations", _RESPONSES, Work.STATE, False),
    ("GET|HEAD", "/v1/conversations/{id}/{any}", _RESPONSES, Work.STATE, True),
    ("POST|DELETE", "/v1/conversations/{id}/{any}", _RESPONSES, Work.STATE, False),
    *(("POST", path, _OTHER, Work.POOL, True) for path in _PREFILLS),
    # Work for the CPU alone.
    ("POST", "/v1/messages/count_tokens", _MESSAGES, Work.LIGHT, True),
    ("POST", "/v1/messages/render", _MESSAGES, Work.LIGHT, True),
    *(("POST", path, _OTHER, Work.LIGHT, True) for path in (*_RENDERS, *RELEASES)),
    ("GET|HEAD", "/v1/models/{any}", _OTHER, Work.LIGHT, True),
)

# In a path that is in no row: what vLLM (0.32) and SGLang offer their operators, and will.
_STEERS = re.compile(
    r"""
      weight | adapter | cache | profile | expert_distribution | internal_state | memory_occupation
    | abort | pause | resume | sleep(?:$|_|/) | is_sleeping | wake_up | scal(?:e_|ing) | fault_tolerance
    | shutdown | freeze_gc | collective_rpc | (?:server|engine)_info | world_size | kv_event
    | continue_generation | slow_down | configure_logging | trace_level
    | /(?:open|close)_session$ | /(?:get_)?loads?$
    """,
    re.VERBOSE,
)

# Mounts (`/adapters` is SageMaker's LoRA door, `/turnpike` our plugin's): everything below them is the
# operator's, too.
_CONTROL_TREES = ("/metrics", "/adapters", "/debug", "/turnpike")

_AMBIGUOUS = re.compile(
    r"""
      ^(?!/)                                   # not an absolute path
    | //                                       # an empty segment; in front, it could name a host
    | [\\\x00-\x20\x7f?\#]                     # backslash, control characters, blanks, delimiters
    | %(?![0-9A-Fa-f]{2})                      # a percent sign that escapes nothing
    | %(?:[01][0-9A-Fa-f]|7[Ff])               # control characters, escaped
    | %(?:2[35Ee]|3[Ff]|5[Cc])                 # escaped hash, percent, dot, question mark, backslash
    | (?:^|/)\.{1,2}(?:;[^/]*)?(?:/|$)         # dot segments, also with parameters
    """,
    re.VERBOSE,
)
_ENCODED_SLASH = re.compile("%2f", re.IGNORECASE)
_MODEL_PREFIX = "/v1/models/"


def is_ambiguous_path(path: str) -> bool:
    """Whether two parsers could take this path (without its query) for different ones.

    An escaped slash is allowed in a model's name only, which is where clients write one.
    """
    if _AMBIGUOUS.search(path) is not None:
        return True
    if _ENCODED_SLASH.search(path) is None:
        return False
    if not path.startswith(_MODEL_PREFIX):
        return True
    return _AMBIGUOUS.search(_ENCODED_SLASH.sub("/", path)) is not None


def classify(method: str, path: str) -> Endpoint:
    """What a request is. `path` is without its query; any text gives an endpoint."""
    verb = method.upper()
    known = _EXACT.get((verb, path)) or _EXACT.get((verb, path := _normalise(path)))
    if known is not None:
        return known
    for verbs, pattern, endpoint in _PATTERNS:
        match = pattern.fullmatch(path) if verb in verbs else None
        if match is not None:
            return msgspec.structs.replace(endpoint, state_id=match.groupdict().get("id"))
    is_control = _STEERS.search(path) is not None or _is_below(path, _CONTROL_TREES)
    return Endpoint(
        # An Anthropic client reads Anthropic errors, on unknown paths too.
        protocol=_MESSAGES if _is_below(path, ("/v1/messages",)) else _OTHER,
        # The work of an unknown path is counted by its bytes and the engine's usage.
        work=Work.POOL if verb in ("POST", "PUT", "PATCH") and not is_control else Work.LIGHT,
        is_replayable=verb in _SAFE_METHODS,
        is_control=is_control,
        name="control" if is_control else "other",
    )


def meant(method: str, path: str) -> str | None:
    """The path that an API's client, whose base URL lacks `/v1`, has it twice or goes on behind it, meant by
    this one; None if it may be a path of its own."""
    path = _normalise(path)
    other = re.sub(r"^(/v1)+(?=/v1/)", "", path) if path.startswith("/v1/") else f"/v1{path}"
    behind = re.sub(r"^/v1/(chat/completions|completions|responses|messages)(?=/)", "/v1", path)
    is_known, *known = [
        classify(method, each).name not in ("other", "control") for each in (path, other, behind)
    ]
    return None if is_known else other if known[0] else behind if known[1] else None


def _normalise(path: str) -> str:
    """As a backend would read it: decoded once, no empty segments, no slash at the end."""
    return "/" + "/".join(segment for segment in unquote(path).split("/") if segment)


def _is_below(path: str, trees: tuple[str, ...]) -> bool:
    return any(path == tree or path.startswith(tree + "/") for tree in trees)


def _endpoint(row: _Row) -> Endpoint:
    _, template, protocol, work, is_replayable = row
    return Endpoint(protocol=protocol, work=work, is_replayable=is_replayable, name=template)


def _pattern(template: str) -> re.Pattern[str]:
    text = template.replace("{id}", "(?P<id>[^/]+)").replace("/{any}", "(?:/.*)?")
    return re.compile(text, re.DOTALL)


_EXACT = {
    (verb, row[1]): _endpoint(row) for row in _ROUTES for verb in row[0].split("|") if "{" not in row[1]
}
_PATTERNS = tuple((row[0].split("|"), _pattern(row[1]), _endpoint(row)) for row in _ROUTES if "{" in row[1])
