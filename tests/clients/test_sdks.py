"""The SDKs of OpenAI and Anthropic, unmodified: two turns with a tool between them, and faults on the way."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import pytest

from examples.ready_calls import ready_calls
from tests.clients.dialogue import Dialogue, Said, arguments
from tests.clients.faults import Cut, Refuse, in_turn, pass_all
from tests.clients.sdks import Chat, Messages, Responses
from tests.clients.site import Site
from tests.engines import Fleet

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
]  # the engines start with its first test

LOOKING, ANSWER = "I look that up.", "It costs 12, which is what I was told."
PROMPT = "What is the price of a pear? [[script:price]]"
SCRIPTS = {
    "scripts": {
        "price": {
            "turns": [
                {"text": LOOKING, "tool_calls": [{"name": "lookup", "arguments": {"item": "pear ✓"}}]},
                {"text": ANSWER},
            ]
        }
    }
}
FINISHES = {
    Chat: ("tool_calls", "stop"),
    Responses: ("completed", "completed"),
    Messages: ("tool_use", "end_turn"),
}
every_api = pytest.mark.parametrize("api", FINISHES)
sync_or_async = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
whole_or_streamed = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


@pytest.fixture(autouse=True)
def script(fleet: Fleet, site: Site) -> Iterator[None]:
    fleet.play(SCRIPTS)
    site.faults.play(pass_all)
    yield
    site.assert_books_balance()


@asynccontextmanager
async def client_of(api: type[Dialogue], site: Site, *, is_async: bool, **options: Any) -> AsyncIterator[Any]:
    import anthropic  # here, for they take seconds
    import openai

    if api is Messages:
        kind: Any = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        client = kind(base_url=site.url, api_key="any", **options)
    else:
        kind = openai.AsyncOpenAI if is_async else openai.OpenAI
        client = kind(base_url=f"{site.url}/v1", api_key="any", **options)
    try:
        yield client
    finally:
        closed = client.close()
        if is_async:
            await closed


def session_ids(site: Site) -> set[str]:
    return {session["id"] for session in site.snapshot()["sessions"]}


def assert_said(said: Said, api: type[Dialogue], turn: int) -> None:
    assert said.text.strip() == (LOOKING, ANSWER)[turn]
    assert said.finish == FINISHES[api][turn]
    assert said.input_tokens > 50 and said.output_tokens > 3
    assert [(call.name, arguments(call)) for call in said.calls] == [("lookup", {"item": "pear ✓"})][turn:]


async def two_turns(dialogue: Dialogue) -> tuple[Said, Said]:
    first = await dialogue.ask()
    assert_said(first, type(dialogue), 0)
    dialogue.tell(first.calls[0], "12")
    second = await dialogue.ask()
    assert_said(second, type(dialogue), 1)
    return first, second


@every_api
@sync_or_async
@whole_or_streamed
async def test_a_conversation_is_as_it_would_be_without_the_gateway(
    site: Site, api: type[Dialogue], is_async: bool, streams: bool
) -> None:
    async with client_of(api, site, is_async=is_async) as client:
        first, second = await two_turns(api(client, PROMPT, streams=streams))
    assert (second.session, second.source) == (first.session, "call-id")


@every_api
async def test_each_call_is_ready_before_the_next_one_begins(
    fleet: Fleet, site: Site, api: type[Dialogue]
) -> None:
    """As the program finds it, and as the gateway does."""
    items = ["a pear", "a } fig", "{"]
    calls = [{"name": "lookup", "arguments": {"item": item}} for item in items]
    fleet.play({"scripts": {"price": {"turns": [{"text": LOOKING, "tool_calls": calls}]}}})
    async with client_of(api, site, is_async=True) as client:
        for _ in range(5):  # a gateway that stood still for all of an answer found all calls at its end
            before = ready_seconds(site)
            await in_order(api(client, PROMPT, streams=True), items)
            with suppress(TimeoutError):
                async with asyncio.timeout(3):
                    while ready_seconds(site)[0] < before[0] + len(items):
                        await asyncio.sleep(0.1)
                assert ready_seconds(site)[1] > before[1]
                return
    pytest.fail("the gateway saw no call that ended before its answer")


async def in_order(dialogue: Dialogue, items: list[str]) -> None:
    chunks: list[str] = []
    found = [
        (call.arguments["item"], chunks.copy())
        async for call in ready_calls(
            await dialogue.stream(), on_chunk=lambda chunk: chunks.append(chunk.model_dump_json())
        )
    ]
    assert [item for item, _ in found] == items
    for _, seen in found[:2]:
        assert sum('"lookup"' in chunk for chunk in seen) < sum('"lookup"' in chunk for chunk in chunks)
        assert len(seen) < len(chunks) - 3


def ready_seconds(site: Site) -> tuple[float, float]:
    """How many calls were ready before their answers' ends, and for how long, together."""
    name, told = "turnpike_decode_after_call_seconds", site.metrics()
    return told[f"{name}_count"], told[f"{name}_sum"]


