"""A hint in vLLM's own envelope, for a vLLM that follows such hints without our plugin.

Source: vLLM, `vllm/v1/kv_hints/protocol.py` (0.31 and newer, vllm#53423). `kv.retain` and `vllm.set_priority`
are the actions of two executors that are proposed to vLLM and in no release yet; whoever reads an envelope
passes over actions that it does not know. Their common sense: blocks of a greater priority are evicted later,
for so long after the turn's end; nothing is pinned.

Invariants: one action of each type; a thread's claim has one name, and its revisions grow; no id in it is the
client's.
"""

from typing import Any, Final

import msgspec

PROTOCOL_VERSION: Final = "0.1"
TURNPIKE: Final = "turnpike.session"
RETAIN: Final = "kv.retain"
SET_PRIORITY: Final = "vllm.set_priority"
MOST: Final = 100
"""`kv.retain`'s highest priority; blocks without one have 0."""


class _Said(msgspec.Struct):
    session: str
    seq: int
    thread: str = ""
    retain_s: float = 0.0
    reuse: float = 0.0


_SAID: Final = msgspec.json.Decoder(_Said)


def envelope(hint: str, ours: str | None) -> dict[str, Any]:
    """`hint`: as `Hints.write` made it; `ours`: the same as the plugin reads it, None where there is none."""
    said = _SAID.decode(hint)
    claim = f"turnpike/{said.session}/{said.thread}"
    actions = [] if ours is None else [_action(TURNPIKE, "1", {"hint": ours})]
    actions += [
        _action(RETAIN, "1.0", {"scope": claim, "directives": [_directive(said)]}),
        _action(SET_PRIORITY, "1.0", _claim(said, claim)),
    ]
    return {"protocol_version": PROTOCOL_VERSION, "message_id": f"{claim}/{said.seq}", "actions": actions}


def _action(kind: str, version: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"action_id": kind, "action_type": kind, "action_version": version, "payload": payload}


def _priority(said: _Said) -> int:
    """0: it need not be kept."""
    return max(1, round(MOST * said.reuse)) if said.reuse > 0.0 and said.retain_s > 0.0 else 0


def _directive(said: _Said) -> dict[str, Any]:
    """Of all tokens, those of the answer too; 0 gives up what the claim kept before."""
    duration = {"duration": said.retain_s} if _priority(said) else {}
    return {"start": 0, "end": None, "priority": _priority(said), **duration}


def _claim(said: _Said, claim: str) -> dict[str, Any]:
    target = {"target": "request_cached", "location": "local_g1", "claim_id": claim, "revision": said.seq}
    if not (priority := _priority(said)):
        return {**target, "value": None}
    return {**target, "value": priority, "ttl_seconds": said.retain_s}
