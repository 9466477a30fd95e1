"""Fleets that scale give every replica another name: what is known of one goes when it goes."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.assembly import assemble
from gateway.config import Config
from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId, SessionId
from gateway.domain.request import Transcript, Usage, Work
from gateway.domain.session_ids import numbered_ids
from tests.core.playbook import (
    Playbook,
    arrived,
    dispatch,
    finished,
    first_token,
    session_finished,
    started,
    stated,
    up,
)
from tests.reachable import reachable

SAID = Transcript(agent=7)
USAGE = Usage(prompt_tokens=1_000, cached_tokens=0, output_tokens=10)


def keyed_by(name: str, root: object) -> Iterator[dict[Any, Any] | set[Any]]:
    """Every table that `root` leads to and that has an entry of that name."""
    return (each for each in reachable(root) if isinstance(each, dict | set) and name in each)


class Fleet(Playbook):
    def __init__(self, **sections: Any) -> None:
        super().__init__(replicas="stays", **sections)
        settings = {"pools": [{"name": "pool", "replicas": [{"url": "http://0"}]}], **sections}
        self.brain = assemble(msgspec.convert(settings, Config), session_ids=numbered_ids())
        _ = self >> up("stays")

    def answers(self, request: str, **fields: Any) -> ReplicaId:
        command = self.arrives(request, transcript=SAID, body_bytes=4_000, stream=True, **fields)
        assert isinstance(command, Dispatch)
        _ = self >> started(request) >> first_token(request)
        self.now += 1.0
        _ = self >> finished(request, f"call-{request}", usage=USAGE)
        return command.placement.replica

    def serves(self, name: str) -> None:
        signals = EngineSignals(kv_tokens=100_000, kv_used=0.5)
        _ = self >> up(name) >> ev.EngineReported(ReplicaId(name), signals)
        self.answers("newcomer", explicit=stated("newcomer"))  # both are looked at
        _ = self >> ev.ReplicaDrained(ReplicaId("stays"), is_draining=True)
        for number in range(3):
            for turn in ("first", "second"):
                assert self.answers(f"{turn}-{number}", explicit=stated(f"s-{number}")) == name
        assert self.answers("light", work=Work.LIGHT) == name
        _ = self >> ev.ResidencyTold(ReplicaId(name), {SessionId("s"): 5.0})
        _ = self >> ev.ReplicaDrained(ReplicaId("stays"), is_draining=False)


def test_nothing_is_kept_of_a_replica_that_left():
    fleet = Fleet()
    fleet.serves("goes")
    assert len(list(keyed_by("goes", fleet.brain))) > 5
    fleet >> ev.ReplicaLeft(ReplicaId("goes"), "was told to")
    fleet >> ev.ResidencyTold(ReplicaId("goes"), {SessionId("s"): 5.0})
    for session in list(fleet.brain.sessions.sessions.newest_first()):
        fleet >> session_finished(session.id)
    fleet.later(400.0)
    fleet >> arrived("last") << dispatch("last", to="stays")
    assert list(keyed_by("goes", fleet.brain)) == []
