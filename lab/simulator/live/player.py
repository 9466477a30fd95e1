"""Plays the sessions of a workload against a real server, by the wall clock.

Twin of `agents.py`: an agent asks, waits for the whole answer, lets the tools that it asks for run, pauses as
long as the workload says, and asks again. Unless `work` says what they do, tools sleep for as long as
they would take on a host with nothing else to do, whatever cores they ask for.

Deviations from what is simulated: the server sees no tool calls, so it takes a tool's time for a pause; and
it is told a session, but not which conversation of it is speaking.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from gateway.domain.ids import ReplicaId
from lab.simulator.driver import ClientConfig
from lab.simulator.live.endpoint import Endpoint, Question, Reply, TurnedAwayError
from lab.simulator.live.prompts import Prompts
from lab.simulator.patience import retry_after_s
from lab.simulator.results import SessionOutcome, Sink, TurnOutcome
from lab.workload.trace.format import Session, Tool, TurnRef

Work = Callable[[Tool], Awaitable[None]]
"""What a tool does, until it is done."""


async def sleep(tool: Tool) -> None:
    await asyncio.sleep(tool.duration_s)


async def play(
    sessions: Iterable[Session],
    endpoint: Endpoint,
    sink: Sink,
    *,
    client: ClientConfig | None = None,
    prompts: Prompts | None = None,
    isolated_s: Callable[[Session], float] | None = None,
    work: Work = sleep,
) -> None:
    """Until the last session is over. Times are told in seconds since the beginning.

    Raises TurnedAwayError if the server says that a request is wrong.
    """
    player = Player(endpoint, sink, client or ClientConfig(), prompts or Prompts(), isolated_s, work)
    await player.play(sessions)


class Player:
    def __init__(
        self,
        endpoint: Endpoint,
        sink: Sink,
        client: ClientConfig,
        prompts: Prompts,
        isolated_s: Callable[[Session], float] | None,
        work: Work,
    ) -> None:
        self.endpoint = endpoint
        self.sink = sink
        self.client = client
        self.prompts = prompts
        self.work = work
        self._isolated_s = isolated_s
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    def since(self, time_s: float | None = None) -> float:
        """Seconds since the beginning, of a time of the loop's."""
        return (self._loop.time() if time_s is None else time_s) - self._began_s

    async def play(self, sessions: Iterable[Session]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    await asyncio.sleep(session.arrival_s - self.since())
                    group.create_task(_Agent(session, self).run())
        except* TurnedAwayError as errors:
            raise _first(errors) from None

    def session_over(self, agent: "_Agent") -> None:
        session = agent.session
        self.prompts.forget(session.id)
        self.sink.session_done(
            SessionOutcome(
                id=session.id,
                tenant=session.tenant,
                service_class=session.service_class,
                agent_type=session.agent_type,
                arrival_s=agent.arrival_s,
                final_first_token_s=agent.final_first_token_s,
                end_s=agent.end_s,
                isolated_s=self._isolated_s(session) if self._isolated_s is not None else 0.0,
                deadline_s=session.deadline_s,
                turns=agent.turns,
                failed=agent.failed,
            )
        )


class _Agent:
    """One session."""

    def __init__(self, session: Session, player: Player) -> None:
        self.session = session
        self.arrival_s = player.since()
        self.turns = 0
        self.failed = False
        self.final_first_token_s = self.end_s = 0.0
        self._player = player
        self._live_threads = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            await self._converse(0)
        self._player.session_over(self)

    async def _converse(self, number: int) -> None:
        self._live_threads += 1
        turns = self.session.threads[number].turns
        for at, turn in enumerate(turns):
            await asyncio.sleep(turn.pause_s)
            if self.failed or not await self._ask(TurnRef(number, at)):
                break
            is_last = at == len(turns) - 1
            running = [tool for tool in turn.tools if not is_last or tool.starts_thread is not None]
            async with asyncio.TaskGroup() as tools:
                for tool in running:
                    self._begin(tool, tools, is_last=is_last)
        self._live_threads -= 1

    def _begin(self, tool: Tool, tools: asyncio.TaskGroup, *, is_last: bool) -> None:
        if tool.starts_thread is not None and (tool.is_detached or is_last):
            self._group.create_task(self._converse(tool.starts_thread))
        if not is_last:
            tools.create_task(self._run(tool))

    async def _run(self, tool: Tool) -> None:
        if tool.starts_thread is not None and not tool.is_detached:
            await self._converse(tool.starts_thread)
        await self._player.work(tool)

    async def _ask(self, ref: TurnRef) -> bool:
        """Whether it was answered, in the end."""
        player, turn = self._player, self.session.threads[ref.thread].turns[ref.turn]
        question = Question(
            session=self.session.id,
            prompt=player.prompts.prompt(self.session, ref),
            output_tokens=turn.output_tokens,
            is_final=self._is_final(ref),
        )
        asked_s = player.since()
        for refusals in range(player.client.max_retries + 1):
            sent_s = player.since()
            try:
                reply = await player.endpoint.ask(question)
            except TurnedAwayError as error:
                if error.is_for_good:
                    raise
                await asyncio.sleep(retry_after_s(refusals + 1, error.retry_after_s))
                continue
            player.prompts.answered(self.session, ref, question.prompt, reply.token_ids)
            self._answered(ref, reply, asked_s, sent_s, refusals)
            return True
        self._gave_up()
        return False

    def _is_final(self, ref: TurnRef) -> bool:
        """Whether the client knows that the run ends with this turn."""
        turns = self.session.threads[ref.thread].turns
        if ref.thread != 0 or ref.turn != len(turns) - 1 or self._live_threads > 1:
            return False
        return all(tool.starts_thread is None for tool in turns[ref.turn].tools)

    def _gave_up(self) -> None:
        if not self.failed:
            self.failed = True
            self.final_first_token_s = self.end_s = self._player.since()

    def _answered(self, ref: TurnRef, reply: Reply, asked_s: float, sent_s: float, refusals: int) -> None:
        player = self._player
        self.turns += 1
        first_token_s, end_s = player.since(reply.first_token_s), player.since(reply.end_s)
        if ref.thread == 0:
            self.final_first_token_s, self.end_s = first_token_s, end_s
        waited_s = sent_s - asked_s + reply.queued_s
        player.sink.turn_done(
            TurnOutcome(
                session=self.session.id,
                thread=ref.thread,
                turn=ref.turn,
                tenant=self.session.tenant,
                replica=ReplicaId(reply.replica),
                arrival_s=asked_s,
                waited_s=waited_s,
                began_s=asked_s + waited_s,  # what it waited in the engine cannot be told from its prefill
                first_token_s=first_token_s,
                end_s=end_s,
                prompt_tokens=self.session.threads[ref.thread].turns[ref.turn].input_tokens,
                cached_tokens=reply.cached_tokens,
                output_tokens=reply.output_tokens,
                preemptions=0,
                refusals=refusals,
            )
        )


def _first(errors: BaseExceptionGroup[TurnedAwayError]) -> TurnedAwayError:
    """Of groups within groups: a tool's, within a conversation's, within all."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TurnedAwayError)
    return error
