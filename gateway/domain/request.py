"""Facts about a request and its answer, never bytes."""

from typing import Final

import msgspec

from gateway.domain.string_enums import Word


class Protocol(Word):
    """Of the path; it fixes the shape of errors and of streamed events."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    MCP = "mcp"
    """Tools, not models: a request for a tool server."""
    OTHER = "other"


class Work(Word):
    """Only `GENERATE` and `TUNNEL` requests are turns of a session."""

    GENERATE = "generate"
    POOL = "pool"
    """Embeddings, rerank, score, classify: one prefill, no KV to keep."""
    STATE = "state"
    """Reads, deletes or cancels something a replica stores, such as a response by its id."""
    TUNNEL = "tunnel"
    """A WebSocket, unread: it counts as one turn of its session while it is open."""
    LIGHT = "light"
    """Tokenize, count tokens, list models, and the rest of a backend's paths."""


class ExplicitId(msgspec.Struct, frozen=True, kw_only=True):
    """An identity that the client stated. Untrusted: opaque, capped, scoped by tenant."""

    schema: str
    """The convention, for example `codex` or `x-turnpike-session`."""
    session: str
    thread: str | None = None
    """A conversation within the session (sub-agents)."""
    parent: str | None = None
    """The session or thread that spawned this one."""
    final: bool = False
    """The session ends with this turn."""


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's statements of urgency and future; they count only if its tenant is trusted."""

    service_class: str | None = None
    """`reactive` or `proactive`."""
    service_tier: str | None = None
    """As in OpenAI's API; only those with a class."""
    retain_s: float | None = None
    """How long to hold the turn's state in the cache."""
    resumes: bool | None = None
    """Whether its conversation goes on after this turn."""
    malformed: tuple[str, ...] = ()
    """Unreadable ones: `class`, `retention`, `resume`, `service_tier`, `tools`."""


class AssistantBlock(msgspec.Struct, frozen=True, gc=False):
    """A run of the model's items in a conversation: possibly one response."""

    tail: int
    """Hash of the conversation before it; 0 if there is none."""
    text: int
    """Hash of its text; 0 if it has none."""
    has_calls: bool = False


