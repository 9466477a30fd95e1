"""A hint in vLLM's own envelope, for a vLLM without our plugin.

Source: vLLM, `vllm/v1/kv_hints/protocol.py` (0.31 and newer, vllm#53423). `kv.retain` and `vllm.set_priority`
are actions of two proposed executors, in no release yet; readers skip unknown actions. Both evict blocks of a
greater priority later, for a time after the turn's end; neither pins.

Invariants: one action of each type; a thread's claim has one name, and its revisions grow; no id in it is the
client's.
"""

from typing import Any, Final

import msgspec

PROTOCOL_VERSION: Final = "0.1"
TURNPIKE: Final = "turnpike.session"
RETAIN: Final = "kv.retain"
SET_PRIORITY: Final = "vllm.set_priority"
# `kv.retain`'s highest priority; blocks without one have 0.
MOST: Final = 100


class _Hint(msgspec.Struct):
    session: str
    seq: int
    thread: str = ""
    retain_s: float = 0.0
    reuse: float = 0.0


_DECODER: Final = msgspec.json.Decoder(_Hint)


def envelope(hint: str, ours: str | None) -> dict[str, Any]:
    """`hint`: of `Hints.write`; `ours`: the same for the plugin, None without it."""
    fields = _DECODER.decode(hint)
    claim = f"turnpike/{fields.session}/{fields.thread}"
    is_kept = fields.reuse > 0.0 and fields.retain_s > 0.0
    priority = max(1, round(MOST * fields.reuse)) if is_kept else 0
    # For all tokens, the answer's too; without a duration, and without a value, an earlier claim is given up.
    directive: dict[str, Any] = {"start": 0, "end": None, "priority": priority}
    target: dict[str, Any] = {"target": "request_cached", "location": "local_g1", "claim_id": claim}
    target |= {"revision": fields.seq, "value": priority or None}
    if is_kept:
        directive["duration"] = target["ttl_seconds"] = fields.retain_s
    actions = [] if ours is None else [_action(TURNPIKE, "1", {"hint": ours})]
    actions += [
        _action(RETAIN, "1.0", {"scope": claim, "directives": [directive]}),
        _action(SET_PRIORITY, "1.0", target),
    ]
    return {"protocol_version": PROTOCOL_VERSION, "message_id": f"{claim}/{fields.seq}", "actions": actions}


def _action(kind: str, version: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"action_id": kind, "action_type": kind, "action_version": version, "payload": payload}
