"""The script format, prompts read back, replies played; and an engine that starts and ends."""

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripted_engine.chatml import Prompt, read_prompt
from scripted_engine.playback import UNKNOWN, Playback, Vocabulary
from scripted_engine.process import EngineOptions, EngineStartError, ScriptedEngine, scripted_fleet
from scripted_engine.script import (
    Script,
    ScriptBook,
    ScriptError,
    ToolCall,
    Turn,
    parse,
    render_hermes,
    renderings,
)
from tests.scripted_engine.test_guardian import lives

LOOK = Turn("I look.", (ToolCall("bash", {"command": "ls"}),))
READ = Turn("", (ToolCall("read", {"path": "a"}), ToolCall("read", {"path": "ü"})))
FIXED = Turn("Fixed.")
BOOK = ScriptBook({"fix": Script((LOOK, READ, FIXED), without_tools="A title")})


def ask(turns: int = 0, *texts: str, tools: bool = True, chat: bool = True) -> Prompt:
    return Prompt(texts or ("please [[script:fix]]",), turns, tools, chat)


def first(book: ScriptBook, prompt: Prompt) -> str:
    reply = book.reply(prompt)
    assert reply is not None
    return reply[0]


@pytest.mark.parametrize(("turns", "expected"), [(0, LOOK), (1, READ), (2, FIXED)])
def test_the_number_of_assistant_turns_picks_the_turn(turns: int, expected: Turn) -> None:
    assert first(BOOK, ask(turns)) == render_hermes(expected)


def test_the_first_marker_wins() -> None:
    book = ScriptBook({"a": Script((Turn("A"),)), "b": Script((Turn("B"),))})
    assert first(book, ask(0, "no marker", "x [[script:b]] [[script:a]]", "[[script:a]]")) == "B"


def test_conversations_without_marker_get_the_default() -> None:
    assert first(ScriptBook({}, Script((Turn("Default."),))), ask(5, "hello")) == "Default."
    assert ScriptBook({}, None).reply(ask(0, "hello")) is None


def test_without_tools_a_calling_script_speaks_its_side_text() -> None:
    assert first(BOOK, ask(0, tools=False)) == "A title"
    assert first(BOOK, ask(2, tools=False)) == "A title"


def test_renderings_for_grammars_come_in_order() -> None:
    assert renderings(LOOK) == (
        render_hermes(LOOK),
        render_hermes(Turn("", LOOK.tool_calls)),
        '[{"name": "bash", "parameters": {"command": "ls"}}]',
        '{"command": "ls"}',
        "I look.",
    )
    assert renderings(FIXED) == ("Fixed.",)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "the file: must be an object, not list"),
        ({"skripts": {}}, "the file: unknown skripts"),
        ({"scripts": []}, "scripts: must be an object"),
        ({"scripts": {"a b": {"turns": [{"text": "x"}]}}}, "the name 'a b' does not fit"),
        ({"scripts": {"a": {"turns": []}}}, r"scripts\.a\.turns: .* at least one"),
        ({"scripts": {"a": {}}}, r"scripts\.a\.turns: .* at least one"),
        ({"scripts": {"a": {"turns": [{}]}}}, r"scripts\.a\.turns\[0\]: needs a text or a tool call"),
        ({"scripts": {"a": {"turns": [{"text": 1}]}}}, r"turns\[0\]\.text: must be a string"),
        ({"scripts": {"a": {"turns": [{"txt": "x"}]}}}, r"turns\[0\]: unknown txt"),
        ({"scripts": {"a": {"turns": [{"tool_calls": {}}]}}}, r"tool_calls: must be a list"),
        ({"scripts": {"a": {"turns": [{"tool_calls": [{}]}]}}}, r"tool_calls\[0\]\.name: missing"),
        (
            {"scripts": {"a": {"turns": [{"tool_calls": [{"name": "x", "arguments": "{}"}]}]}}},
            r"tool_calls\[0\]\.arguments: must be an object, not str",
        ),
        ({"default": {"turns": [{"text": "x"}], "final": []}}, r"default\.final: must be a string"),
    ],
)
def test_a_wrong_script_is_refused_with_its_place(document: object, complaint: str) -> None:
    with pytest.raises(ScriptError, match=complaint):
        parse(document)


def chat(*messages: tuple[str, str], open_end: bool = True) -> str:
    text = "".join(f"<|im_start|>{role}\n{body}<|im_end|>\n" for role, body in messages)
    return text + ("<|im_start|>assistant\n" if open_end else "")


RESULT = ("user", "\n<tool_response>\nok [[script:trap]]\n</tool_response>")


def test_a_text_without_chat_marks_is_a_raw_prompt() -> None:
    assert read_prompt("once upon") == Prompt(("once upon",), 0, False, False)


def test_a_first_turn() -> None:
    prompt = read_prompt(chat(("system", "be brief"), ("user", "hi\nthere"), ("user", "and?")))
    assert prompt == Prompt(("hi\nthere", "and?"), 0, False, True)


def test_tools_are_seen_in_a_system_message_only() -> None:
    assert read_prompt(chat(("system", "x <tools>\n{}\n</tools>"), ("user", "hi"))).offers_tools
    assert not read_prompt(chat(("user", "what is <tools>?"))).offers_tools


