"""Answers, the requests before them, and what came behind, for the prompt that is foreseen."""

import json
import random
from typing import Any

from gateway.domain.request import Protocol
from gateway.prefill_ahead.history_rewrite import Arguments, EchoManner, NoText, Thought
from gateway.prefill_ahead.next_prompt import compare, next_prompt, read_head
from gateway.responses.content import Kind, ResponseContent
from tests.fuzz import bodies
from tests.fuzz.mutation import WORDS, value

Given = tuple[Protocol, ResponseContent, EchoManner, bytes, bytes]


def _said(rng: random.Random) -> ResponseContent:
    said = ResponseContent()
    for place in range(rng.randrange(4)):
        arguments = json.dumps(value(rng)) if rng.randrange(3) else rng.choice(WORDS)
        piece = rng.choice((arguments, rng.choice(WORDS), None))
        said.add(
            place, rng.choice([*Kind]), piece, id=f"c{place}", name=rng.choice(("f", "")), field="reasoning"
        )
    return said


def _body(rng: random.Random, said: ResponseContent) -> bytes:
    if rng.randrange(3) == 0:
        return bodies.make(rng)[2]
    turns: list[Any] = [bodies.turn(rng) for _ in range(rng.randrange(3))]
    calls = [{"id": part.id, "function": value(rng, 2)} for part in said.parts]
    content = rng.choice((value(rng, 2), "".join(part.text for part in said.parts)))
    turns.append({"role": "assistant", "content": content, "tool_calls": rng.choice((calls, value(rng, 2)))})
    return json.dumps({"messages": turns}).encode()


def make(rng: random.Random) -> Given:
    said = _said(rng)
    manner = EchoManner(
        thought=rng.choice([*Thought]),
        is_stripped=bool(rng.randrange(2)),
        is_parts=bool(rng.randrange(2)),
        no_text=rng.choice([*NoText]),
        arguments=rng.choice([*Arguments]),
        are_calls_text=bool(rng.randrange(2)),
    )
    protocol = rng.choice((Protocol.CHAT, Protocol.MESSAGES))
    return protocol, said, manner, _body(rng, said), _body(rng, said)


def check(given: Given) -> None:
    """Nothing raises; what is sent is a request for one token, and what it says is foreseen of itself."""
    protocol, said, manner, before, after = given
    compare(protocol, before, said, manner, after)
    for head in (None, read_head(after)):
        made = next_prompt(protocol, before, said, manner, head)
        if made is None:
            continue
        try:
            read = json.loads(made)
        except UnicodeDecodeError:
            assert _is_no_text(before) or _is_no_text(after)  # items go as they came
            continue
        assert read["max_tokens"] == 1 and read["stream"] is False
        found = compare(protocol, before, said, manner, made)
        assert (found is not None and found.was_right) or b"\\ud" in made, made


def _is_no_text(body: bytes) -> bool:
    return body.decode("utf-8", "replace").encode() != body
