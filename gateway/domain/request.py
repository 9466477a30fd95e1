"""What the brain knows of a request and of its answer: facts, never bytes."""

from typing import Final

import msgspec

from gateway.domain.words import Word


class Protocol(Word):
    """The wire protocol a path belongs to; it fixes the shape of errors and of streamed events."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    MCP = "mcp"
    """Tools, not models: a request for a tool server."""
    OTHER = "other"


class Work(Word):
    """What a request makes an engine do; only `GENERATE` and `TUNNEL` requests are turns of a session."""

    GENERATE = "generate"
    POOL = "pool"
    """Embeddings, rerank, score, classify: one prefill, no KV to keep."""
    STATE = "state"
    """Reads, deletes or cancels something a replica stores, such as a response by its id."""
    TUNNEL = "tunnel"
    """A WebSocket, unread: it takes a place, as one turn of its session, for as long as it is open."""
    LIGHT = "light"
    """Tokenize, count tokens, list models, and whatever else a backend offers."""


class ExplicitId(msgspec.Struct, frozen=True, kw_only=True):
    """An identity that the client stated. Untrusted: opaque, capped, scoped by tenant."""

    schema: str
    """Which convention it came in, for example `codex` or `x-turnpike-session`."""
    session: str
    thread: str | None = None
    """The chain within the session, where the client tells several apart (sub-agents)."""
    parent: str | None = None
    """The session or thread that spawned this one."""
    final: bool = False
    """The client says that the session ends with this turn."""


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client says of its session's urgency and future. It counts only if its tenant is trusted to say
    so."""

    service_class: str | None = None
    """`reactive` (somebody waits) or `proactive` (background)."""
    service_tier: str | None = None
    """As in OpenAI's API; only those that tell a class."""
    retain_s: float | None = None
    """For how long what this turn leaves in the cache should be held."""
    resumes: bool | None = None
    """Whether its conversation goes on behind this turn."""
    malformed: tuple[str, ...] = ()
    """What was sent and could not be read: `class`, `retention`, `resume`, `service_tier`,
    `tools`."""


class AssistantBlock(msgspec.Struct, frozen=True, gc=False):
    """What a response may have left behind in a conversation: a run of items of the model's, to its end."""

    tail: int
    """Hash of the conversation before it; 0 if there is none."""
    text: int
    """Hash of its text; 0 if it has none."""
    has_calls: bool = False


