"""What is known of the next prompt is computed while tools run: what is sent, on real sockets, by a policy
that asks for it whenever a test says so."""

import asyncio
import json
from typing import Any

import pytest

from gateway.domain import records as rec
from gateway.server.auth.client_keys import hash_key
from tests.server.bench import Exchange, answer, eventually, post, sends
from tests.server.prefills_bench import (
    ARGUMENTS,
    ASKS,
    ON,
    RESULT,
    TOOLS,
    Ahead,
    call,
    chat_stream,
    said_plainly,
    started,
    turn,
)


async def test_the_next_prompt_is_sent_as_far_as_it_is_known(start):
    ahead = await started(start)
    kept = await ahead.pauses(turn(ASKS, headers=b"authorization: Bearer of-the-client\r\n"))
    usage = await ahead.ends(kept)
    assert usage is not None and usage.prompt_tokens == 3
    [seen] = ahead.asked
    assert seen.get(b"authorization") == b"Bearer of-the-client" and not seen.get(b"x-turnpike-session")
    *before, said, unknown = ahead.foreseen.pop("messages")
    assert before == [{"role": "system", "content": "You look."}, ASKS]
    assert said == said_plainly() and unknown["tool_call_id"] == "call-1"
    assert ahead.foreseen | {"messages": []} == {
        "model": "m", "messages": [], "tools": TOOLS, "max_tokens": 1, "stream": False,
    }  # fmt: skip


async def test_how_its_client_sends_answers_back_is_learned(start):
    ahead = await started(start)
    await ahead.pauses(turn(ASKS))
    compact = json.dumps(json.loads(ARGUMENTS), separators=(",", ":"))
    echoed = {**said_plainly(), "tool_calls": [call(compact)], "reasoning": "Let me look."}
    await ahead.ends(await ahead.pauses(turn(ASKS, echoed, RESULT)))
    assert not ahead.asked, "the only guess so far was wrong"
    for number in range(2, 4):
        await ahead.ends(await ahead.pauses(turn(ASKS, *[echoed, RESULT] * number)))
    *before, said, _ = ahead.foreseen["messages"]
    assert said == echoed and before[1:] == [ASKS, *[echoed, RESULT] * 3]


async def test_the_head_is_that_of_the_agent_that_is_expected(start):
    ahead = await started(start)
    other = await ahead.pauses(turn(ASKS, system="You write.", session="other"))
    kept = await ahead.pauses(turn(ASKS))
    await ahead.ends(kept, agent=other.agent)
    assert [each["content"] for each in ahead.foreseen["messages"][:2]] == ["You write.", "Find é."]
    assert await ahead.ends(kept, agent=4711) is None and len(ahead.asked) == 1, "nobody has seen that"


async def test_nobody_gets_the_head_of_another_tenant(start):
    keys = [f"tp-{name}-{'k' * 24}" for name in "ab"]
    tenants = [{"name": f"tenant-{n}", "key_hashes": [hash_key(key)]} for n, key in enumerate(keys)]
    ahead = await started(start, tenants=tenants)
    shown = [b"authorization: Bearer %s\r\n" % key.encode() for key in keys]
    other = await ahead.pauses(turn(ASKS, system="You write.", headers=shown[0]))
    kept = await ahead.pauses(turn(ASKS, headers=shown[1]))
    assert await ahead.ends(kept, agent=other.agent) is None and not ahead.asked


async def test_what_has_gone_on_is_not_sent(start):
    ahead = await started(start)
    stale = await ahead.pauses(turn(ASKS))
    await ahead.pauses(turn(ASKS, said_plainly(), RESULT))
    assert await ahead.ends(stale) is None and not ahead.asked


async def test_a_side_request_takes_nothing_away(start):
    ahead = await started(start)
    kept = await ahead.pauses(turn(ASKS))
    title = {"model": "m", "messages": [{"role": "user", "content": "Write a title."}], "stream": True}
    await ahead.pauses(post(json.dumps(title).encode(), headers=b"x-turnpike-session: s\r\n"))
    assert await ahead.ends(kept) is not None


@pytest.mark.parametrize("pieces", [4, len(chat_stream()) - 2], ids=["in the middle", "before its end"])
async def test_an_answer_that_breaks_off_is_not_extended(start, pieces):
    ahead = await started(start)
    broken = b"".join(chat_stream()[:pieces])
    ahead.bench.backend.script = sends(broken, then="reset")
    response = await ahead.bench.ask(turn(ASKS))
    assert not response.is_whole
    ahead.bench.backend.script = ahead.script
    [kept] = ahead.prefills.kept._kept.values()
    assert await ahead.ends(kept) is None and not ahead.asked


