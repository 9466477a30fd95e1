"""A gateway that is not ours, event by event."""

from typing import Any

from gateway.core import events as ev
from gateway.core.commands import Dispatch
from gateway.domain.engine import EngineSignals
from gateway.domain.fleet import ReplicaFacts
from gateway.domain.ids import PoolId, ReplicaId, RequestId, SessionId, TenantId
from gateway.domain.request import Answer, ExplicitId, Protocol, RequestFacts, Usage, Work
from lab.simulator.baselines.router import Router


def asked(name, tokens=100, *, final=False, is_background=False, tenant="t"):
    facts = RequestFacts(
        protocol=Protocol.CHAT,
        work=Work.GENERATE,
        body_bytes=4 * tokens,
        explicit=ExplicitId(schema="x", session=name.split("/")[0], thread="0", final=final),
        is_background=is_background,
    )
    return ev.RequestArrived(RequestId(name), TenantId(tenant), facts)


def report(used: float, preemptions: int = 0) -> ev.EngineReported:
    return ev.EngineReported(ReplicaId("r0"), EngineSignals(kv_used=used, preemptions=preemptions))


class Play:
    """Drives a router; a turn is named `session/turn`."""

    def __init__(self, placement, window=None, replicas=1, kv_tokens=1000, rank=None, kind=None):
        sizes = {f"r{n}": kv_tokens for n in range(replicas)}
        self.router: Any = kind(sizes) if kind is not None else Router(sizes, placement, window, rank)
        for number in range(replicas):
            facts = ReplicaFacts(id=ReplicaId(f"r{number}"), pool=PoolId("sim"))
            assert self.router.handle(ev.ReplicaCameUp(facts), now=0.0) == []

    def asks(self, name, tokens=100, *, now=0.0, **facts):
        return self.hears(asked(name, tokens, **facts), now)

    def ends(self, name, prompt=100, output=10, now=0.0, tool_calls=(), cached=None):
        usage = Usage(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)
        answer = Answer(status=200, usage=usage, tool_calls=tool_calls)
        return self.hears(ev.ResponseFinished(RequestId(name), answer), now)

    def over(self, session, now=0.0):
        return self.hears(ev.SessionFinished(SessionId(session)), now)

    def hears(self, event, now=0.0):
        commands = self.router.handle(event, now=now)
        sent = [command for command in commands if isinstance(command, Dispatch)]
        assert sent == commands
        return [f"{each.request} on {each.placement.replica}" for each in sent]
