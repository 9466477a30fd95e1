"""Bound by class: background sessions on some replicas, what somebody waits for on the others.

Source: folklore: a fleet that keeps its fast devices for people. Affinity within each part; vLLM's priorities
by class would order nothing, as no replica runs both.

Invariants: a session's turns run on replicas of its class alone.
"""

from collections.abc import Collection, Mapping

from gateway.core import events as ev
from gateway.domain.ids import ReplicaId
from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.router import Affinity, Member, ReplicaBook, Router
from lab.simulator.errors import SimulatorError
from lab.simulator.fleet import FleetSpec


class _ByClass:
    def __init__(self, for_background: Collection[ReplicaId]) -> None:
        self.background: set[str] = set()
        """Sessions, by name."""
        self._for_background = for_background
        self._affinity = Affinity()

    def choose(self, member: Member, books: list[ReplicaBook]) -> ReplicaBook:
        is_background = member.name in self.background
        own = [book for book in books if (book.replica in self._for_background) == is_background]
        return self._affinity.choose(member, own or books)


class ClassBoundRouter(Router):
    def __init__(self, kv_tokens: Mapping[str, int], for_background: Collection[ReplicaId]) -> None:
        self._by_class = _ByClass(for_background)
        super().__init__(kv_tokens, self._by_class, None)

    def _arrived(self, event: ev.RequestArrived, *, now: float) -> None:
        super()._arrived(event, now=now)
        if event.facts.is_background:
            self._by_class.background.add(self.live[event.request].member.name)

    def _over(self, name: str) -> None:
        super()._over(name)
        self._by_class.background.discard(name)


def _class_bound(plan: Plan, values: Values) -> Plan:
    names = [name for name, _ in plan.fleet.each()]
    try:
        chosen = frozenset(names[int(number)] for number in str(values["background"]).split("."))
    except (ValueError, IndexError):
        raise SimulatorError(
            f"class-bound: background={values['background']}: numbers of replicas, joined by dots"
        ) from None

    def brain(fleet: FleetSpec) -> ClassBoundRouter:
        return ClassBoundRouter(plan.kv_tokens(fleet), chosen)

    return plan.with_brain(brain)


CLASS_BOUND = Recipe(
    name="class-bound",
    summary="background sessions on some replicas, the others for what somebody waits for",
    source="folklore",
    apply=_class_bound,
    knobs=(
        Knob(
            name="background",
            default="0",
            sweep=("0",),
            meaning="numbers of the replicas for background sessions, as in `2.3`",
        ),
    ),
)
