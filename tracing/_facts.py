"""What of a node is compared with another: nothing in which two runs of the same differ anyway.

Times, numbers, machines and lives are no facts. What follows from something that is compared in its
own place is none either: a result that the next request repeats, a call that a reply announces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from ..messages import Usage
from ._line import is_plain
from ._trace import Trace, TraceError, TraceNode, TraceRequest

__all__ = ["Facts", "as_key", "error_text"]


def as_key(value: object) -> str:
    """Return what two JSON values have in common if they are the same."""
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return "nested too deeply to be compared"


def error_text(error: TraceError | None, content: bool) -> str:
    """Say what something failed with, and without `content` nothing of its message."""
    if error is None:
        return ""
    said = f"{error.type}: {error.message}" if content and error.message else error.type
    said = f"{said} ({error.at})" if error.at else said
    inner = "; ".join(error_text(each, content) for each in error.of)
    return f"{said} [{inner}]" if inner else said


class Facts:
    """Tells the facts of the nodes of one trace, with `content` also of what was said."""

    def __init__(self, trace: Trace, content: bool) -> None:
        self._content = content
        self._calls: set[str] = set()
        self._results: set[str] = set()
        self._replies: set[str] = set()
        for node in trace.root.walk() if content else ():
            if node.tool:
                self._calls.add(as_key([node.tool, node.arguments]))
                self._results.add(node.result)
            for request in node.requests:
                self._replies.add((request.output or {}).get("content", ""))

    def of(self, node: TraceNode) -> dict[str, Any]:
        """Return what is compared of a node; what says nothing is left out."""
        said: dict[str, Any] = {"name": node.name, "state": node.state}
        if node.tool:
            said |= {"tool": node.tool, "size of arguments": node.call_size}
            said |= {"status": node.status, "size of result": node.result_size}
        if node.error is not None:
            said["error"] = error_text(node.error, self._content)
        if node.retried:
            said["retries"] = len(node.retried)
            said["retried after"] = [error_text(each, self._content) for _, each in node.retried]
        if node.kept:
            said["kept"] = True
        for model, used in node.usage.items():
            for field in Usage.model_fields:
                if tokens := getattr(used, field):
                    said[f"{field.replace('_', ' ')} of {model}"] = tokens
        for account, amount in node.others.items():
            said[f"charged to {account}"] = amount
        if self._content:
            said |= self._content_of(node)
        return said

    def _content_of(self, node: TraceNode) -> Iterator[tuple[str, Any]]:
        if node.tool:
            yield "arguments", node.arguments
            yield "result", node.result
        if node.reason:
            yield "reason", node.reason
        if node.text and node.text not in self._replies:
            yield "text", node.text

    def of_requests(self, node: TraceNode) -> list[dict[str, Any]]:
        """Return what is compared of each request."""
        return [self._of_request(request) for request in node.requests]

    def _of_request(self, request: TraceRequest) -> dict[str, Any]:
        said: dict[str, Any] = {"provider": request.provider, "model": request.model}
        for name, value in request.options.items():
            if self._content or is_plain((name, value)):
                said[f"option {name}"] = value
        said["messages"] = request.messages
        said["tools"] = list(request.tools)
        said["finish reason"] = request.finish_reason
        if request.error is not None:
            said["error"] = error_text(request.error, self._content)
        for name in "left", "replayed":
            if getattr(request, name):
                said[name] = True
        if self._content:
            heard = [each for each in request.input if not self._is_result(each)]
            said |= {"input": heard, "output": self._without_calls(request.output)}
        return said

    def _is_result(self, message: dict[str, Any]) -> bool:
        return message.get("role") == "tool" and message.get("content", "") in self._results

    def _without_calls(self, message: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return a reply without the calls that were made: each of these is a node of its own."""
        if not message or "tool_calls" not in message:
            return message
        rest = [each for each in message["tool_calls"] if not self._was_made(each)]
        return {**message, "tool_calls": rest}

    def _was_made(self, call: Any) -> bool:
        said = cast("dict[str, Any]", call)
        return as_key([said["name"], said["arguments"]]) in self._calls
