"""A web application whose users allow or refuse the calls of tools, also after a restart.

    pip install "anabranch[http,local]" starlette uvicorn
    python examples/embed_approvals.py [--model openai:gpt-5-mini] [--port 8080]

Open http://127.0.0.1:8080/?user=ann in a browser. Each user has a session in the journal. End the
program while a question is open, also by kill -9, and start it again: the question is still there.
A real application takes the user from its login, not from the address.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from anabranch import (
    Agent,
    AnabranchError,
    Approvals,
    Backend,
    Commander,
    Context,
    Handler,
    connect,
    handler,
    tool,
)
from anabranch.store import Journal, NotPending
from anabranch.tools import Approval

PAGE = """\
<!doctype html>
<meta charset="utf-8">
<title>Shop</title>
<main id="messages"></main>
<p id="live"></p>
<section id="questions"></section>
<form id="form"><input id="text" autofocus> <button>Send</button></form>
<script>
const user = new URLSearchParams(location.search).get("user") ?? "guest";
const find = id => document.getElementById(id);
const post = (path, body) => fetch(path, {
  method: "POST",
  headers: {"Content-Type": "application/json"},
  body: JSON.stringify({user, ...body}),
});
const add = (parent, name, text) => {
  const node = document.createElement(name);
  node.textContent = text;
  parent.append(node);
  return node;
};
const events = new EventSource("events?user=" + encodeURIComponent(user));
events.addEventListener("text", event => { find("live").textContent += JSON.parse(event.data); });
events.addEventListener("state", event => {
  const {messages, questions} = JSON.parse(event.data);
  for (const id of ["messages", "live", "questions"]) find(id).replaceChildren();
  for (const [sender, text] of messages) add(find("messages"), "p", sender + ": " + text);
  for (const {number, text} of questions) {
    const line = add(find("questions"), "p", text + " ");
    const decide = allow => () => post("decide", {number, allow});
    add(line, "button", "Allow").onclick = decide(true);
    add(line, "button", "Refuse").onclick = decide(false);
  }
});
find("form").onsubmit = event => {
  event.preventDefault();
  post("ask", {text: find("text").value});
  find("text").value = "";
};
</script>
"""


@dataclass
class Customer:
    """The context of the calls of one user."""

    name: str


async def load_customer(name: str) -> Customer:
    """Return a customer. A real application reads them from its database."""
    return Customer(name)


@tool(approve=True, effect="keyed")
async def refund(order: str, euros: int, ctx: Context[Customer]) -> str:
    """Refund an order of the customer."""
    return f"refunded {euros} euros for order {order} to {ctx.value.name}"


class Desk:
    """The agent, its sessions, and the pages that show them."""

    def __init__(self, backend: Backend, journal: Journal, commander: Commander) -> None:
        self.journal, self.commander = journal, commander
        self.agent = Agent(
            backend,
            "You help the customers of a shop.",
            name="desk",
            tools=[refund],
            approve=Approvals(on_ask=self.show),
            journal=journal,
        )
        self.pages: defaultdict[str, set[asyncio.Queue[str | None]]] = defaultdict(set)
        self.running = Counter[str]()

    async def resume(self) -> None:
        """Resume the calls that the end of the last process has interrupted."""
        calls = await self.agent.resume_interrupted(parent=self.commander, context=load_customer)
        for user, call in calls.items():
            self.start(str(user), call)

    def start(self, user: str, turn: Awaitable[object]) -> None:
        """Start a turn of a user. It goes on if the page is closed."""
        self.running[user] += 1
        self.commander.call_handler(self.run(user, turn))

    @handler
    async def run(self, node: Handler[None], user: str, turn: Awaitable[object]) -> None:
        """Run one turn of a user, and show its end."""
        try:
            await turn
            self.publish(user, None)
        except AnabranchError as error:
            self.publish(user, f"Failed: {error}")
        finally:
            self.running[user] -= 1

    async def answer(self, user: str, question: str) -> None:
        """Answer a question, and show the text while it grows."""
        customer = await load_customer(user)
        async with self.agent.stream(question, session_id=user, context=customer) as stream:
            async for text in stream.text():
                self.publish(user, text)

    def show(self, question: Approval) -> None:
        """Show a question that a tool has just asked."""
        self.publish(str(question.session_id), None)

    async def state(self, user: str) -> dict[str, Any]:
        """Return the messages and open questions of a user."""
        if not self.running[user]:
            await self.agent.recall(user)  # from the journal, the first time
        messages = self.agent.memory.messages(user)
        questions = [
            {"number": each.number, "text": f"{each.tool}({json.dumps(each.arguments)})"}
            for each in await self.journal.approvals()
            if each.session_id == user
        ]
        return {
            "messages": [(each.sender, each.text) for each in messages if each.text],
            "questions": questions,
        }

    async def decide(self, user: str, number: int, allow: bool) -> bool:
        """Answer a question by its number in the journal, which is the same after a restart.

        Returns False if this user has no such open question.
        """
        for each in await self.journal.approvals():
            if (each.session_id, each.number) == (user, number):
                await (each.approve() if allow else each.deny("The customer refused."))
                self.publish(user, None)
                return True
        return False

    def publish(self, user: str, text: str | None) -> None:
        """Send new text to all pages of a user, or None if the messages or questions changed."""
        for page in self.pages[user]:
            page.put_nowait(text)

    async def follow(self, user: str) -> AsyncIterator[str]:
        """Yield the events of a page until it is closed."""
        page = asyncio.Queue[str | None]()
        page.put_nowait(None)
        self.pages[user].add(page)
        try:
            yield "retry: 200\n\n"
            while True:
                text = await page.get()
                event = ("state", await self.state(user)) if text is None else ("text", text)
                yield f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
        finally:
            self.pages[user].discard(page)


async def show_page(request: Request) -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(PAGE)


async def send_events(request: Request) -> StreamingResponse:
    """Stream the events of a user."""
    follow = request.state.desk.follow(request.query_params.get("user", "guest"))
    return StreamingResponse(follow, media_type="text/event-stream")


async def ask(request: Request) -> Response:
    """Start a turn."""
    desk: Desk = request.state.desk
    body = await request.json()
    desk.start(body["user"], desk.answer(body["user"], body["text"]))
    return Response(status_code=202)


async def decide(request: Request) -> Response:
    """Answer a question."""
    body = await request.json()
    try:
        found = await request.state.desk.decide(body["user"], body["number"], body["allow"])
    except NotPending:  # another process was faster
        found = False
    return Response(status_code=204) if found else Response("Already decided.", status_code=409)


def application(backend: Backend, path: str) -> Starlette:
    """Create the application. Its end stops the journal first, so that all turns resume later."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Any]]:
        async with backend, Commander() as commander, Journal(path) as journal:
            desk = Desk(backend, journal, commander)
            await desk.resume()
            yield {"desk": desk}

    routes = [
        Route("/", show_page),
        Route("/events", send_events),
        Route("/ask", ask, methods=["POST"]),
        Route("/decide", decide, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="local", help="as in anabranch.connect")
    parser.add_argument("--journal", default="approvals.db")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    try:
        app = application(connect(options.model), options.journal)
    except AnabranchError as error:
        raise SystemExit(f"{error}") from None
    print(f"open http://127.0.0.1:{options.port}/?user=ann", flush=True)
    uvicorn.run(app, port=options.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