async def test_a_client_that_leaves_in_the_middle_of_its_answer(start):
    ahead = await started(start)
    ahead.bench.backend.script = sends(b"".join(chat_stream()[:5]), then="hang")
    client = await ahead.bench.send(turn(ASKS))
    await client.reader.readuntil(b"I ")
    client.reset()
    await eventually(ahead.bench.is_quiet)
    [kept] = ahead.prefills.kept._kept.values()
    assert kept.response is None and await ahead.ends(kept) is None


async def test_what_is_kept_is_bounded(start):
    ahead = Ahead(await start(prefill_ahead=ON | {"kept_bytes": 2_000}))
    for number in range(6):
        await ahead.pauses(turn(ASKS, session=f"s-{number}", system=f"You look {number}."))
    kept = [*ahead.prefills.kept._kept.values()]
    assert 0 < len(kept) < 6
    assert sum(each.size for each in kept) == ahead.prefills.kept.bytes <= 2_000
    of_request = len(kept[-1].request.body) + sum(len(n) + len(v) for n, v in kept[-1].request.head.headers)
    assert kept[-1].response is not None and kept[-1].size == of_request + kept[-1].response.size > of_request
    assert 0 < ahead.prefills.heads.bytes <= 250


async def test_the_brain_has_the_prompt_of_the_next_agent_computed(start):
    """Who plans under one system prompt, and reads what tools found under another one."""
    plans, reads, asked, moments = chat_stream(), chat_stream(), [], []

    async def script(exchange: Exchange) -> None:
        body = json.loads(exchange.request.body)
        if body.get("max_tokens") == 1:
            asked.append(body)
            await exchange.send(answer())
            return
        for piece in plans if body["messages"][0]["content"] == "You plan." else reads:
            await exchange.send(piece)

    bench = await start(prefill_ahead=ON | {"least_s": 0.0}, script=script)
    take = bench.gateway.driver._on_records

    def watch(records: list[Any]) -> None:
        moments.extend(records)
        take(records)

    bench.gateway.driver._on_records = watch
    for number in range(6):
        of = f"s-{number}"
        assert (await bench.ask(turn(ASKS, system="You plan.", session=of))).status == 200
        if number > 4:
            await eventually(lambda: asked and not bench.gateway._parts.listeners.prefills._under_way)
        last = turn(ASKS, said_plainly(), RESULT, system="You read.", session=of)
        assert (await bench.ask(last)).status == 200
    *known, said, _ = asked[-1]["messages"]
    assert known == [{"role": "system", "content": "You read."}, ASKS] and said == said_plainly()
    told = [each for each in moments if isinstance(each, rec.PrefilledAhead)]
    assert told and told[-1].usage.prompt_tokens == 3 and told[-1].replica == "default-0"


async def test_its_connection_is_closed_before_a_turn_of_others_has_begun_to_be_answered(start):
    """Where all requests are alike to an engine: it stops computing what nobody listens to. Behind that turn
    the prompt goes ahead again."""
    gone, asked = asyncio.Event(), []

    async def script(exchange: Exchange) -> None:
        body = json.loads(exchange.request.body)
        if body.get("max_tokens") != 1:
            if body["messages"][1] != ASKS:
                await asyncio.wait_for(gone.wait(), 10.0)  # else it would never be answered
            for piece in chat_stream():
                await exchange.send(piece)
            return
        asked.append(body)
        if len(asked) == 1:
            await exchange.until_left()
            gone.set()
        else:
            await exchange.send(answer())

    bench = await start(prefill_ahead=ON | {"least_s": 0.0}, script=script)
    for number in range(4):
        of = f"s-{number}"
        assert (await bench.ask(turn(ASKS, system="You plan.", session=of))).status == 200
        if asked:
            break
        last = turn(ASKS, said_plainly(), RESULT, system="You read.", session=of)
        assert (await bench.ask(last)).status == 200
    assert len(asked) == 1
    other = turn({"role": "user", "content": "Something else."}, session="other")
    assert (await bench.ask(other)).status == 200
    await eventually(lambda: len(asked) == 2)
    assert asked[0] == asked[1]


async def test_without_it_nothing_is_kept(start):
    assert (await start()).gateway._parts.listeners.prefills is None
