"""What an executor of vLLM's would find in the envelope."""

from typing import Any

import pytest

from gateway.domain.ids import SessionId, ThreadId
from gateway.wire.vllm_envelope import envelope
from gateway.workflow.engine_hints import Hints
from gateway.workflow.retention import RetentionDecision

S, T = SessionId("s-x"), ThreadId("s-x.1")


def written(reuse: float, retain_s: float, **more: Any) -> str:
    decision = RetentionDecision(reuse=reuse, retain_s=retain_s, returns_in_s=2.0)
    hint = Hints().write(S, T, decision, **more)
    assert hint is not None
    return hint


def payloads(hint: str, ours: str | None = None) -> dict[str, Any]:
    actions = envelope(hint, ours)["actions"]
    assert all(each["action_id"] == each["action_type"] for each in actions)
    return {each["action_type"]: each["payload"] for each in actions}


def test_state_that_is_used_again_has_a_priority_for_a_time():
    assert envelope(written(0.9, 12.5, is_final=True), None) == {
        "protocol_version": "0.1",
        "message_id": "turnpike/s-x/s-x.1/1",
        "actions": [
            {
                "action_id": "kv.retain",
                "action_type": "kv.retain",
                "action_version": "1.0",
                "payload": {
                    "scope": "turnpike/s-x/s-x.1",
                    "directives": [{"start": 0, "end": None, "priority": 90, "duration": 12.5}],
                },
            },
            {
                "action_id": "vllm.set_priority",
                "action_type": "vllm.set_priority",
                "action_version": "1.0",
                "payload": {
                    "target": "request_cached",
                    "location": "local_g1",
                    "claim_id": "turnpike/s-x/s-x.1",
                    "revision": 1,
                    "value": 90,
                    "ttl_seconds": 12.5,
                },
            },
        ],
    }


@pytest.mark.parametrize(("reuse", "retain_s"), [(0.0, 5.0), (0.9, 0.0)])
def test_what_is_not_used_again_loses_what_it_had(reuse: float, retain_s: float):
    found = payloads(written(reuse, retain_s))
    assert found["kv.retain"]["directives"] == [{"start": 0, "end": None, "priority": 0}]
    assert found["vllm.set_priority"]["value"] is None and "ttl_seconds" not in found["vllm.set_priority"]


def test_unlikely_is_more_than_never():
    assert payloads(written(0.001, 5.0))["vllm.set_priority"]["value"] == 1
    assert payloads(written(1.0, 5.0))["kv.retain"]["directives"][0]["priority"] == 100


def test_for_an_engine_with_the_plugin_its_own_action_stands_beside_them():
    assert [*payloads(written(0.9, 12.5), "signed")] == ["turnpike.session", "kv.retain", "vllm.set_priority"]
    assert payloads(written(0.9, 12.5), "signed")["turnpike.session"] == {"hint": "signed"}
