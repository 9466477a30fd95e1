"""How far conversations have come: steps, ends that are supposed, taken back and certain, and what is
predicted."""

from typing import Any

import msgspec
import pytest

from gateway.domain.decision import Edge, SessionRef, SessionSource
from gateway.domain.ids import SessionId, ThreadId
from gateway.domain.request import (
    Answer,
    AssistantBlock,
    ExplicitId,
    NewItems,
    Protocol,
    RequestFacts,
    ToolCall,
    ToolCallStyle,
    Transcript,
    Usage,
    Work,
)
from gateway.workflow.aeg.graph import END, Step
from gateway.workflow.aeg.graphs import Tier
from gateway.workflow.conversations import Conversations, ConversationsConfig
from tests.tool_probe.test_text_calls import Said
from tests.tool_probe.test_text_calls import answer as text_answer


class World:
    def __init__(self, **settings: Any) -> None:
        self.known = Conversations(msgspec.convert(settings, ConversationsConfig))
        self.now = 0.0

    def turn(
        self, session: str, *tools: str, edge: Edge = Edge.CONTINUES, gap_s: float = 1.0, **more: Any
    ) -> Any:
        self.now += gap_s
        known, found = ref(session, edge), facts(**more)
        self.known.arrived(known, found, now=self.now)
        self.now += 1.0
        return self.known.answered(known, found, answer(*tools), now=self.now)

    def task(self, session: str, *steps: str) -> Any:
        pause: Any = None
        for tools in steps:
            pause = self.turn(session, *tools.split())
        return pause


def ref(session: str, edge: Edge = Edge.CONTINUES) -> SessionRef:
    return SessionRef(
        session=SessionId(session),
        source=SessionSource.CALL_ID,
        confidence=1.0,
        thread=ThreadId(f"{session}.1"),
        edge=edge,
    )


def facts(tool_count: int = 3, looks: tuple[int, ...] = (), is_final: bool = False) -> RequestFacts:
    explicit = ExplicitId(schema="x", session="y", final=True) if is_final else None
    return RequestFacts(
        protocol=Protocol.CHAT,
        work=Work.GENERATE,
        tool_count=tool_count,
        body_bytes=4000,
        explicit=explicit,
        transcript=Transcript(agent_type=7, new=NewItems(100, looks)),
    )


def answer(*tools: str) -> Answer:
    calls = tuple(ToolCall(f"c{number}", name) for number, name in enumerate(tools))
    return Answer(
        status=200, tool_calls=calls, has_terminal=True, usage=Usage(prompt_tokens=100, output_tokens=10)
    )


def thread(world: World, session: str) -> Any:
    return world.known.thread(ThreadId(f"{session}.1"))


def goes_on(world: World, session: str) -> float:
    known = thread(world, session)
    return behind(world, known, known.step)


def behind(world: World, known: Any, step: Step) -> float:
    return world.known.graphs.of(known.agent).expected_return(step).returns


def is_known(world: World, session: str) -> bool:
    return world.known.graphs.tier(world.known.graphs.of(thread(world, session).agent)) is Tier.INFERRED


def tasks(world: World, session: str) -> int:
    return world.known.graphs.of(thread(world, session).agent).tasks


def ends(world: World, session: str) -> list[int]:
    graph = world.known.graphs.of(thread(world, session).agent)
    return [start for start, to, _, _ in graph.edges() if to == END]


def test_little_is_said_before_enough_was_seen():
    world = World()
    pause = world.turn("s", "read")
    assert pause.tier is Tier.UNKNOWN and pause.tools == ("read",)
    assert pause.ends == pytest.approx(0.05) and pause.pause.lengths is None


def test_a_plan_is_predicted_and_its_end():
    world = World(types={"min_steps": 50})
    for number in range(40):
        world.task(f"s{number}", "read", "edit", "test", "")
        world.now += 100.0
    middle = world.task("t", "read", "edit")
    assert middle.tier is Tier.INFERRED and middle.next == ("test",)
    assert middle.ends < 0.1 and middle.confidence > 0.85
    assert middle.pause.quantile_s(0.5) == pytest.approx(1.0, rel=0.3)
    last = world.task("t", "test", "")
    assert last.next is None and last.ends > 0.8 and last.confidence == last.ends


