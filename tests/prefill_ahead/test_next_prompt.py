"""The next prompt, as far as it is known: what clients send back, and what stands before it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.domain.ids import TenantId
from gateway.domain.request import Protocol, Work
from gateway.prefill_ahead.history_rewrite import (
    Arguments,
    EchoManner,
    NoText,
    Thought,
    echo,
    plain_manner,
    read_manner,
)
from gateway.prefill_ahead.next_prompt import Foreseen, compare, may_be_foreseen, next_prompt, read_head
from gateway.prefill_ahead.rewrite_stats import MAX_CLIENTS, Client, Echoing
from gateway.responses.content import MAX_BYTES, Kind, ResponseContent
from gateway.responses.observer import observe
from tests.wire.sent_back import CHAT, MESSAGES
from tests.wire.shapes import chat_events, encode, message_events, sse

ASKS = {"role": "user", "content": "Find é 1.50."}
SYSTEM = {"role": "system", "content": "You look."}
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


def said_in(protocol: Protocol, body: dict[str, Any]) -> ResponseContent:
    said = ResponseContent()
    observer = observe(protocol, Work.GENERATE, "application/json", None, content=said)
    observer.feed(encode(body))
    observer.answer(200)
    return said


def said_in_chat(message: dict[str, Any]) -> ResponseContent:
    return said_in(Protocol.CHAT, {"choices": [{"index": 0, "message": message}]})


def said_in_messages(blocks: list[dict[str, Any]]) -> ResponseContent:
    return said_in(Protocol.MESSAGES, {"type": "message", "content": blocks})


def body_of(*messages: Any, **fields: Any) -> bytes:
    return encode({"model": "m", "messages": messages, "tools": TOOLS, **fields})


def results(said: ResponseContent) -> list[dict[str, Any]]:
    calls = [part.id for part in said.parts if part.kind is Kind.CALL]
    return [{"role": "tool", "tool_call_id": each, "content": "found"} for each in calls]


class TestWhatWasSaid:
    @pytest.mark.parametrize("cut", [1, 7, 100_000])
    @pytest.mark.parametrize("shape", ["chat", "messages"])
    def test_a_stream_says_the_same_in_any_pieces(self, shape: str, cut: int) -> None:
        protocol, events = {
            "chat": (Protocol.CHAT, chat_events),
            "messages": (Protocol.MESSAGES, message_events),
        }[shape]
        said = ResponseContent()
        observer = observe(protocol, Work.GENERATE, "text/event-stream", None, content=said)
        data = sse(events(), named=shape == "messages")
        for at in range(0, len(data), cut):
            observer.feed(data[at : at + cut])
        observer.answer(200)
        assert said.is_whole
        message = echo(protocol, said, plain_manner(protocol))
        if shape == "chat":
            assert message["content"] == "Step é 0."
            made = [each["function"] for each in message["tool_calls"]]
            assert made == [
                {"name": "ls", "arguments": '{"path": "\\n\\n"}'},
                {"name": "cat", "arguments": "{}"},
            ]
            thoughts = [part.text for part in said.parts if part.kind is Kind.THOUGHT]
            assert thoughts == ['Hm, "finish_reason":"no".']

    def test_text_that_streams_by_is_kept_whole(self) -> None:
        """Pieces of text are found without being decoded, and thoughts between them are not lost."""
        said = ResponseContent()
        observer = observe(Protocol.CHAT, Work.GENERATE, "text/event-stream", None, content=said)
        deltas = [{"content": f"t{number} "} for number in range(30)]
        deltas[10:10] = [{"reasoning": "hm "}] * 20
        for delta in deltas:
            observer.feed(b"data: %s\n\n" % encode({"choices": [{"index": 0, "delta": delta}]}))
        observer.answer(200)
        found = {part.kind: part.text for part in said.parts}
        assert found[Kind.TEXT] == "".join(f"t{number} " for number in range(30))
        assert found[Kind.THOUGHT] == "hm " * 20

    def test_a_body_that_is_read_twice_is_said_once(self) -> None:
        said = ResponseContent()
        observer = observe(Protocol.CHAT, Work.GENERATE, "application/json", None, content=said)
        body = encode({"choices": [{"index": 0, "message": {"role": "assistant", "content": "a}"}}]})
        at = body.index(b"}")
        observer.feed(body[: at + 1])
        observer.feed(body[at + 1 :])
        observer.feed(b"\n")
        observer.answer(200)
        assert [part.text for part in said.parts] == ["a}"]

    @pytest.mark.parametrize(
        "message",
        [
            {"content": "x", "refusal": "no"},
            {"content": "x", "function_call": {"name": "f", "arguments": "{}"}},
            {"content": None, "audio": {"id": "a"}},
            {
                "content": None,
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}],
            },
            {"content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"content": None, "tool_calls": [{"id": "", "function": {"name": "f", "arguments": "{}"}}]},
            {"content": None},
            {"content": "x" * (MAX_BYTES + 1)},
        ],
    )
    def test_what_is_not_known_is_not_guessed(self, message: dict[str, Any]) -> None:
        said = said_in_chat({"role": "assistant", **message})
        assert not said.is_whole
        assert next_prompt(Protocol.CHAT, body_of(ASKS), said, EchoManner(), None) is None

    def test_blocks_that_are_not_known_are_not_guessed(self) -> None:
        assert not said_in_messages(
            [{"type": "server_tool_use", "id": "a", "name": "b", "input": {}}]
        ).is_whole


class TestHowItIsSentBack:
    @pytest.mark.parametrize("client", CHAT)
    def test_a_client_is_understood_at_once(self, client: str) -> None:
        manner = EchoManner()
        answers, sent = zip(*CHAT[client], strict=True)
        for answer, echoed in zip(answers[:2], sent[:2], strict=True):
            found = read_manner(Protocol.CHAT, said_in_chat(answer), echoed, manner)
            assert found is not None
            manner = found
        for answer, echoed in zip(answers[2:], sent[2:], strict=True):
            ours = echo(Protocol.CHAT, said_in_chat(answer), manner)
            extra = {"provider_specific_fields": {"refusal": None}} if client == "mini-swe-agent" else {}
            assert ours | extra == echoed

    @pytest.mark.parametrize("client", MESSAGES)
    def test_so_is_one_of_the_messages_api(self, client: str) -> None:
        blocks, echoed = MESSAGES[client][0]
        said = said_in_messages(blocks)
        known = plain_manner(Protocol.MESSAGES)
        manner = read_manner(Protocol.MESSAGES, said, {"role": "assistant", "content": echoed}, known)
        assert manner is not None
        ours = [dict(each) for each in echo(Protocol.MESSAGES, said, manner)["content"]]
        assert ours == [{k: v for k, v in each.items() if k != "cache_control"} for each in echoed]

    def test_what_does_not_show_stays_as_it_was_known(self) -> None:
        known = EchoManner(
            thought=Thought.REASONING, no_text=NoText.ABSENT, arguments=Arguments.SPACED, is_stripped=True
        )
        said = said_in_chat({"role": "assistant", "content": "Done."})
        assert read_manner(Protocol.CHAT, said, {"role": "assistant", "content": "Done."}, known) == known

    @pytest.mark.parametrize(
        "echoed",
        [
            {"content": "Other words."},
            {"content": None},
            {"content": 7},
            {"content": [7, {"type": "text"}]},
            {"content": "Step.", "tool_calls": "none"},
            {"content": "Step.", "tool_calls": [7, {"function": 7}, {"function": {"arguments": 7}}]},
            {},
        ],
    )
    def test_of_what_nobody_knows_there_is_no_manner(self, echoed: dict[str, Any]) -> None:
        said = said_in_chat(CHAT["langchain"][2][0])
        assert read_manner(Protocol.CHAT, said, {"role": "assistant", **echoed}, EchoManner()) is None

    def test_arguments_that_are_no_json_go_back_as_they_came(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{broken"}}
        said = said_in_chat({"role": "assistant", "content": None, "tool_calls": [call]})
        assert echo(Protocol.CHAT, said, EchoManner())["tool_calls"] == [call]
        compact = EchoManner(arguments=Arguments.COMPACT)
        assert next_prompt(Protocol.CHAT, body_of(ASKS), said, compact, None) is None


class TestThePrompt:
    def test_it_is_the_conversation_as_it_came_and_the_answer_behind_it(self) -> None:
        answer, echoed = CHAT["langchain"][2]
        said = said_in_chat(answer)
        asks = b'{"role":"user","content":"\\u00e9 1.50","x":12345678901234567890}'
        body = b'{"model":"m","messages":[%s],"stream":true,"n":2,"temperature":0.5}' % asks
        made = next_prompt(Protocol.CHAT, body, said, EchoManner(), None)
        assert made is not None and asks in made
        read = json.loads(made)
        assert read["messages"][1] == echoed
        assert [each["tool_call_id"] for each in read["messages"][2:]] == ["call_0", "call_1"]
        del read["messages"]
        assert read == {"model": "m", "temperature": 0.5, "max_tokens": 1, "stream": False}

    def test_the_head_is_another_agents(self) -> None:
        said = said_in_chat(CHAT["langchain"][2][0])
        own = body_of(SYSTEM, {"role": "developer", "content": "Mind."}, ASKS, tool_choice="auto", user="me")
        other = {"role": "system", "content": "You write."}
        head = read_head(body_of(other, ASKS, ASKS, model="n", tools=[], user="you"))
        assert head is not None and 0 < head.size < 200
        made = next_prompt(Protocol.CHAT, own, said, EchoManner(), head)
        assert made is not None
        read = json.loads(made)
        assert read["messages"][:2] == [other, ASKS] and len(read["messages"]) == 5
        assert (read["model"], read["tools"], read["user"]) == ("n", [], "me") and "tool_choice" not in read

    def test_so_is_that_of_the_messages_api(self) -> None:
        said = said_in_messages(MESSAGES["claude-code"][0][0])
        own = encode({"model": "m", "max_tokens": 9, "system": "You look.", "messages": [ASKS]})
        head = read_head(
            encode({"model": "m", "system": [{"type": "text", "text": "You write."}]} | {"messages": []})
        )
        made = next_prompt(Protocol.MESSAGES, own, said, plain_manner(Protocol.MESSAGES), head)
        assert made is not None
        read = json.loads(made)
        assert read["system"] == [{"type": "text", "text": "You write."}] and len(read["messages"]) == 3

    def test_without_calls_a_user_goes_on(self) -> None:
        said = said_in_chat({"role": "assistant", "content": "```bash\nls\n```"})
        made = next_prompt(Protocol.CHAT, body_of(ASKS), said, EchoManner(), None)
        assert made is not None
        assert [each["role"] for each in json.loads(made)["messages"]] == ["user", "assistant", "user"]

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"{", b"{}", b'{"messages":7}', b'{"messages":[7]}', b"\xff"]
    )
    def test_what_cannot_be_read_is_not_sent(self, body: bytes) -> None:
        said = said_in_chat(CHAT["langchain"][2][0])
        assert next_prompt(Protocol.CHAT, body, said, EchoManner(), None) is None
        assert read_head(body) is None
        assert compare(Protocol.CHAT, body, said, EchoManner(), body_of(ASKS)) is None
        assert compare(Protocol.CHAT, body_of(ASKS), said, EchoManner(), body) is None

    def test_only_of_protocols_that_say_everything_anew(self) -> None:
        assert [each.value for each in Protocol if may_be_foreseen(each)] == ["chat", "messages"]


class TestWhatBecameOfIt:
    said = said_in_chat(CHAT["langchain"][2][0])
    echoed = CHAT["langchain"][2][1]

    def found(self, *now: Any, before: tuple[Any, ...] = (SYSTEM, ASKS)) -> Foreseen | None:
        return compare(Protocol.CHAT, body_of(*before), self.said, EchoManner(), body_of(*now))

    def test_it_went_on_as_foreseen_under_any_head(self) -> None:
        for head in ([SYSTEM], [], [{"role": "system", "content": "You write."}, SYSTEM]):
            found = self.found(*head, ASKS, self.echoed, *results(self.said))
            assert found is not None and found.was_right

    def test_marks_that_move_do_not_count(self) -> None:
        marked = {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "x"}}]}
        plain = {"role": "user", "content": "Hi"}
        found = self.found(plain, self.echoed, before=(marked,))
        assert found is not None and found.was_right

    def test_a_history_that_was_edited_is_another_prompt(self) -> None:
        found = self.found({"role": "user", "content": "Short."}, self.echoed)
        assert found is not None and not found.was_right and found.manner is not None

    def test_nothing_is_known_where_the_answer_is_not(self) -> None:
        assert self.found(SYSTEM, ASKS) is None, "asked again"
        assert self.found(SYSTEM, ASKS, ASKS) is None, "without it"
        assert self.found(ASKS) is None, "compacted"


class TestWhatIsKnownOfClients:
    client = Client(TenantId("t"), Protocol.CHAT, 1, 2)

    def test_what_was_mostly_wrong_is_not_worth_it_until_it_is_right_again(self) -> None:
        known = Echoing()
        assert known.is_worth_it(self.client)
        known.refused(self.client)
        assert not known.is_worth_it(self.client)
        for _ in range(2):
            known.learn(self.client, Foreseen(True, EchoManner()))
        assert known.is_worth_it(self.client)
        for _ in range(3):
            known.learn(self.client, Foreseen(False, None))
        assert not known.is_worth_it(self.client)

    def test_an_unknown_way_leaves_the_known_one(self) -> None:
        known = Echoing()
        known.learn(self.client, Foreseen(False, EchoManner(is_parts=True)))
        known.learn(self.client, Foreseen(False, None))
        assert known.manner(self.client) == EchoManner(is_parts=True)
        assert known.manner(self.client._replace(tenant=TenantId("u"))) == EchoManner()

    def test_those_seen_last_are_remembered(self) -> None:
        known = Echoing()
        for number in range(MAX_CLIENTS + 1):
            known.refused(self.client._replace(software=number))
            known.refused(self.client)
        assert not known.is_worth_it(self.client)
        assert known.is_worth_it(self.client._replace(software=0))
        assert len(known._clients) == MAX_CLIENTS


def test_most_of_what_clients_do_is_foreseen():
    """Each plays a run; what was learned by then must foresee the next request."""
    right = followed = 0
    runs: list[tuple[Protocol, str, Callable[[Any], ResponseContent], list[Any]]] = [
        *((Protocol.CHAT, client, said_in_chat, run) for client, run in CHAT.items()),
        *((Protocol.MESSAGES, client, said_in_messages, run) for client, run in MESSAGES.items()),
    ]
    for protocol, client, read, run in runs:
        known, who = Echoing(), Client(TenantId(client), protocol, 1, 2)
        history: list[Any] = [ASKS]
        for answer, sent in run:
            said, before = read(answer), body_of(*history)
            echoed = sent if protocol is Protocol.CHAT else {"role": "assistant", "content": sent}
            history += [echoed, *results(said)]
            found = compare(protocol, before, said, known.manner(who), body_of(*history))
            assert found is not None
            known.learn(who, found)
            right, followed = right + found.was_right, followed + 1
    assert right / followed >= 0.85
