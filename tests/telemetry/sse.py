"""Server-sent events, read as a browser reads them."""

from typing import NamedTuple


class Event(NamedTuple):
    id: str
    type: str
    data: str


def read_events(data: bytes) -> list[Event]:
    """What is whole of them; the last id holds until the next."""
    events, last_id = [], ""
    for block in data.decode().split("\n\n")[:-1]:
        kind, lines = "message", []
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                last_id = value
            elif name == "event":
                kind = value
            elif name == "data":
                lines.append(value)
        if lines:
            events.append(Event(last_id, kind, "\n".join(lines)))
    return events
