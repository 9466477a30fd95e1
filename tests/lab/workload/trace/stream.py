"""An information stream written by hand: records as the gateway writes them, a line each."""

import msgspec
from msgspec.structs import replace

from gateway.domain import records as rec
from gateway.domain.decision import Edge
from gateway.domain.request import Usage
from lab.workload.records import Member
from tests.history.lives import arrival, ended


class Tape:
    def __init__(self):
        self.records = []

    def arrive(self, at, turn, edge=Edge.OPENS, parent=None, *, thread="s.1", session="s", tenant="t"):
        came = arrival(turn, session, at, tenant=tenant)
        self.records.append(replace(came, thread=thread, edge=edge, parent=parent))
        return self

    def end(self, at, turn, prompt=None, output=None, cached=None, *, session="s", outcome="finished"):
        usage = Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)
        _, answered, _ = ended(turn, session, at, outcome=outcome)
        self.records.append(replace(answered, usage=usage))
        return self

    def turn(
        self, at, turn, prompt, output, edge=Edge.OPENS, parent=None, *, cached=None, lasts_s=1.0, **more
    ):
        self.arrive(at, turn, edge, parent, **more)
        return self.end(at + lasts_s, turn, prompt, output, cached, session=more.get("session", "s"))

    def tools(self, turn, *names, session="s"):
        self.records.append(rec.ToolStart(at_s=0.0, session=session, turn=turn, names=names))
        return self

    def over(self, session="s"):
        self.records.append(rec.SessionEnded(at_s=0.0, session=session, turns=1, reason="idle"))
        return self

    @property
    def member(self):
        return Member("stream", [msgspec.json.encode(record) + b"\n" for record in self.records])