def test_silence_is_taken_for_an_end_until_it_goes_on():
    world = World(gone_after_s=300.0)
    world.turn("s", "read")
    world.turn("s")
    before = goes_on(world, "s")
    world.turn("other", gap_s=0.5)
    assert goes_on(world, "s") == before
    world.turn("other", gap_s=2.0)
    supposed = thread(world, "s")
    assert supposed.is_supposed_over and not supposed.is_over and goes_on(world, "s") < before
    world.turn("s", "read")
    assert not supposed.is_supposed_over
    assert behind(world, supposed, Step()) > before


def test_tools_are_waited_for_as_long_as_they_take():
    world = World()
    for number in range(20):
        world.task(f"s{number}", "build")
        world.turn(f"s{number}", "read", gap_s=80.0)
    world.turn("s", "build")
    world.turn("other", "read", gap_s=60.0)
    assert not thread(world, "s").is_supposed_over
    world.turn("other", "read", gap_s=60.0)
    assert thread(world, "s").is_supposed_over


def test_a_long_silence_ends_a_task_and_coming_back_undoes_it():
    world = World(gone_after_s=300.0, types={"min_steps": 1000, "min_tasks": 1})
    world.turn("s", "read")
    known = thread(world, "s")
    for gap_s in (70.0, 400.0):
        assert tasks(world, "s") == 0 and not is_known(world, "s")
        world.turn("other", "read", gap_s=gap_s)
    assert known.is_over and tasks(world, "s") == 1 and is_known(world, "s")
    world.turn("s", "read")
    assert not known.is_over and tasks(world, "s") == 0 and ends(world, "s") == []
    assert not is_known(world, "s")


def test_what_begins_anew_under_an_id_takes_the_place_of_what_rests_there():
    """Its client compacted, or cleared; a conversation whose tools run is not over."""
    world = World()
    for name, tools, is_over in ("s.2", ("read",), False), ("s.3", (), True):
        world.turn("s", *tools, edge=Edge.OPENS)
        anew = msgspec.structs.replace(ref("s", Edge.OPENS), thread=ThreadId(name))
        world.known.arrived(anew, facts(), now=world.now)
        world.known.answered(anew, facts(), answer(), now=world.now)
        assert thread(world, "s").is_over is is_over
    held = world.known.held(SessionId("s"))
    assert held is not None and held.turns == 1, "of the newest, and not of what was said before"
    world.turn("s", "read")
    assert not thread(world, "s").is_over and tasks(world, "s") == 1, "it went on after all"


def test_a_step_has_one_outcome():
    """However often its next request is sent, and whatever becomes of that."""
    world = World()
    world.turn("s", "read")
    known = thread(world, "s")
    for at in range(20):
        world.known.arrived(ref("s"), facts(), now=world.now + at)
        assert world.known.answered(ref("s"), facts(), None, now=world.now + at) is None
    node = next(node for node in world.known.graphs.of(known.agent)._nodes.values())
    assert node.tools == ("read",) and node.pauses.weight == pytest.approx(1.0)
    world.known.session_over(SessionId("s"))
    assert not known.is_supposed_over
    assert behind(world, known, Step(("read",))) > 0.95


def test_a_session_that_is_over_teaches_once_and_is_forgotten():
    world = World()
    world.turn("s", "read")
    known = thread(world, "s")
    for _ in range(2):
        world.known.session_over(SessionId("s"))
    assert world.known.graphs.of(known.agent).tasks == 1 and len(world.known) == 0
    assert behind(world, known, Step(("read",))) < 0.9


def test_side_requests_are_no_steps_and_broken_answers_none_either():
    world = World()
    assert world.turn("s", edge=Edge.SERVES) is None and len(world.known) == 0
    world.known.arrived(ref("s"), facts(), now=1.0)
    assert world.known.answered(ref("s"), facts(), None, now=2.0) is None
    assert world.known.answered(ref("nobody"), facts(), answer("x"), now=2.0) is None


