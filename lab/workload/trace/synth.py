"""What to compose, as asked for, and its composition: sessions of one source, arrivals of another.

Everything asked for stands in the header's sources, with the sources of what it was composed from.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from lab.workload.sessions import rng_of
from lab.workload.trace.agent_kinds import AGENT_KINDS
from lab.workload.trace.agents import AgentKind
from lab.workload.trace.arrivals import at_once, limited, poisson, recorded
from lab.workload.trace.composition import Arrival, Flow, compose
from lab.workload.trace.files import read_workload
from lab.workload.trace.format import Header, ServiceClass, Session, Source
from lab.workload.trace.populations import MadeUp, Population, Recorded
from lab.workload.trace.presets import PRESETS, Preset
from lab.workload.trace.spread import Spread

FROM_ARRIVALS: Final = "arrivals"
"""As tenants: those of the workload that the arrivals are from."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None where nothing was said."""

    preset: str | None = None
    sessions: str | None = None
    """A workload's file."""
    agents: str | None = None
    """A kind of made-up agents."""
    kind: tuple[str, ...] = ()
    """What is other about them: NAME=VALUE."""
    arrivals: str | None = None
    """A workload's file."""
    per_hour: Annotated[float, Meta(gt=0)] | None = None
    count: Annotated[int, Meta(ge=1)] | None = None
    until_s: Annotated[float, Meta(gt=0)] | None = None
    replace: bool = False
    tenants: str | None = None
    proactive: Annotated[float, Meta(ge=0, le=1)] = 0.0
    deadline_s: Annotated[float, Meta(gt=0)] | None = None
    tool_cores: Annotated[float, Meta(ge=0)] | None = None
    """Of tools of which nothing is known."""
    seed: int = 0


def synth(asked: Request) -> tuple[Header, Iterator[Session]]:
    """Raises ValueError where that cannot be composed."""
    preset = _preset(asked)
    sessions, about_sessions = _recorded_sessions(asked)
    if preset is not None:
        flows = preset.flows(sessions, asked.seed)
        about_sessions = [Source(what="mix", origin=preset.told), *about_sessions]
    elif sessions is not None:
        flows = _flows(asked, Recorded(sessions, replace=asked.replace))
    else:
        kind = _kind(asked)
        flows = _flows(asked, MadeUp(kind))
        about_sessions = [Source(what="sessions", origin="made-up agents", how=_numbers(kind))]
    arrivals, about_arrivals = _arrivals(asked, preset, _most(asked, sessions))
    is_endless = asked.arrivals is None and (asked.replace or sessions is None or preset is not None)
    if is_endless and asked.count is None and asked.until_s is None:
        raise ValueError("say how many sessions, or until when")
    arrivals = limited(arrivals, number=asked.count, until_s=asked.until_s)
    header = Header(
        name=asked.preset or asked.agents or "composed",
        sources=(*about_sessions, about_arrivals, *_about_rest(asked)),
        seed=asked.seed,
    )
    flows = [flow for known in flows for flow in _by_class(known, asked.proactive)]
    return header, (_completed(session, asked) for session in compose(arrivals, flows, seed=asked.seed))


def _preset(asked: Request) -> Preset | None:
    if asked.preset is None:
        if (asked.sessions is None) == (asked.agents is None):
            raise ValueError("say where sessions come from: a workload, a kind of agents, or a preset")
        return None
    if asked.agents is not None or asked.tenants is not None:
        raise ValueError("a preset has its own agents and tenants")
    return PRESETS[asked.preset]


def _recorded_sessions(asked: Request) -> tuple[list[Session] | None, list[Source]]:
    if asked.sessions is None:
        return None, []
    header, sessions = read_workload(asked.sessions)
    how = "drawn with replacement" if asked.replace or asked.preset else "each once, in a drawn order"
    drawn = Source(what="sessions", origin=f"workload {header.name}", how=how)
    return list(sessions), [drawn, *header.sources]


def _kind(asked: Request) -> AgentKind:
    """The kind with its numbers replaced: NAME=NUMBER, or NAME.PART=NUMBER within a spread."""
    assert asked.agents is not None
    kind = AGENT_KINDS[asked.agents]
    for change in asked.kind:
        path, _, text = change.partition("=")
        name, _, part = path.partition(".")
        try:
            number = float(text)
        except ValueError as error:
            raise ValueError(f"{change!r} is not NAME=NUMBER") from error
        known = getattr(kind, name, None)
        value: Spread | float
        if isinstance(known, Spread) and (part or "median") in Spread.__struct_fields__:
            value = msgspec.structs.replace(known, **{part or "median": number})
        elif isinstance(known, int | float) and not part:
            value = int(number) if number.is_integer() else number
        else:
            raise ValueError(f"{asked.agents} agents have no number {path!r}")
        kind = msgspec.structs.replace(kind, **{name: value})
    return msgspec.convert(msgspec.to_builtins(kind), AgentKind)


