"""One LLM call of a workload, sent to a real server and watched.

It is a streamed `/v1/completions` with the prompt as token ids and an exact number of tokens to generate,
which vLLM does. The session is stated, as a client of the gateway may do.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

_MS: float = 1e3


class Question(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    prompt: list[int]
    output_tokens: int
    is_final: bool


class Reply(msgspec.Struct, kw_only=True):
    """Times are the loop's."""

    first_token_s: float
    end_s: float
    token_ids: list[int]
    """Of the answer, if the server names them."""
    cached_tokens: int
    output_tokens: int
    replica: str
    """As the gateway calls it; empty if nobody says so."""
    queued_s: float
    """In the gateway."""


class TurnedAwayError(Exception):
    """Not now; or, with a `reason`, never."""

    def __init__(self, retry_after_s: float | None, reason: str | None = None) -> None:
        super().__init__(reason or "come back later")
        self.retry_after_s = retry_after_s
        self.is_for_good = reason is not None


class Endpoint:
    def __init__(self, client: aiohttp.ClientSession, url: str, model: str, key: str | None = None) -> None:
        """`url`: without `/v1`."""
        self._client = client
        self._url = f"{url.rstrip('/')}/v1/completions"
        self._model = model
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}

    async def ask(self, question: Question) -> Reply:
        """Raises TurnedAwayError."""
        headers = {**self._headers, "x-turnpike-session": question.session}
        if question.is_final:
            headers["x-turnpike-final"] = "true"
        try:
            async with self._client.post(self._url, json=self._body(question), headers=headers) as response:
                if response.status != 200:
                    raise await _refusal(response)
                return await _watch(response)
        except (aiohttp.ClientError, TimeoutError):
            raise TurnedAwayError(None) from None

    def _body(self, question: Question) -> dict[str, Any]:
        return {
            "model": self._model,
            "prompt": question.prompt,
            "max_tokens": question.output_tokens,
            "min_tokens": question.output_tokens,
            "ignore_eos": True,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }


async def _refusal(response: aiohttp.ClientResponse) -> TurnedAwayError:
    said = await response.text()
    if response.status in (408, 409, 429) or response.status >= 500:  # those that SDKs ask again after
        try:
            return TurnedAwayError(float(response.headers.get("retry-after", "")))
        except ValueError:
            return TurnedAwayError(None)
    return TurnedAwayError(None, f"the server answered {response.status}: {said[:500]}")


async def _watch(response: aiohttp.ClientResponse) -> Reply:
    clock = asyncio.get_running_loop().time
    first_s: float | None = None
    tokens: list[int] = []
    usage: dict[str, Any] = {}
    async for event in _events(response):
        if first_s is None and event.get("choices"):
            first_s = clock()
        for choice in event.get("choices") or ():
            tokens += choice.get("token_ids") or ()
        usage = event.get("usage") or usage
    if first_s is None:
        raise TurnedAwayError(None)
    details = usage.get("prompt_tokens_details") or {}
    return Reply(
        first_token_s=first_s,
        end_s=clock(),
        token_ids=tokens,
        cached_tokens=details.get("cached_tokens") or 0,
        output_tokens=usage.get("completion_tokens") or len(tokens),
        replica=response.headers.get("x-turnpike-replica", ""),
        queued_s=float(response.headers.get("x-turnpike-queue-ms", 0.0)) / _MS,
    )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            yield msgspec.json.decode(line[6:])
