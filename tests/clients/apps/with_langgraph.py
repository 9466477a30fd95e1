"""The demo's task with LangGraph: `python with_langgraph.py PROTOCOL MODE MODEL PROMPT`."""

import subprocess
import sys

from langchain.agents import create_agent  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]
from langgraph.checkpoint.memory import InMemorySaver  # type: ignore[import-not-found]


@tool
def bash(command: str) -> str:
    """Runs a command in this directory."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def main(protocol: str, mode: str, model: str, prompt: str) -> None:
    chat = ChatOpenAI(model=model, streaming=mode == "streamed", use_responses_api=protocol == "responses")
    graph = create_agent(
        chat, [bash], system_prompt="You repair programs.", checkpointer=InMemorySaver()
    )  # fmt: skip
    thread = {"configurable": {"thread_id": "the-same-in-every-process"}}
    print(graph.invoke({"messages": [("user", prompt)]}, thread)["messages"][-1].text)


main(*sys.argv[1:])
