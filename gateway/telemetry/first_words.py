"""What the users of sessions wrote first, for the dashboard, where `server.first_words` allows it."""

from collections import OrderedDict
from typing import Any, Final

import msgspec

from gateway.domain.ids import SessionId
from gateway.domain.request import Protocol
from gateway.telemetry.otel.messages import input_messages

_MAX_SESSIONS: Final = 1000
# Bytes of a body that is read for this, at once.
_MAX_BODY: Final = 1 << 19
_MAX_CHARS: Final = 120


class FirstWords(OrderedDict[SessionId, str]):
    """Of the sessions that came last. In memory alone."""

    def began(self, session: SessionId, protocol: Protocol, body: bytes) -> None:
        """With each of its turns; the first one that is seen counts."""
        if session not in self:
            self[session] = _first_words(protocol, body) if len(body) <= _MAX_BODY else ""
            if len(self) > _MAX_SESSIONS:
                self.popitem(last=False)


def _first_words(protocol: Protocol, body: bytes) -> str:
    """A client's own additions, such as `<system-reminder>`, count only where there is nothing else."""
    texts: list[str] = []
    for written in input_messages(protocol, body, max_bytes=8 * _MAX_CHARS):
        message: dict[str, Any] = msgspec.json.decode(written)
        if message["role"] == "user":
            found = [part["content"].split() for part in message["parts"] if part["type"] == "text"]
            texts += [" ".join(words) for words in found if words]
            if any(not text.startswith("<") for text in texts):
                break
    own = next((text for text in texts if not text.startswith("<")), "".join(texts[:1]))
    return own if len(own) <= _MAX_CHARS else own[: _MAX_CHARS - 1] + "…"
