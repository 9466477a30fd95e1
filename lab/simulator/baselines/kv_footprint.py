"""A static share of the KV cache: sessions enter while what they need fits.

Source: none; the unit is MARS's (§4.2: the KV that a queued session requires), the share is set by hand.

Deviations: what a session needs is what it holds now, by the prompts and answers that were seen; or, in
hindsight (`footprint-peak`), its longest context. It is known when a session ends.

Invariants: nobody enters where the sessions would need more than `f` of the KV, unless there is none yet;
with their peaks that stays so; sessions enter in order of arrival.
"""

from lab.simulator.baselines.plan import Knob, Plan, Recipe, Values
from lab.simulator.baselines.router import Member, ReplicaBook
from lab.workload.trace.format import Session


class KvFootprint:
    def __init__(self, f: float, *, knows_peaks: bool) -> None:
        self._f = f
        self._knows_peaks = knows_peaks
        self._peaks: dict[str, int] = {}
        """Of sessions that nobody has asked for yet."""

    def foresee(self, session: Session) -> None:
        self._peaks[session.id] = session.peak_tokens

    def may_enter(self, member: Member, book: ReplicaBook) -> bool:
        held = sum(self._needs(other) for other in book.members.values())
        return not book.members or held + self._needs(member) <= self._f * book.kv_tokens

    def may_run(self, book: ReplicaBook) -> bool:
        return True

    def _needs(self, member: Member) -> int:
        if not self._knows_peaks:
            return member.tokens
        if member.peak_tokens is None:
            member.peak_tokens = self._peaks.pop(member.name)
        return member.peak_tokens


def _now(plan: Plan, values: Values) -> Plan:
    return plan.with_window(KvFootprint(float(values["f"]), knows_peaks=False))


def _peak(plan: Plan, values: Values) -> Plan:
    window = KvFootprint(float(values["f"]), knows_peaks=True)
    return plan.with_window(window, window.foresee)


_SHARE = Knob(
    name="f", default=0.9, sweep=(0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5), meaning="share of the KV cache"
)

FOOTPRINT = Recipe(
    name="footprint",
    summary="sessions enter while what sessions hold now fits a share of the KV cache",
    source="by hand; unit: MARS",
    apply=_now,
    knobs=(_SHARE,),
)
FOOTPRINT_PEAK = Recipe(
    name="footprint-peak",
    summary="the same with what they will hold at their longest",
    source="by hand; unit: MARS",
    apply=_peak,
    knobs=(_SHARE,),
    is_clairvoyant=True,
)
