"""A server that refuses a request without the provider data of its earlier replies.

It answers each question with tool calls, and their results with text. Each kind behaves like the
provider it is named after.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from support.aiohttp_server import serve_app
from support.scripted_server import DONE, chunk, event

__all__ = ["KINDS", "StrictServer"]

KINDS = ("deepseek", "gemini", "openrouter")
_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "provider_items", "extra_content")


def _made(kind: str, number: int) -> dict[str, Any]:
    """Return the fields of reply `number` that the client must send back with it."""
    thought = f"Thought {number}: 考える 😀 "
    match kind:
        case "deepseek":
            return {"reasoning_content": thought}
        case "openrouter":
            signed = {"type": "reasoning.encrypted", "data": f"{number}==", "order": {"z": 1.10}}
            plain = {"type": "reasoning.text", "text": thought, "id": 12345678901234567890}
            return {"reasoning": thought, "reasoning_details": [plain, signed | {"a": None}]}
        case "gemini":
            return {"extra_content": {"google": {"thought_signature": f"text {number}", "b": 1.50}}}
        case _:
            return {}


def _signature(kind: str, number: int, call: int) -> dict[str, Any] | None:
    """Return the `extra_content` of a call; Gemini signs only the first call of a reply."""
    if kind != "gemini" or call:
        return None
    return {"google": {"thought_signature": f"sig {number} é\U0001f600", "b": 1.50, "a": []}}


class StrictServer:
    """A server of one `kind`; "plain" refuses the data of all kinds. `requests` are the bodies.

    With `fails`, it answers the first attempt of each request with status 503.
    """

    def __init__(self, kind: str, *, fails: bool = False) -> None:
        self.kind = kind
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[str] = []
        self._fails = fails
        self._tried: set[str] = set()
        self._stack = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> StrictServer:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        self.url = await self._stack.enter_async_context(serve_app(app)) + "/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        body = json.loads(text)
        if self._fails and text not in self._tried:
            self._tried.add(text)
            return web.json_response({"error": {"message": "busy"}}, status=503)
        self.requests.append(body)
        replies = [each for each in body["messages"] if each["role"] == "assistant"]
        for number, message in enumerate(replies):
            if why := self._fault(number, message):
                self.refusals.append(why)
                return web.json_response({"error": {"message": why}}, status=400)
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for each in self._chunks(len(replies), body["messages"][-1]["role"] == "tool"):
            await response.write(each)
        return response

    def _fault(self, number: int, message: dict[str, Any]) -> str | None:
        wanted = _made(self.kind, number)
        for name in _FIELDS:
            # Compare texts, so that the order of fields and the form of numbers count.
            if json.dumps(message.get(name)) != json.dumps(wanted.get(name)):
                return f"{name} of reply {number}: {message.get(name)!r}, not {wanted.get(name)!r}"
        for place, call in enumerate(message.get("tool_calls", ())):
            signed = _signature(self.kind, number, place)
            if json.dumps(call.get("extra_content")) != json.dumps(signed):
                return f"a call of reply {number} is missing its thought_signature: {call}"
            if not call.keys() <= {"id", "type", "function", "extra_content"}:
                return f"a call has {call.keys()}"
        return None

    def _chunks(self, number: int, answered: bool) -> list[bytes]:
        said = [chunk({"role": "assistant", "content": "", "reasoning_content": None})]
        made = _made(self.kind, number)
        for name, value in made.items():
            if isinstance(value, dict):  # Gemini marks thoughts, and sends the signature last
                said += [chunk({"content": "", name: {"google": {"thought": True}}})]
                said += [chunk({"content": "", name: value})]
                continue
            half = len(value) // 2
            said += [chunk({name: value[:half]}), chunk({name: value[half:]})]
        if answered:
            said += [chunk({"content": "Answer "}), chunk({"content": f"{number}."})]
            return [*said, chunk(finish="stop"), *self._end()]
        for place in range(2):
            function = {"name": "add", "arguments": ""}
            first = {"id": f"call_{number}_{place}", "type": "function", "function": function}
            if signed := _signature(self.kind, number, place):
                first["extra_content"] = signed
            pieces = [f'{{"a": {number},', f' "b": {place}}}']
            if self.kind == "gemini":  # it sends complete calls, all with the same index
                first["function"] = {"name": "add", "arguments": "".join(pieces)}
                said.append(chunk({"tool_calls": [{"index": 0, **first}]}))
                continue
            rest = [{"index": place, "function": {"arguments": each}} for each in pieces]
            said += [chunk({"tool_calls": [each]}) for each in ({"index": place, **first}, *rest)]
        return [*said, chunk(finish="tool_calls"), *self._end()]

    def _end(self) -> list[bytes]:
        spent = {"prompt_tokens": 5, "completion_tokens": 7}
        return [event({"choices": [], "usage": spent}), DONE]
