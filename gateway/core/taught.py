"""What gateways teach one another: ours is noted where it is learned, theirs goes to the same learners.

Invariants: what another gateway saw is learned once, and not told on; a lesson about a pool or a replica that
is none of ours is passed over; what is learned of one owner's agents is read for that owner alone.
"""

from collections.abc import Sequence

from gateway.admission.session_admission import SessionAdmission
from gateway.core.fleet import Fleet
from gateway.core.forecasts import Forecasts
from gateway.domain.lessons import (
    Notes,
    Owned,
    SessionWas,
    Silence,
    StepFollowed,
    StepTaken,
    ToolRan,
    TurnMade,
    TurnTook,
)
from gateway.workflow.predictor import Predictor


class Taught:
    def __init__(
        self,
        notes: Notes | None,
        fleet: Fleet,
        predictor: Predictor,
        admission: SessionAdmission,
        forecasts: Forecasts,
    ) -> None:
        """`notes`: where ours are; None if there are no other gateways."""
        self.notes = notes
        self._fleet = fleet
        self._predictor = predictor
        self._admission = admission
        self._forecasts = forecasts

    def learn(self, lessons: Sequence[Owned], *, now: float) -> None:
        """What other gateways saw."""
        if self.notes is not None:
            self.notes.is_muted = True
        try:
            for owner, lesson in lessons:
                match lesson:
                    case StepTaken() | StepFollowed() | ToolRan():
                        self._predictor.learn(owner, lesson)
                    case TurnMade() | SessionWas() | Silence():
                        self._admission.learn(owner, lesson)
                    case TurnTook():
                        if self._fleet.get(lesson.replica) is not None:
                            self._forecasts.learn(lesson, now=now)
        finally:
            if self.notes is not None:
                self.notes.is_muted = False
