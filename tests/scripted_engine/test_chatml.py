"""Reading a rendered prompt back."""

import pytest

from scripted_engine.chatml import Prompt, read_prompt


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