@every_api
async def test_conversations_with_the_same_words_are_told_apart(site: Site, api: type[Dialogue]) -> None:
    async with client_of(api, site, is_async=True) as client:
        pairs = await asyncio.gather(*(two_turns(api(client, PROMPT, streams=True)) for _ in range(4)))
    assert all(first.session == second.session for first, second in pairs)
    assert len({first.session for first, _ in pairs}) == 4


@every_api
@sync_or_async
async def test_a_503_is_asked_again_by_the_sdk_itself(
    site: Site, api: type[Dialogue], is_async: bool
) -> None:
    async with client_of(api, site, is_async=is_async) as client:
        dialogue = api(client, PROMPT, streams=is_async)
        first = await dialogue.ask()
        dialogue.tell(first.calls[0], "12")
        site.faults.play(in_turn(Refuse()))
        second = await dialogue.ask()
    assert_said(second, api, 1)
    assert (second.session, second.source) == (first.session, "retry")
    refused, answered = site.faults.asked
    assert [refused.fate, answered.fate] == [Refuse(), None]
    assert refused.body == answered.body
    retries = [asked.headers["x-stainless-retry-count"] for asked in (refused, answered)]
    assert retries == ["0", "1"]


@every_api
async def test_an_opening_that_is_asked_again_is_guessed_to_be_the_same(
    site: Site, api: type[Dialogue]
) -> None:
    """Others may ask the same, so it is no proof."""
    before = session_ids(site)
    async with client_of(api, site, is_async=True) as client:
        site.faults.play(in_turn(Refuse()))
        first, second = await two_turns(api(client, PROMPT, streams=True))
    assert site.faults.faults == [Refuse()]
    assert (first.source, second.session) == ("new", first.session)
    guesses = {session["id"]: session["guess"] for session in site.snapshot()["sessions"]}
    refused = guesses[first.session]
    assert guesses.keys() - before == {refused, first.session} and guesses[refused] is None


@every_api
@sync_or_async
@pytest.mark.parametrize("after_events", [1, 3])
async def test_a_backend_that_dies_in_its_answer_is_an_error_to_the_sdk(
    site: Site, api: type[Dialogue], is_async: bool, after_events: int
) -> None:
    import openai

    async with client_of(api, site, is_async=is_async) as client:
        dialogue = api(client, PROMPT, streams=True)
        site.faults.play(in_turn(Cut(after_events)))
        with pytest.raises((openai.APIConnectionError, httpx2.TransportError)):
            await dialogue.ask()
        assert site.faults.faults == [Cut(after_events)]
        assert len(site.faults.asked) == 1, "a stream that has begun is not asked for again"
        assert len(dialogue.history) == 1, "nothing was taken for an answer"
        site.assert_books_balance()
        await two_turns(dialogue)


@every_api
@sync_or_async
async def test_half_an_answer_is_asked_for_again(site: Site, api: type[Dialogue], is_async: bool) -> None:
    async with client_of(api, site, is_async=is_async) as client:
        site.faults.play(in_turn(Cut()))
        await two_turns(api(client, PROMPT, streams=False))
    assert site.faults.faults == [Cut()]
    assert len(site.faults.asked) == 3