class NewItems(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a request brings since the newest answer: results of tools, what a person or a program wrote."""

    size: int = 0
    """In bytes, as they were sent."""
    looks: tuple[int, ...] = ()
    """Hashes of how its newest text begins and ends: programs begin or end all of theirs alike."""
    has_failed: bool = False
    """A tool's result says that it failed."""
    called: int = 0
    """Hash of what the newest answer calls for, without ids; 0 for nothing, and where repeats are not
    counted."""
    brought: int = 0
    """The same, of these items."""


NO_NEW_ITEMS: Final = NewItems()


class PromptHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a prompt begins with, as hashes of four bytes each (`gateway/identity/prompt_head.py`)."""

    tools: bytes = b""
    system: bytes = b""
    opening: bytes = b""
    """Of its first messages; empty where these are not the conversation's."""


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """What identity needs of a conversation: hashes of its canonical content, never the content.

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
    """How many of the blocks belong to the newest run of items of the model's."""
    body: int = 0
    """Equal for two requests that ask for the same answer, streamed or not."""
    agent: int = 0
    """Hash of the system prompt and the tools: what kind of agent speaks."""
    agent_type: int = 0
    """The same, without what differs from run to run: dates, paths, counters; 0 if there is neither."""
    head: PromptHead | None = None
    new: NewItems = NO_NEW_ITEMS
    """What stands behind the newest answer."""
    media_bytes: int = 0
    """Of the body, what is neither text nor counts as some (`gateway/identity/media.py`)."""


_OF_SESSIONS: Final = (Work.GENERATE, Work.TUNNEL)


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The few fields of a request that decisions are made from."""

    protocol: Protocol
    work: Work
    model: str | None = None
    stream: bool = False
    body_bytes: int = 0
    body: int = 0
    """Hash of its bytes, if it holds no conversation (of these, see `Transcript.body`)."""
    message_count: int = 0
    tool_count: int = 0
    """Tools offered to the model; side requests (titles, summaries) offer none."""
    explicit: ExplicitId | None = None
    claims: Claims | None = None
    """None if the client says nothing of how urgent it is."""
    echoed_ids: tuple[str, ...] = ()
    """Call ids in the newest assistant block and in the tool results after it, newest first: ids that
    a backend minted, if the client is telling the truth."""
    tool_result_ids: tuple[str, ...] = ()
    """Call ids whose results this request brings."""
    transcript: Transcript = Transcript()
    attempt: int | None = None
    """How often the client's transport sent this before, if it says so; the application above it may ask
    again from 0."""
    client: int = 0
    """Hash of the client software's name, as it gives it; 0 if it gives none."""
    client_name: str = ""
    """What of it names the product, to be shown."""
    state_ids: tuple[str, ...] = ()
    """Ids of things a replica stores that this request builds on (`previous_response_id`,
    `conversation`, item references) or names in its path."""
    stores: bool = False
    """The replica may keep state for later requests, so this one must not run twice."""
    is_background: bool = False
    is_replayable: bool = False
    """Running it a second time harms nobody, as long as no byte of an answer has been passed on."""
    is_readable: bool = True
    """False when the body could not be read; of its session no more is known then than ids and connections
    say."""
    is_oversized: bool = False
    """It was not read because that would have taken too long."""
    is_hidden: bool = False
    """And an engine may read more in it: an id, a model, where KV caches are."""
    is_form: bool = False
    """A form, as sound is sent: most of its bytes are no text."""
    is_relayed: bool = False
    """Nobody asks which session it is of: it is placed by load alone, and nothing is learned from it."""
    moves_kv: bool = False
    """It tells an engine itself where KV caches are, or may do so (`gateway/requests/kv_fields.py`)."""
    names_response: bool = False
    """It gives the response its id (vLLM's `request_id`), which may be another's."""

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
    """A tool call in a response."""

    id: str
    name: str
    is_at_engine: bool = False
    """Whoever answers runs the tool, too: its result stands in the same answer."""


class Manner(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How an answer calls its tools, beyond their names."""

    names: tuple[str, ...] = ()
    """Tools that its text asks for, by a protocol of the application's own (ReAct, a code block)."""
    is_code: bool = False
    """It does so by a code block alone, as answers to people do."""
    opening: int = 0
    """Hash of the word that each call begins with, such as the program that a shell is to run."""
    close: int = 0
    """Hash of the word that its text ends with, and of the mark behind it; 0 of one that calls a tool."""


NO_MANNER: Final = Manner()


class Utterance:
    """What a response said, as hashes (`Transcript` explains them)."""

    __slots__ = ("chars", "text")

    def __init__(self, *, text: int = 0, chars: int = 0) -> None:
        self.text = text
        """Hash of its text; 0 if it has none."""
        self.chars = chars

    @property
    def manner(self) -> Manner:
        return NO_MANNER

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
    """What was seen of a response by the time it ended."""

    status: int
    tool_calls: tuple[ToolCall, ...] = ()
    utterance: Utterance = Utterance()
    state_ids: tuple[str, ...] = ()
    """Ids under which the replica may have stored something (response, conversation, items)."""
    usage: Usage = Usage()
    content_bytes: int = msgspec.field(default=0, name="said_bytes")
    """What it says to its reader, with the arguments of calls."""
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    """What the backend says that it is of."""
    has_terminal: bool = False
    """The protocol's own end of the answer was seen."""
    retry_after_s: float | None = None
    """How long the client was told to wait before it asks again."""
    failure: str = ""
    """What is wrong with one whose status is good: `error` (it reports one of the server's), `rejected` (one
    of its client's), `truncated` (its end is missing), `empty`, or `malformed` (it is no answer at all)."""

    @property
    def is_good(self) -> bool:
        return self.status < 400 and not self.failure

    @property
    def is_fault(self) -> bool:
        if self.status == 501:  # it lacks what it was asked for
            return False
        return self.status >= 500 or self.failure in ("error", "truncated", "empty", "malformed")
