"""Customer service in a FastAPI application: streams, sessions, approvals, budgets, typed output.

    pip install "anabranch[http]" fastapi uvicorn
    uvicorn --app-dir examples customer_service:app

    curl -N localhost:8000/chat/ann --json '{"text": "Please refund order A-17, it cost 19 EUR."}'
    curl localhost:8000/questions
    curl localhost:8000/questions/1 --json '{"approved": true}'
    curl localhost:8000/ticket --json '{"text": "Where is my parcel?"}'

The sessions are in `service.db`. After a restart they continue, and open questions are open again.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from anabranch import Agent, AnabranchError, Commander, Context, Limits, tool
from anabranch.tools import Approvals, Decision

MODEL = os.environ.get("ANABRANCH_MODEL", "openai:gpt-5-mini")


class Question(BaseModel):
    text: str


class Ticket(BaseModel):
    topic: Literal["order", "payment", "delivery", "other"]
    is_urgent: bool


@dataclass
class Customer:
    name: str
    refunded: int = 0  # cents


customers: dict[str, Customer] = {}


def load_customer(name: str) -> Customer:
    """Return a customer. A real application reads them from its database."""
    return customers.setdefault(name, Customer(name))


@tool(approve=True)
def refund(order: str, cents: int, ctx: Context[Customer]) -> str:
    """Pay money back to the customer."""
    ctx.value.refunded += cents
    return f"{cents} cents of order {order} are on their way to {ctx.value.name}"


approvals = Approvals(timeout=3600)
clerk = Agent(
    MODEL, "You serve a shop's customers.", tools=[refund], approve=approvals, journal="service.db"
)
sorter = Agent(MODEL, "Sort the message of a customer.", output_type=Ticket)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, Any]]:
    async with Commander() as commander:
        await clerk.resume_interrupted(parent=commander, context=load_customer)
        yield {"commander": commander}


app = FastAPI(lifespan=lifespan)


@app.post("/chat/{user}")
async def chat(user: str, question: Question, request: Request) -> StreamingResponse:
    stream = clerk.stream(
        question.text,
        session_id=user,
        context=load_customer(user),
        parent=request.state.commander,
        limits=Limits(budget=20_000),
    )

    async def events() -> AsyncIterator[str]:
        try:
            async with stream:
                async for text in stream.text():
                    yield event("text", text)
                yield event("end", (await stream.answer()).usage.model_dump())
        except AnabranchError as error:
            yield event("error", str(error))

    return StreamingResponse(events(), media_type="text/event-stream")


def event(kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


@app.get("/chat/{user}")
async def history(user: str) -> list[dict[str, str]]:
    return [{"sender": each.sender, "text": each.text} for each in await clerk.recall(user)]


@app.get("/questions")
async def questions() -> list[dict[str, Any]]:
    return [
        {"number": each.number, "user": each.session_id, "call": each.call.model_dump()}
        for each in approvals.pending
    ]


@app.post("/questions/{number}")
async def decide(number: int, decision: Decision) -> bool:
    try:
        return approvals.get(number).settle(decision)
    except LookupError:
        raise HTTPException(404, "this question is not open") from None


@app.post("/ticket")
async def ticket(question: Question, request: Request) -> Ticket:
    call = sorter.call(question.text)
    answer = await request.state.commander.run(call, timeout=30, limits=Limits(budget=2_000))
    return answer.output
