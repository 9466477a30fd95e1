"""The event log: every event of a brain with the commands that followed, one event a line (pure).

The first line has what the brain was made from; each further one has an event, its time and its commands.
Feeding the events to a brain made from the first line must give the very same commands: that is how one
brain in two drivers is checked, and how a decision of yesterday is looked into today. Texts are in the log as
hashes alone, settings without secrets and addresses. The names of sessions are in the records, but not the
key that makes them: a reader of the log cannot foretell a name.

Invariant: a reader of the whole log who knows some of the texts cannot distinguish a right guess of another
one from a wrong one of that size. Hashes are keyed (`gateway/wire/hashing.py`), and the key is not in the
log. The hash of an agent type, which outlives processes, is keyed for the log alone.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.budgets.budgets import BoundConfig
from gateway.config import Config
from gateway.config.jwt import JwtConfig
from gateway.config.kubernetes import KubernetesConfig
from gateway.config.privacy import fields_of, holds_private_text
from gateway.config.tenants import TenantConfig
from gateway.config.upstream import KvEventsConfig, ReplicaConfig
from gateway.core.commands import Command, Dispatch, Publish, Refuse, Spend
from gateway.core.events import Event, RequestArrived, SettingsChanged, SpendRemembered
from gateway.domain.records import BoundReached, TurnArrived
from gateway.domain.request import PromptHead, RequestFacts
from gateway.domain.spending import OTHER_AGENTS, Spent
from gateway.identity.hashed_words import hash_words, words_of_hashes
from gateway.wire.hashing import keyed

VERSION: Final = 4


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    turnpike_events: int = VERSION
    version: str
    settings: Config
    needs_key: bool = False
    """A replay compares hashes that it makes with those in the log, so it needs what keyed them."""


_encoder: Final = msgspec.json.Encoder(enc_hook=hash_words)
_event: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event, dec_hook=words_of_hashes)


def encode_event(event: Event) -> bytes:
    return _encoder.encode(_renamed(event))


def decode_event(line: bytes) -> Event:
    return _event.decode(line)


def as_recorded(recorded: Event, event: Event) -> Event:
    if isinstance(recorded, RequestArrived) and isinstance(event, RequestArrived):
        known = event.facts.transcript
        facts = _with_agent(recorded.facts, known.agent_type, known.head)
        return replace(recorded, facts=facts, reserved=event.reserved)
    return event if isinstance(event, SpendRemembered | SettingsChanged) else recorded


def _renamed(event: Event) -> Event:
    if isinstance(event, RequestArrived):
        reserved = event.reserved
        if reserved is not None:
            reserved = replace(reserved, spent=_renamed_accounts(reserved.spent))
        facts = _with_agent(event.facts, _agent(event.facts.transcript.agent_type), None)  # decides nothing
        return replace(event, facts=facts, reserved=reserved)
    if isinstance(event, SettingsChanged):
        bounds = _shown(event.settings.bounds, count())
        return SettingsChanged(replace(event.settings, bounds=bounds))
    return SpendRemembered(_renamed_accounts(event.spent)) if isinstance(event, SpendRemembered) else event


def _renamed_accounts(spent: tuple[Spent, ...]) -> tuple[Spent, ...]:
    return tuple(
        replace(each, account=replace(each.account, agent=_agent(each.account.agent))) for each in spent
    )


def _with_agent(facts: RequestFacts, agent_type: int, head: PromptHead | None) -> RequestFacts:
    return replace(facts, transcript=replace(facts.transcript, agent_type=agent_type, head=head))


def _agent(agent_type: int) -> int:
    return keyed(agent_type) if agent_type > OTHER_AGENTS else agent_type


def _agent_name(name: str) -> str:
    return f"{_agent(int(name, 16)):016x}" if name else ""


def encode_answer(commands: list[Command]) -> tuple[bytes, bytes]:
    """Decisions, and records. Messages to other gateways decide nothing."""
    done = [command for command in commands if isinstance(command, Dispatch | Refuse)]
    records = [
        command for command in commands if not isinstance(command, Dispatch | Refuse | Publish | Spend)
    ]
    return _encoder.encode(done), _encoder.encode(records)


def _renamed_record(command: Command) -> Command:
    if not isinstance(command, TurnArrived | BoundReached):
        return command
    renamed = replace(command, agent=_agent_name(command.agent))
    # What prompts begin with is not in the log, so nor is where they changed.
    return replace(renamed, changed=None) if isinstance(renamed, TurnArrived) else renamed


def encode_entry(at_s: float, event: bytes, commands: list[Command]) -> bytes:
    done, records = map(msgspec.Raw, encode_answer(list(map(_renamed_record, commands))))
    return _encoder.encode({"at_s": at_s, "event": msgspec.Raw(event), "commands": done, "records": records})


def encode_beginning(config: Config, *, version: str, needs_key: bool = False) -> bytes:
    settings = without_secrets(config)
    return _encoder.encode(Beginning(version=version, settings=settings, needs_key=needs_key))


_SHELL: Final = frozenset(
    ("server", "picker", "upstream", "mcp", "shared", "stream", "history", "otel", "recording")
)


def without_secrets(config: Config) -> Config:
    """What the brain is made from, of its texts those that may be recorded (`config/privacy.py`). The shell's
    own settings are left at their defaults."""
    names, numbers = (field.name for field in fields_of(Config) if field.name not in _SHELL), count(1)
    return Config(**{name: _shown(getattr(config, name), numbers) for name in names})


def _shown(value: Any, numbers: Iterator[int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_shown(each, numbers) for each in value)
    if not isinstance(value, msgspec.Struct):
        return value
    kind = type(value)
    fields: dict[str, Any] = {}
    for field in fields_of(kind):
        if not holds_private_text(field.type):
            fields[field.name] = _shown(getattr(value, field.name), numbers)
        elif (kind, field.name) in _PLACEHOLDERS:
            fields[field.name] = _PLACEHOLDERS[kind, field.name](next(numbers), getattr(value, field.name))
    return kind(**fields)


# For what must be set, and differ; and for what goes by another name.
_PLACEHOLDERS: Final[dict[tuple[type[msgspec.Struct], str], Callable[[int, Any], Any]]] = {
    (ReplicaConfig, "url"): lambda number, _: f"http://replica-{number}",
    (KvEventsConfig, "endpoint"): lambda number, _: f"tcp://replica-{number}:1",
    **{(JwtConfig, name): lambda *_: "not-recorded" for name in ("jwks", "issuer", "audience")},
    **{(KubernetesConfig, name): lambda *_: "not-recorded" for name in ("service", "namespace")},
    (TenantConfig, "key_hashes"): lambda number, _: (f"sha256:{number:064x}",),
    (BoundConfig, "agents"): lambda _, agents: tuple(map(_agent_name, agents)),
}