class NewItems(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Items after the newest answer: results of tools, and messages of a person or program."""

    size: int = 0
    """Bytes on the wire."""
    looks: tuple[int, ...] = ()
    """Hashes of the beginning and end of its newest text, which programs repeat."""
    has_failed: bool = False
    """By a tool's result."""
    called: int = 0
    """Hash of the newest answer's calls, without ids; 0 for none, and where repeats are not counted."""
    brought: int = 0
    """The same, of these items."""


NO_NEW_ITEMS: Final = NewItems()


class PromptHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The beginning of a prompt, as hashes of four bytes each (`gateway/identity/prompt_head.py`)."""

    tools: bytes = b""
    system: bytes = b""
    opening: bytes = b""
    """Of its first messages; empty where these are not the conversation's."""


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of a conversation's canonical content, for identity.

    System and developer messages, tools and reasoning are no part of it: they change in the middle of a
    session, and thousands of sessions share them.
    """

    tail: int = 0
    """Hash of the whole conversation; 0 if it is empty."""
    recent: tuple[int, ...] = ()
    """The same without its last item, without its last two, and so on: the few newest."""
    blocks: tuple[AssistantBlock, ...] = ()
    """Newest first; a bounded number."""
    newest_run: int = 0
    """Blocks of the newest run of the model's items."""
    body: int = 0
    """Equal for two requests for the same answer, streamed or not."""
    agent: int = 0
    """Hash of the system prompt and the tools."""
    agent_type: int = 0
    """The same without dates, paths and counters; 0 if there is neither."""
    head: PromptHead | None = None
    new: NewItems = NO_NEW_ITEMS
    media_bytes: int = 0
    """Of the body, without text (`gateway/identity/media.py`)."""


_OF_SESSIONS: Final = (Work.GENERATE, Work.TUNNEL)


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    protocol: Protocol
    work: Work
    model: str | None = None
    stream: bool = False
    body_bytes: int = 0
    body: int = 0
    """Hash of its bytes without a conversation (else see `Transcript.body`)."""
    message_count: int = 0
    tool_count: int = 0
    """Tools offered to the model; side requests (titles, summaries) offer none."""
    explicit: ExplicitId | None = None
    claims: Claims | None = None
    echoed_ids: tuple[str, ...] = ()
    """Call ids in the newest assistant block and in the tool results after it, newest first. A backend minted
    them, unless the client forged them."""
    tool_result_ids: tuple[str, ...] = ()
    transcript: Transcript = Transcript()
    attempt: int | None = None
    """By the client's transport, if it counts; the application above it may begin again at 0."""
    client: int = 0
    """Hash of the client software's name; 0 without one."""
    client_name: str = ""
    """The product, for display."""
    state_ids: tuple[str, ...] = ()
    """Ids of stored state in this request (`previous_response_id`, `conversation`, item references) or its
    path."""
    stores: bool = False
    """The replica may keep state for later requests, so this one must not run twice."""
    is_background: bool = False
    is_replayable: bool = False
    """A second run does no harm, as long as no byte of an answer has been passed on."""
    is_readable: bool = True
    """False for an unreadable body, with ids and connections as the only evidence of its session."""
    is_oversized: bool = False
    """Unread for its size."""
    is_hidden: bool = False
    """Unreadable here, but an engine may find an id, a model or KV fields in it."""
    is_form: bool = False
    """A form, as for sound: mostly no text."""
    is_relayed: bool = False
    """Without identity: placed by load alone, and no evidence."""
    moves_kv: bool = False
    """It directs an engine to KV caches, or may do so (`gateway/requests/client_kv_fields.py`)."""
    names_response: bool = False
    """It sets the response's id (vLLM's `request_id`), which may be another's."""

    @property
    def text_bytes(self) -> int:
        return self.body_bytes - self.transcript.media_bytes

    @property
    def is_turn(self) -> bool:
        return self.work in _OF_SESSIONS and not self.is_relayed

    @property
    def takes_keep_alives(self) -> bool:
        return self.stream and self.work is Work.GENERATE and self.protocol is not Protocol.OTHER


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """In a response."""

    id: str
    name: str
    is_at_engine: bool = False
    """Run by the engine, with its result in the same answer."""


class ToolCallStyle(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The form of an answer's calls."""

    names: tuple[str, ...] = ()
    """Tools called in its text (ReAct, a code block)."""
    is_code: bool = False
    """By a code block alone, as in answers to people."""
    opening: int = 0
    """Hash of the first word of each call, such as a shell's program."""
    close: int = 0
    """Hash of its text's last word and mark; 0 with a call."""


NO_TOOL_CALL_STYLE: Final = ToolCallStyle()


class Utterance:
    """Hashes of a response's content (see `Transcript`)."""

    __slots__ = ("chars", "text")

    def __init__(self, *, text: int = 0, chars: int = 0) -> None:
        # Hash of its text; 0 if it has none.
        self.text = text
        self.chars = chars

    @property
    def tool_call_style(self) -> ToolCallStyle:
        return NO_TOOL_CALL_STYLE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Utterance) and (self.text, self.chars) == (other.text, other.chars)

    def __hash__(self) -> int:
        return hash((self.text, self.chars))


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Token counts as the backend reported them; None where it did not."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None

    def share_found(self, expected: float) -> float | None:
        if self.cached_tokens is None or expected < 1:
            return None
        share = self.cached_tokens / expected
        return share if share < 0.9 else 1.0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A response at its end."""

    status: int
    tool_calls: tuple[ToolCall, ...] = ()
    utterance: Utterance = Utterance()
    state_ids: tuple[str, ...] = ()
    """Ids under which the replica may have stored something (response, conversation, items)."""
    usage: Usage = Usage()
    content_bytes: int = 0
    """Text, with the arguments of calls."""
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    """By the backend."""
    has_terminal: bool = False
    """With the protocol's own end."""
    retry_after_s: float | None = None
    failure: str = ""
    """With a good status: `error` (the server's), `rejected` (its client's), `truncated` (its end is
    missing), `empty`, or `malformed` (no answer at all)."""

    @property
    def is_good(self) -> bool:
        return self.status < 400 and not self.failure

    @property
    def is_fault(self) -> bool:
        if self.status == 501:  # a missing feature
            return False
        return self.status >= 500 or self.failure in ("error", "truncated", "empty", "malformed")
