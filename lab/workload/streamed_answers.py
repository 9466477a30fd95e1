"""A recorded event stream, put together to the answer that it streamed."""

from typing import Any, Final

import msgspec

from gateway.wire.sse import EventSplitter, event_data

_DONE: Final = b"[DONE]"


def stream_events(text: str) -> list[dict[str, Any]]:
    """The JSON objects among the stream's events."""
    splitter = EventSplitter()
    blocks = splitter.feed(text.encode("utf-8", "replace"))
    blocks += splitter.finish()
    events = []
    for block in blocks:
        data = event_data(block)
        if not data or data == _DONE:
            continue
        try:
            event = msgspec.json.decode(data)
        except msgspec.DecodeError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def whole_response(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The Responses object that the stream ended with; else the one it began with."""
    responses = [event["response"] for event in events if isinstance(event.get("response"), dict)]
    return responses[-1] if responses else None


def whole_completion(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """A chat completion with the message that the chunks add up to; None where there is no chunk."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    finish, completion_id, calls, is_seen = None, None, dict[int, dict[str, Any]](), False
    for event in events:
        completion_id = completion_id or event.get("id") or None
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            is_seen = True
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {}
            if isinstance(delta.get("content"), str):
                message["content"] = (message["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls") or ():
                _add_piece(calls, piece)
    if calls:
        message["tool_calls"] = [call for _, call in sorted(calls.items())]
    if not is_seen:
        return None
    return {"id": completion_id, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


def _add_piece(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    call = calls.setdefault(
        piece.get("index") or 0, {"type": "function", "function": {"name": "", "arguments": ""}}
    )
    if piece.get("id"):
        call["id"] = piece["id"]
    function = piece.get("function") or {}
    for part in ("name", "arguments"):
        call["function"][part] += function.get(part) or ""
