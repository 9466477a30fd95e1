"""The same as a graph of LangGraph: `with_langgraph.py MODEL QUESTION`."""

import asyncio
import sys
from typing import Any

from langchain_core.messages import AIMessageChunk, ToolMessage  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]
from langgraph.graph import END, START, MessagesState, StateGraph  # type: ignore[import-not-found]
from ready_calls import ready_calls


@tool
async def price(item: str) -> str:
    """The price of an item."""
    print(f"looking for the price of {item}", flush=True)
    await asyncio.sleep(0.1)
    return f"A {item} costs 12."


class Agent:
    def __init__(self, model: str) -> None:
        self._model = ChatOpenAI(model=model).bind_tools([price])
        self._begun: dict[str, asyncio.Task[str]] = {}

    async def think(self, state: Any) -> Any:
        answer = AIMessageChunk("")

        def add(chunk: Any) -> None:
            nonlocal answer
            answer += chunk

        async for call in ready_calls(self._model.astream(state["messages"]), on_chunk=add):
            self._begun[call.id] = asyncio.create_task(price.ainvoke(call.arguments))
        return {"messages": [answer]}

    async def act(self, state: Any) -> Any:
        results = []
        for call in state["messages"][-1].tool_calls:
            work = self._begun.pop(call["id"], None) or price.ainvoke(call["args"])
            results.append(ToolMessage(await work, tool_call_id=call["id"]))
        return {"messages": results}


async def main(model: str, question: str) -> None:
    agent = Agent(model)
    graph = StateGraph(MessagesState)
    graph.add_node("think", agent.think)
    graph.add_node("act", agent.act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", lambda state: "act" if state["messages"][-1].tool_calls else END)
    graph.add_edge("act", "think")
    done = await graph.compile().ainvoke({"messages": [("user", question)]})
    print(done["messages"][-1].text)


asyncio.run(main(*sys.argv[1:]))
