"""What is learned of sessions: of one agent type, and of all types of one owner together.

While little is known of a type, it is expected to be like the owner's other types. Nothing falls back on what
another owner's sessions taught.

Invariants: at most `max_types` types are remembered; beyond it whoever has most of them loses its longest
unseen first; an owner is remembered exactly as long as one of its types is.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from gateway.domain.ids import NOBODYS, TenantId
from gateway.domain.tenant_lru import TenantLru

V = TypeVar("V")


class AgentKey(NamedTuple):
    """Under which it is kept what a session teaches."""

    owner: TenantId = NOBODYS
    """Its tenant; `NOBODYS` if all tenants share what they teach."""
    agent_type: int = 0
    """Hash of the prompt's skeleton and the tools (`gateway/wire/agent_skeleton.py`); 0 if not known."""
    client: int = 0
    """Hash of its software's name."""
    is_child: bool = False
    """It works for another conversation of its session."""

    @property
    def family(self) -> tuple[TenantId, int, bool]:
        return self.owner, self.client, self.is_child


UNKNOWN_AGENT: Final = AgentKey()


class ByAgent(Generic[V]):
    def __init__(self, new: Callable[[], V], max_types: int) -> None:
        """`new`: something that has learned nothing yet. It must allow weak references."""
        self._new = new
        self._types: TenantLru[TenantId, AgentKey, tuple[V, V]] = TenantLru(max_types)
        self._overall: WeakValueDictionary[TenantId, V] = WeakValueDictionary()
        """By owner; each of its types keeps it alive."""
        self._nothing = new()
        """Is never taught."""

    def __len__(self) -> int:
        return len(self._types)

    def of(self, agent: AgentKey) -> tuple[V, V]:
        owner = agent.owner
        known = self._types.get(owner, agent)
        if known is None:
            overall = self._overall.get(owner)
            if overall is None:
                overall = self._overall[owner] = self._new()
            known = (self._new(), overall)
            self._types.put(owner, agent, known)
        return known

    def known(self, agent: AgentKey) -> tuple[V, V]:
        """The same to read, not to teach: of a type of which nothing is known, what is known of its owner's
        types twice. It costs no memory."""
        found = self._types.get(agent.owner, agent)
        if found is None:
            overall = self._overall.get(agent.owner, self._nothing)
            found = (overall, overall)
        return found
