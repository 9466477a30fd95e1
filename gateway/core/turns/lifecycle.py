"""The life of a request, as a table.

Theory of operation. A request is *undecided* when it arrives; the brain decides at once, and it
*waits*, is *submitted* to a replica, or is *refused*; or its prompt is computed on another replica first: it
is *prefilling*, and undecided again when that has ended, in whatever way. A submitted request has had no
response head yet: its attempt may fail, and then it is undecided again. Once the head came it is *answering*
and can only finish, be cut off by the replica, or be left by its client. The last four states are final; a
request reaches exactly one of them, exactly once, whatever happens.

Any pair that is not in the table is a bug in a driver or in the brain, and raises `LifecycleError`.
"""

from gateway.domain.string_enums import Word


class State(Word):
    UNDECIDED = "undecided"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    SUBMITTED = "submitted"
    ANSWERING = "answering"
    FINISHED = "finished"
    CUT = "cut"
    LEFT = "left"
    REFUSED = "refused"


class Step(Word):
    WAIT = "wait"
    PREFILL = "prefill"
    HAND_OVER = "hand over"
    SUBMIT = "submit"
    REFUSE = "refuse"
    FAIL = "fail"
    START = "start"
    FINISH = "finish"
    CUT = "cut"
    LEAVE = "leave"


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.UNDECIDED: {
        Step.WAIT: State.WAITING,
        Step.PREFILL: State.PREFILLING,
        Step.SUBMIT: State.SUBMITTED,
        Step.REFUSE: State.REFUSED,
    },
    State.WAITING: {
        Step.WAIT: State.WAITING,  # the last replica that it waited for left; it waits for one to come back
        Step.PREFILL: State.PREFILLING,
        Step.SUBMIT: State.SUBMITTED,
        Step.REFUSE: State.REFUSED,
        Step.LEAVE: State.LEFT,
    },
    State.PREFILLING: {
        Step.HAND_OVER: State.UNDECIDED,  # submitted, waiting again, or refused, before the event ends
        Step.LEAVE: State.LEFT,
    },
    State.SUBMITTED: {
        Step.FAIL: State.UNDECIDED,  # submitted elsewhere, waiting again, or refused, before the event ends
        Step.START: State.ANSWERING,
        Step.LEAVE: State.LEFT,
    },
    State.ANSWERING: {
        Step.FINISH: State.FINISHED,
        Step.CUT: State.CUT,
        Step.LEAVE: State.LEFT,
    },
    State.FINISHED: {},
    State.CUT: {},
    State.LEFT: {},
    State.REFUSED: {},
}

FINAL_STATES = frozenset(state for state, steps in TRANSITIONS.items() if not steps)


class LifecycleError(RuntimeError):
    """A step that the table does not allow. Always a bug on our side, never a client's fault."""


def advance(state: State, step: Step) -> State:
    try:
        return TRANSITIONS[state][step]
    except KeyError:
        raise LifecycleError(f"a request that is {state.value} cannot {step.value}") from None