def title(world: World, session: str) -> None:
    """A request with another prompt, without tools, which begins the session."""
    world.now += 1.0
    known = msgspec.structs.replace(facts(tool_count=0), transcript=Transcript(agent_type=8))
    world.known.arrived(ref(session, Edge.OPENS), known, now=world.now)
    world.known.answered(ref(session, Edge.OPENS), known, answer(), now=world.now)


def test_what_opens_with_another_prompt_is_a_conversation_of_its_own():
    world = World()
    for number in range(20):
        title(world, f"s{number}")
        world.turn(f"s{number}", "read", edge=Edge.OPENS)
        world.task(f"s{number}", "")
        world.now += 100.0
    title(world, "t")
    assert thread(world, "t").agent.agent_type == 8 and goes_on(world, "t") < 0.1 and tasks(world, "t") == 20
    world.turn("t", "read", edge=Edge.OPENS)
    assert thread(world, "t").agent.agent_type == 7 and goes_on(world, "t") > 0.8
    world.known.session_over(SessionId("t"))
    assert thread(world, "t") is None


def test_the_answer_of_a_conversation_that_was_left_is_no_step_of_the_next():
    world = World()
    title(world, "s")
    first = msgspec.structs.replace(facts(tool_count=0), transcript=Transcript(agent_type=8))
    world.known.arrived(ref("s"), first, now=2.0)
    world.known.arrived(ref("s", Edge.OPENS), facts(), now=2.1)
    assert world.known.answered(ref("s"), first, answer(), now=2.2) is None
    assert thread(world, "s").is_live and thread(world, "s").step is None
    pause: Any = world.known.answered(ref("s"), facts(), answer("read"), now=2.3)
    assert pause.tools == ("read",)


def test_sub_agents_are_types_of_their_own():
    world = World()
    world.turn("s", "task")
    world.turn("child", "read", edge=Edge.SPAWNED)
    parent, child = thread(world, "s"), thread(world, "child")
    assert child.agent.is_child and not parent.agent.is_child and child.agent.family != parent.agent.family


def test_a_client_that_says_it_ends_is_believed():
    pause = World().turn("s", "finish", is_final=True)
    assert pause.tier is Tier.STATED and pause.next is None and pause.confidence == pause.ends == 1.0


def test_code_blocks_become_steps_when_they_are_run():
    world = World()
    tools = []
    for looks in ((), (1, 2), (3, 2), (4, 2)):
        known = facts(tool_count=0, looks=looks)
        world.known.arrived(ref("s"), known, now=world.now)
        said = msgspec.structs.replace(text_answer("bash", is_code=True), has_terminal=True)
        pause: Any = world.known.answered(ref("s"), known, said, now=world.now)
        tools.append(pause.tools)
        world.now += 1.0
    assert tools == [(), (), ("bash",), ("bash",)]


def test_memory_is_bounded_and_who_is_pushed_out_is_not_taken_for_ended():
    world = World(max_threads=10)
    world.turn("s", "read")
    known = thread(world, "s")
    before = behind(world, known, known.step)
    for number in range(50):
        world.turn(f"other{number}", gap_s=0.0)
    assert len(world.known) == 10 and thread(world, "s") is None
    assert behind(world, known, known.step) == before


def test_a_crowd_of_sub_agents_pushes_out_none_they_work_for():
    world = World()
    world.turn("s", "task")
    for number in range(100):
        child = msgspec.structs.replace(ref("s", Edge.SPAWNED), thread=ThreadId(f"s.{number + 2}"))
        world.known.arrived(child, facts(), now=world.now)
        world.known.answered(child, facts(), answer(), now=world.now)
    found = world.known.silence(SessionId("s"), now=world.now)
    assert found is not None and found.has_tools and thread(world, "s") is not None


def beside(session: str, number: int) -> SessionRef:
    return msgspec.structs.replace(ref(session), thread=ThreadId(f"{session}.{number}"))


def of(tokens: int, *tools: str) -> Answer:
    return msgspec.structs.replace(answer(*tools), usage=Usage(prompt_tokens=tokens, output_tokens=0))


