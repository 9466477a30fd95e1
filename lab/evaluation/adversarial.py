"""Traffic that is made to be mistaken: requests of strangers, as alike as attackers and templates make them.

Each kind is a recording with its truth, for `turnpike eval sessions --adversarial`. No two turns that are
treated as one session's may be of two; how many right pairs are missed is the price.

Invariants: the same seed gives the same recordings.
"""

import random
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lab.evaluation.recording import Exchange, Truth

Message = dict[str, Any]
GREETING: Final = "Hello! How can I help you today?"
BOILERPLATE: Final = (
    "I'm sorry, but as a language model I cannot browse the internet or look into your account. Is there "
    "anything else that I can help you with today?"
)
_TOOLS: Final = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
_WORDS: Final = "parser login invoice index cache token shop graph report queue widget socket".split()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


class Stage:
    """Where strangers meet: writes down who asked what, and when."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.exchanges: list[Exchange] = []

    def turn(
        self,
        who: str,
        messages: list[Message],
        text: str | None,
        *ids: str,
        agent: str = "agent/1",
        status: int = 200,
        tools: bool = True,
        after: float = 1.0,
        lasts: float = 0.5,
        attempt: int | None = None,
    ) -> list[Message]:
        """One exchange; the conversation with its answer, and with results of the calls in that."""
        self.now += after
        answer: Message = {"role": "assistant", "content": text}
        if ids:
            function = {"name": "bash", "arguments": "{}"}
            answer["tool_calls"] = [{"id": known, "type": "function", "function": function} for known in ids]
        lines = {"user-agent": agent}
        if attempt is not None:
            lines["x-stainless-retry-count"] = str(attempt)
        self.exchanges.append(
            Exchange(
                t=self.now,
                t_end=self.now + lasts,
                method="POST",
                path="/v1/chat/completions",
                truth=Truth(client="adversarial", session=who),
                headers=lines,
                body={"model": "m", "messages": messages, **({"tools": _TOOLS} if tools else {})},
                status=status,
                response=answer if status < 400 else None,
                finish="stop" if status < 400 else None,
            )
        )
        results = [{"role": "tool", "tool_call_id": known, "content": f"ok {self.word()}"} for known in ids]
        return [*messages, answer, *results]

    def drawn(self) -> str:
        return f"call_{self.rng.getrandbits(96):024x}"

    def word(self) -> str:
        return self.rng.choice(_WORDS)

    def sentence(self) -> str:
        """Long, and nobody else says it."""
        return " ".join(self.word() for _ in range(12)) + f" {self.rng.getrandbits(40):x}"

    def later(self, gap_s: float) -> None:
        self.now += gap_s


def greetings(stage: Stage) -> None:
    """Equal openings and equal answers, short and long; some did not even open here."""
    for opening, answer in (("hi", GREETING), ("Where is my parcel?", BOILERPLATE)):
        told = {}
        for at in range(6):
            who = f"{opening}-{at}"
            told[who] = stage.turn(
                who, [user(opening)], answer, tools=False, after=stage.rng.uniform(0.01, 5)
            )
        for who, messages in told.items():
            stage.turn(who, [*messages, user(f"I ask for {who}")], stage.sentence(), tools=False)
        for at in range(4):
            history = [
                user("open chat"),
                {"role": "assistant", "content": answer},
                user(f"Case {at} {opening}"),
            ]
            stage.turn(
                f"{opening}-elsewhere-{at}", history, BOILERPLATE, tools=at % 2 == 0, agent=f"a/{at % 2}"
            )
        stage.later(1500)


def known_openings(stage: Stage) -> None:
    """Who did not open here continues the only conversation that did so."""
    for at, answer in enumerate((GREETING, "ok", "Yes.", None)):
        stage.turn(f"own-{at}", [user(f"hello {at}")], answer, tools=False)
        history = [user(f"hello {at}"), {"role": "assistant", "content": answer}, user("and now this")]
        stage.turn(f"other-{at}", history, stage.sentence(), tools=False)


def templates(stage: Stage) -> None:
    """One template with a slot; what is said next holds the short answer."""
    for at in range(12):
        slot = stage.word() if at % 3 else "shop"
        first = stage.turn(
            f"slot-{at}",
            [user(f"{'Judge the text below. ' * 30}\n{slot}\nAnswer Yes or No.")],
            "Yes.",
            tools=False,
        )
        stage.turn(f"slot-{at}", [*first, user("Why do you say so?")], f"Because of {slot}.", tools=False)


def counters(stage: Stage) -> None:
    """Backends that count: `functions.bash:0`, `call_0`; equal tasks, other tasks, and after an hour."""
    for form in ("functions.bash:{}", "call_{}", "bash_{}", "toolu-{:04}", "functions.getV2Info:{}"):
        only = stage.turn(f"{form}-only", [user("The only task")], "I look.", form.format(7))
        stage.turn(f"{form}-came", [user("Elsewhere"), *only[1:]], "Hm.")
        history = {f"{form}-{at}": [user(f"Fix the {stage.word()} {at // 2}")] for at in range(6)}
        for step in range(3):
            for who, messages in history.items():
                history[who] = stage.turn(who, messages, None if step else "I look.", form.format(step))
        stage.later(3700)
        stranger = [user("Another task"), *history[f"{form}-0"][1:3]]
        fresh = stage.turn(f"{form}-fresh", [user("Fresh task")], "I look.", form.format(0))
        stage.turn(f"{form}-stranger", stranger, "Hm.", form.format(1))
        stage.turn(f"{form}-fresh", fresh, "Done.")
        mixed = [*stranger, {"role": "tool", "tool_call_id": stage.drawn(), "content": "x"}]
        stage.turn(f"{form}-mixed", mixed, "Hm.")


def replays(stage: Stage) -> None:
    """A transcript is played again: over, or while it runs; by the same software, or by another."""
    for agent in ("agent/1", "other/2"):
        for is_over in (True, False):
            owner, thief = f"owner-{agent}-{is_over}", f"thief-{agent}-{is_over}"
            messages: list[Message] = [user(f"Repair {stage.sentence()}")]
            steps = [messages]
            for _ in range(4):
                messages = stage.turn(owner, messages, stage.sentence(), stage.drawn())
                steps.append(messages)
            if is_over:
                stage.turn(owner, messages, stage.sentence())
            played = steps if is_over else steps[:-1]
            for history in played:
                stage.turn(thief, history, stage.sentence(), stage.drawn(), agent=agent, after=0.2)
            if not is_over:
                messages = stage.turn(owner, messages, stage.sentence(), stage.drawn())
                stage.turn(owner, messages, stage.sentence())


def early_replays(stage: Stage) -> None:
    """Other software is faster than the owner; the owner's own next turn is not taken for the thief's."""
    messages: list[Message] = [user(f"Repair {stage.sentence()}")]
    for _ in range(5):
        messages = stage.turn("owner", messages, stage.sentence(), stage.drawn())
        stage.turn("thief", messages, stage.sentence(), stage.drawn(), agent="other/2", after=0.1)


def twins(stage: Stage) -> None:
    """Equal programs with equal questions at the same time: with ids, without, and with equal answers."""
    for has_ids in (True, False):
        for are_equal in (True, False):
            names = [f"twin-{has_ids}-{are_equal}-{at}" for at in range(8)]
            history = {who: [user("Solve the puzzle on the disk")] for who in names}
            for step in range(4):
                for who in names:
                    text = f"Step {step}. {BOILERPLATE}" if are_equal else stage.sentence()
                    ids = (stage.drawn(),) if has_ids else ()
                    told = stage.turn(who, history[who], text, *ids, tools=has_ids, after=0.05, lasts=0.3)
                    history[who] = told if has_ids else [*told, user("Go on")]
                stage.later(1.0)


def retries(stage: Stage) -> None:
    """One fails; others ask the very same, with and without a counted attempt."""
    for at in range(6):
        body = [user(f"What is new in {stage.word()} {at}?")]
        is_counted = at % 2 == 0
        stage.turn(f"failed-{at}", body, None, status=503, attempt=0 if is_counted else None)
        stage.turn(f"other-{at}", body, stage.sentence(), after=0.6, attempt=1 if is_counted else None)
        stage.turn(f"third-{at}", body, stage.sentence(), after=0.4, agent="other/2")


def forks(stage: Stage) -> None:
    """Many runs go on from one shared conversation, at once and one after the other."""
    shared = stage.turn("root", [user(f"Read {stage.sentence()}")], stage.sentence(), stage.drawn())
    begun = {}
    stage.later(1)
    for at in range(6):
        who = "root" if at == 0 else f"fork-{at}"
        begun[who] = stage.turn(
            who, [*shared, user(f"Now do number {at}")], stage.sentence(), stage.drawn(), after=0.1
        )
    for who, messages in begun.items():
        stage.turn(who, messages, stage.sentence())


KINDS: Final[dict[str, Callable[[Stage], None]]] = {
    kind.__name__: kind
    for kind in (
        greetings, known_openings, templates, counters, replays, early_replays, twins, retries, forks,
    )
}  # fmt: skip


def stage_kind(kind: str, *, seed: int = 0) -> list[Exchange]:
    """The recording of one kind."""
    stage = Stage(random.Random(f"{kind} {seed}"))  # noqa: S311 - no secret
    KINDS[kind](stage)
    return [
        msgspec.structs.replace(exchange, truth=_named(exchange.truth, kind)) for exchange in stage.exchanges
    ]


def _named(truth: Truth, kind: str) -> Truth:
    return Truth(client=kind, session=truth.session)
