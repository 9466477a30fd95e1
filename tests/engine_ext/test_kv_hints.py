"""The gateway's envelope `kv_hints` and vLLM: its routes take it, its own type and the plugin read it."""

import importlib
import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.domain.ids import SessionId, ThreadId
from gateway.wire.vllm_envelope import envelope
from gateway.workflow.engine_hints import Hints
from gateway.workflow.retention import RetentionDecision
from turnpike_vllm.engine_plugin import _carried_by
from turnpike_vllm.hints import Hint, Refusal, parse, sign

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

KEY = "k" * 64
HELD = RetentionDecision(reuse=0.9, retain_s=12.0, returns_in_s=None)
TURN = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "openai.chat_completion.protocol.ChatCompletionRequest": {"messages": TURN},
    "openai.completion.protocol.CompletionRequest": {"prompt": "hi"},
    "openai.responses.protocol.ResponsesRequest": {"input": "hi"},
    "anthropic.protocol.AnthropicMessagesRequest": {"messages": TURN, "max_tokens": 9},
}


def sent() -> tuple[str, dict[str, Any]]:
    hint = Hints().write(SessionId("s"), ThreadId("s.1"), HELD)
    assert hint is not None
    return hint, envelope(hint, sign(hint, KEY))


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_takes_a_body_with_it(route: str) -> None:
    module, _, name = route.rpartition(".")
    model = getattr(importlib.import_module(f"vllm.entrypoints.{module}"), name)
    body = {"model": "m", **ROUTES[route]}
    taken = model.model_validate_json(json.dumps({**body, "kv_hints": sent()[1]}))
    plain, ignored = model.model_validate_json(json.dumps(body)), {"kv_hints", "request_id"}
    assert taken.model_dump(exclude=ignored) == plain.model_dump(exclude=ignored)


def test_its_own_type_reads_it_and_the_plugin_what_that_made_of_it() -> None:
    from vllm.v1.kv_hints import KvHintsEnvelope

    hint, made = sent()
    read = msgspec.convert(json.loads(json.dumps(made)), KvHintsEnvelope)
    assert msgspec.to_builtins(read) == made
    request = SimpleNamespace(sampling_params=None, kv_hints=read)
    assert _carried_by(request, KEY) == [parse(hint)]
    assert isinstance(parse(hint), Hint) and _carried_by(request, "another") == [Refusal.UNSIGNED]


def test_of_two_ways_one_counts() -> None:
    hint, made = sent()
    actions = [SimpleNamespace(**each) for each in made["actions"]]
    request = SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args={"turnpike": sign(hint, KEY)}),
        kv_hints=SimpleNamespace(actions=actions),
    )
    assert _carried_by(request, KEY) == [parse(hint)]