def _numbers(kind: AgentKind) -> str:
    return msgspec.json.encode(kind).decode()


def _most(asked: Request, sessions: Sequence[Session] | None) -> int | None:
    """How many sessions there can be; None for no limit."""
    if sessions is None or asked.replace or asked.preset is not None:
        return asked.count
    return min(len(sessions), asked.count or len(sessions))


def _arrivals(asked: Request, preset: Preset | None, number: int | None) -> tuple[Iterable[Arrival], Source]:
    if asked.arrivals is not None:
        header, sessions = read_workload(asked.arrivals)
        known = recorded(
            sessions, per_hour=asked.per_hour, with_tenants=asked.tenants == FROM_ARRIVALS, number=number
        )
        origins = ", ".join(source.origin for source in header.sources) or header.name
        part = f"the first {number}" if number is not None else "all"
        how = (
            f"{part}, stretched to {asked.per_hour:g} an hour"
            if asked.per_hour is not None
            else "as they were"
        )
        return known, Source(what="arrivals", origin=origins, how=how)
    per_hour = asked.per_hour or (preset.per_hour if preset is not None else None)
    if per_hour is None:
        return at_once(), Source(what="arrivals", origin="none", how="all at 0")
    how = f"{per_hour:g} an hour"
    return poisson(per_hour, rng_of(asked.seed, "arrivals")), Source(
        what="arrivals", origin="a Poisson process", how=how
    )


def _flows(asked: Request, population: Population) -> list[Flow]:
    return [Flow(tenant=name, population=population, share=share) for name, share in _tenants(asked.tenants)]


def _tenants(text: str | None) -> Sequence[tuple[str, float]]:
    """`3`: so many, alike; `a=2,b=1`: by name, with shares of the arrivals."""
    if text is None or text == FROM_ARRIVALS:
        return [("default", 1.0)]
    if text.isdigit() and int(text):
        return [(f"tenant-{number}", 1.0) for number in range(1, int(text) + 1)]
    found = []
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            found.append((name, float(share)))
        except ValueError as error:
            raise ValueError(f"tenants {text!r} are neither a number nor NAME=SHARE,…") from error
    if any(share <= 0 for _, share in found):
        raise ValueError(f"tenants {text!r}: a share is more than 0")
    return found


def _by_class(flow: Flow, proactive: float) -> list[Flow]:
    """The flow, in two where a part of it is proactive."""
    if flow.service_class is not None or not proactive:
        return [flow]
    classes = ((ServiceClass.REACTIVE, 1 - proactive), (ServiceClass.PROACTIVE, proactive))
    return [
        msgspec.structs.replace(flow, share=flow.share * part, service_class=service_class)
        for service_class, part in classes
        if part
    ]


def _completed(session: Session, asked: Request) -> Session:
    """With the deadline, and the tools' demands, that were asked for."""
    if asked.deadline_s is not None:
        session = msgspec.structs.replace(session, deadline_s=asked.deadline_s)
    if asked.tool_cores is None:
        return session
    replace = msgspec.structs.replace
    threads = []
    for thread in session.threads:
        turns = []
        for turn in thread.turns:
            tools = (
                tool
                if tool.cpu_cores or tool.starts_thread is not None
                else replace(tool, cpu_cores=asked.tool_cores)
                for tool in turn.tools
            )
            turns.append(replace(turn, tools=tuple(tools)))
        threads.append(replace(thread, turns=tuple(turns)))
    return replace(session, threads=tuple(threads))


def _about_rest(asked: Request) -> Iterator[Source]:
    if asked.tenants is not None:
        how = "those of the arrivals" if asked.tenants == FROM_ARRIVALS else f"drawn: {asked.tenants}"
        yield Source(what="tenants", origin="composed", how=how)
    if asked.proactive:
        yield Source(what="classes", origin="composed", how=f"proactive with a chance of {asked.proactive:g}")
    if asked.deadline_s is not None:
        yield Source(what="deadlines", origin="composed", how=f"{asked.deadline_s:g} s after arrival")
    if asked.tool_cores is not None:
        yield Source(
            what="tool demands", origin="composed", how=f"{asked.tool_cores:g} cores where none is known"
        )