def test_a_session_holds_its_longest_conversation_and_those_at_work():
    world, session = World(), SessionId("s")

    def turn(number: int, tokens: int, *tools: str, ends: bool = True) -> float:
        each = beside("s", number)
        world.known.arrived(each, facts(), now=world.now)
        if ends:
            world.known.answered(each, facts(), of(tokens, *tools), now=world.now)
        held = world.known.held(session)
        assert held is not None and held.turns > 0
        return held.tokens

    assert world.known.held(session) is None
    assert turn(1, 5_000, "task") == 5_000
    assert turn(2, 2_000, "bash") == 7_000, "a sub-agent whose tools run"
    assert turn(2, 2_500) == 5_000, "and that is done"
    assert turn(3, 900, "bash") == 5_900
    assert turn(1, 6_000) == 6_900, "the longest counts though it rests"
    assert turn(2, 0, ends=False) == 6_000 + 900 + 2_500, "one is under way"


def test_conversations_that_run_at_once_are_all_counted():
    world = World()
    for number in range(100):
        each = beside("s", number)
        world.known.arrived(each, facts(), now=0.0)
        world.known.answered(each, facts(), of(1_000), now=0.0)
        world.known.arrived(each, facts(), now=0.0)
    held = world.known.held(SessionId("s"))
    assert held is not None and held.tokens == 100_000
    for number in range(200):
        each = beside("t", number)
        world.known.arrived(each, facts(), now=0.0)
        world.known.answered(each, facts(), of(1_000), now=0.0)
    assert len(world.known) == 100 + 64


def test_what_did_not_begin_here_says_nothing_of_beginnings():
    world = World()
    for edge, shared in ((Edge.CONTINUES, 0.0), (Edge.FORKS, 0.0), (Edge.OPENS, 80.0)):
        known = ref(f"s {edge}", edge)
        world.known.arrived(known, facts(), now=0.0)
        said = msgspec.structs.replace(answer(), usage=Usage(prompt_tokens=100, cached_tokens=90))
        world.known.answered(known, facts(), said, now=1.0)
        found = world.known.graphs.of(thread(world, f"s {edge}").agent).shared_tokens
        assert (found > shared) is (edge is Edge.OPENS)


def test_a_young_type_borrows_from_its_family():
    world = World(types={"min_steps": 50})
    for number in range(40):
        world.task(f"s{number}", "read", "edit", "test", "")
        world.now += 100.0
    young = msgspec.structs.replace(facts(), transcript=Transcript(agent_type=8))
    world.known.arrived(ref("young"), young, now=world.now)
    pause: Any = world.known.answered(ref("young"), young, answer(), now=world.now + 1)
    assert pause.tier is Tier.INFERRED and pause.ends > 0.8 and pause.next is None


def test_how_texts_end_tells_steps_apart():
    world = World()
    for number in range(20):
        for close in (5, 6):
            name = f"s{number}.{close}"
            said = msgspec.structs.replace(answer(), utterance=Said(ToolCallStyle(close=close)))
            world.known.arrived(ref(name), facts(), now=world.now)
            world.known.answered(ref(name), facts(), said, now=world.now)
            if close == 6:
                world.turn(name, "read")
        world.now += 20.0
    known = thread(world, "s0.5")
    goodbye, question = (behind(world, known, Step((), close)) for close in (5, 6))
    assert goodbye < 0.2 and question > 0.8


def test_a_conversation_that_came_in_its_middle_is_no_opening():
    """After a restart: what engines found of it is its own context, and no prefix that sessions share."""
    world = World()
    for number in range(3):
        known = ref(f"s{number}", Edge.OPENS)
        middle = facts()
        middle = msgspec.structs.replace(
            middle,
            transcript=msgspec.structs.replace(middle.transcript, blocks=(AssistantBlock(tail=5, text=9),)),
        )
        world.known.arrived(known, middle, now=world.now)
        warm = msgspec.structs.replace(
            answer("bash"), usage=Usage(prompt_tokens=60_000, cached_tokens=59_000)
        )
        world.known.answered(known, middle, warm, now=world.now + 1.0)
    agent = thread(world, "s0").agent
    assert world.known.graphs.known(agent).shared_tokens == 0.0


def test_a_conversation_that_was_forgotten_and_comes_again_counts_once():
    world = World(max_threads=2)
    for session in ("a", *("b", "c", "a") * 3):
        world.turn(session, "bash")
    held = world.known.held(SessionId("a"))
    assert held is not None and held.tokens == 110
