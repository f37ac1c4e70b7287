"""A server that refuses a request in which the data of its own earlier replies are missing.

It answers each question with calls of a tool, and their results with text. Each kind behaves as the
provider that it is named after is known to.
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
    """Return the fields that the reply of this number has, and that have to come back with it."""
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
    """Return the `extra_content` of a call: of several at once, Gemini signs the first."""
    if kind != "gemini" or call:
        return None
    return {"google": {"thought_signature": f"sig {number} é\U0001f600", "b": 1.50, "a": []}}


class StrictServer:
    """Serves a `kind`; "plain" refuses the data of all others. Bodies are kept in `requests`.

    With `fails`, it is unavailable at the first attempt of each request.
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
            # As text, so that neither the order of fields nor a number may differ.
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
            if isinstance(value, dict):  # Gemini marks thoughts, and signs at the end
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
            if self.kind == "gemini":  # its calls come whole, all with the same index
                first["function"] = {"name": "add", "arguments": "".join(pieces)}
                said.append(chunk({"tool_calls": [{"index": 0, **first}]}))
                continue
            rest = [{"index": place, "function": {"arguments": each}} for each in pieces]
            said += [chunk({"tool_calls": [each]}) for each in ({"index": place, **first}, *rest)]
        return [*said, chunk(finish="tool_calls"), *self._end()]

    def _end(self) -> list[bytes]:
        spent = {"prompt_tokens": 5, "completion_tokens": 7}
        return [event({"choices": [], "usage": spent}), DONE]