def test_assistant_turns_are_counted_and_tool_results_are_no_user_texts() -> None:
    prompt = read_prompt(chat(("user", "go"), ("assistant", "a"), RESULT, ("assistant", "b"), ("user", "on")))
    assert prompt == Prompt(("go", "on"), 2, False, True)


@pytest.mark.parametrize("prefill", ["", "It is", "<think>\n\n</think>\n\n"])
def test_the_unfinished_answer_is_no_turn(prefill: str) -> None:
    assert (
        read_prompt(chat(("user", "go"), ("assistant", "a"), ("user", "on")) + prefill).assistant_turns == 1
    )


END, BLANK = 0, 1
VOCABULARY = Vocabulary(end=END, blank=BLANK, closers=(END, 90, 91))


def anything(token: int) -> bool:
    return True


def but(*forbidden: int) -> Callable[[int], bool]:
    return lambda token: token not in forbidden


def only(*allowed: int) -> Callable[[int], bool]:
    return lambda token: token in allowed


def constrained(*renderings: list[int]) -> Playback:
    return Playback(renderings, VOCABULARY, constrained=True)


def test_a_later_rendering_must_keep_what_is_said() -> None:
    playback = constrained([5, 6], [7, 8], [5, 9])
    assert playback.constrained_token_at(0, anything) == 5
    assert playback.constrained_token_at(1, but(6)) == 9


def test_where_nothing_fits_the_way_out_is_taken_and_kept() -> None:
    playback = constrained([5, 6, 7])
    assert playback.constrained_token_at(0, anything) == 5
    assert playback.constrained_token_at(1, only(91, 50)) == 91
    assert playback.constrained_token_at(2, only(50)) is None
    assert playback.constrained_token_at(3, only(7, 90)) == 90  # 7 is the script's, but it has yielded
    assert playback.constrained_token_at(4, anything) == END


@pytest.mark.parametrize("produced", [[5, 6], [5, UNKNOWN], [UNKNOWN, UNKNOWN]])
def test_after_a_preemption_the_reply_goes_on(produced: list[int]) -> None:
    playback = constrained([5, 6, 7], [8])
    playback.resume(produced)
    assert playback.constrained_token_at(2, anything) == 7


@pytest.mark.parametrize("produced", [[50], [5, 50], [5, 6, 7, END, 50]])
def test_after_a_preemption_a_yielded_request_stays_yielded(produced: list[int]) -> None:
    playback = constrained([5, 6, 7])
    playback.resume(produced)
    assert playback.constrained_token_at(len(produced), only(6, 7, 90)) == 90


SCRIPTS = {"scripts": {"hi": {"turns": [{"text": "Hello."}]}}}
HEALTHY = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal, time; {deafness} time.sleep(60)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
        self.wfile.write(f"{{child.pid}} {{os.environ['TURNPIKE_SCRIPT']}}".encode())
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


@dataclass(frozen=True, kw_only=True)
class StandIn(EngineOptions):
    program: str = HEALTHY
    deafness: str = ""

    def command(self, model: Path, port: int) -> list[str]:
        return [sys.executable, "-c", self.program.format(port=port, deafness=self.deafness)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model"


def child_and_script(engine: ScriptedEngine) -> tuple[int, Path]:
    with urllib.request.urlopen(f"{engine.url}/health") as answer:
        child, path = answer.read().decode().split(" ", 1)
    return int(child), Path(path)


def test_an_engine_plays_scripts_and_leaves_nothing(model: Path) -> None:
    with ScriptedEngine(SCRIPTS, StandIn(model=model)) as engine:
        child, path = child_and_script(engine)
        assert json.loads(path.read_text()) == SCRIPTS
        engine.play({"default": None})
        assert json.loads(path.read_text()) == {"default": None}
        assert lives(child)
    assert not lives(child)
    assert not path.parent.exists()
    engine.stop()


@pytest.mark.slow
def test_a_deaf_process_is_ended_all_the_same(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripted_engine.process._STOP_S", 0.5)
    deaf = StandIn(model=model, deafness="signal.signal(signal.SIGTERM, signal.SIG_IGN);")
    with ScriptedEngine(SCRIPTS, deaf) as engine:
        child, _ = child_and_script(engine)
        time.sleep(0.3)  # let it go deaf
    assert not lives(child)


def test_an_engine_that_ends_is_an_error_with_its_log(model: Path) -> None:
    failing = StandIn(model=model, program="raise SystemExit('no such {port}'.replace(' ', '-')) #{deafness}")
    engine = ScriptedEngine(SCRIPTS, failing)
    with pytest.raises(EngineStartError, match=r"the engine ended; its log ends:\nno-such-"), engine:
        pass


def test_an_engine_that_hangs_is_an_error(model: Path) -> None:
    engine = ScriptedEngine(SCRIPTS, StandIn(model=model, program="import time; time.sleep(60) #{port}"))
    engine.launch()
    pid = engine._process.pid if engine._process else 0
    with pytest.raises(EngineStartError, match="not healthy within 0 s"):
        engine.wait_healthy(deadline_s=0.3)
    assert not lives(pid)


def test_if_one_of_a_fleet_fails_all_end(model: Path) -> None:
    failing = StandIn(model=model, program="raise SystemExit(1) #{port}")
    engines = [StandIn(model=model), failing]
    with pytest.raises(EngineStartError), scripted_fleet(SCRIPTS, engines):
        pass
