"""A hostile MCP server over pipes, without the SDK: `python mcp_hostile.py`, or `... endless`."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
SCHEMAS = json.loads(DATA.joinpath("hostile_schemas.json").read_text())
SLOW = {"type": "object", "properties": {"a": {"pattern": "^(a|a)*$"}}}
# The SDK refuses these tools, and the whole list with them.
REFUSED = ("a required that is none", "a required of numbers", "null")
HUGE = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}}


def listed() -> list[dict[str, Any]]:
    schemas = [schema for name, schema in SCHEMAS.items() if name not in REFUSED]
    tools = [
        {"name": f"schema{number}", "inputSchema": {**schema, "type": "object"}}
        for number, schema in enumerate([*schemas, HUGE])
    ]
    plain = {"type": "object"}
    return [
        *tools,
        {"name": "result", "inputSchema": plain, "outputSchema": SLOW},
        {"name": "endless", "inputSchema": plain},
        {"name": "long", "inputSchema": plain},
        {"name": "echo", "inputSchema": plain},
        {"name": "x" * 100_000, "description": "y" * 100_000, "inputSchema": plain},
    ]


def endless() -> None:
    """Write one line without end, until the client closes the pipe."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        sys.stdout.write("x" * 60_000)


def answer(method: str, params: Any) -> Any:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "0"},
        }
    if method == "tools/list":
        return {"tools": listed()}
    if method == "tools/call" and params["name"] == "endless":
        endless()
    if method == "tools/call" and params["name"] == "echo":
        text = " ".join([*sys.argv, *map(str, params["arguments"].values())])
        return {"content": [{"type": "text", "text": text}], "isError": True}
    if method == "tools/call" and params["name"] == "long":
        return {"content": [{"type": "text", "text": "x" * 10**7}]}
    if method == "tools/call":
        return {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}
    return None


def main() -> None:
    if "endless" in sys.argv:
        endless()
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if (result := answer(asked["method"], asked.get("params"))) is None:
            reply["error"] = {"code": -32601, "message": f"no such method {sys.argv}"}
        else:
            reply["result"] = result
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
