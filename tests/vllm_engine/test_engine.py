"""Behavior that only the real engine can show."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any, ClassVar

import pytest
from support.vllm import close_engine, engine_processes, keep_engine, kill, unfinished, vllm

from anabranch import Commander, Conversation, tool
from anabranch.backends import Retries
from anabranch.backends._vllm_engine import VLLMEngine
from anabranch.commander import ConfigurationError
from anabranch.handlers import View
from anabranch.jobs import ChatJob
from anabranch.messages import Message, Request


def ask(text: str, **options: Any) -> Request:
    """Return a request with one question."""
    return Request([Message(role="user", content=text)], options=options)


FRANCE = ask("What is the capital of France?", max_tokens=20)
LONG = ask("Count.", max_tokens=900, ignore_eos=True)


def _llm(engine: VLLMEngine) -> Any:
    assert engine.model is not None
    return engine.model.llm


class Steps:
    """The number of requests in each step of the engine's scheduler."""

    def __init__(self) -> None:
        self.running: list[int] = []
        self._waiting: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def reach(self, running: int) -> None:
        """Wait for a step with this many requests."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((running, loop, future))
        await future

    def record(self, *, scheduler_stats: Any, **_: Any) -> None:
        """Record a step; called by vLLM in the engine's thread."""
        if scheduler_stats is None:
            return
        self.running.append(scheduler_stats.num_running_reqs)
        for entry in list(self._waiting):
            running, loop, future = entry
            if running == scheduler_stats.num_running_reqs:
                self._waiting.remove(entry)
                loop.call_soon_threadsafe(future.set_result, None)


@contextmanager
def _recorded(engine: VLLMEngine) -> Iterator[Steps]:
    logger = _llm(engine)._logger_ref
    before, logger[0] = logger[0], Steps()
    try:
        yield logger[0]
    finally:
        logger[0] = before


async def test_loading_writes_nothing_to_the_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The engine logs to stderr, because stdout would disturb a chat."""
    async with asyncio.timeout(600):
        await keep_engine()
        async with vllm() as backend:
            answer = await backend.complete(FRANCE)

    assert "Paris" in (answer.content or "")
    assert capfd.readouterr().out == ""


async def test_an_abandoned_reply_leaves_the_scheduler_within_one_step(engine: VLLMEngine) -> None:
    """One of two replies is closed: after the current step the engine runs one."""
    backend = vllm()
    async with asyncio.timeout(120), backend, aclosing(backend.stream(LONG)) as stays:
        await anext(stays)
        with _recorded(engine) as steps:
            async with aclosing(backend.stream(LONG)) as leaves:
                await anext(leaves)
                await steps.reach(2)
            at_close = len(steps.running)
            await steps.reach(1)

    assert steps.running[at_close:].count(2) <= 1


async def test_cancelling_a_task_aborts_its_request(engine: VLLMEngine) -> None:
    """The task ends only when the engine has aborted it."""
    backend = vllm()
    async with asyncio.timeout(120), backend:
        with _recorded(engine) as steps:
            task = asyncio.create_task(backend.complete(LONG))
            await steps.reach(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        assert unfinished(_llm(engine)) == 0


async def test_backends_with_the_same_settings_share_an_engine(engine: VLLMEngine) -> None:
    """With any options; closing one backend does not close the engine."""
    first, second = vllm(), vllm(temperature=0.7, max_tokens=5)
    async with asyncio.timeout(120), second:
        async with first:
            assert first._running() is second._running() is engine

        assert (await second.complete(FRANCE)).content


async def test_one_engine_serves_code_of_any_loop_or_none(engine: VLLMEngine) -> None:
    """A loop in another thread and a thread without one, while this loop reads."""
    backend = vllm()

    def in_a_loop() -> Message:
        return asyncio.run(backend.complete(FRANCE))

    def without_a_loop() -> str:
        return "".join(delta.text for delta in backend.stream_sync(FRANCE))

    async with asyncio.timeout(120), backend:
        here, there, text = await asyncio.gather(
            backend.complete(FRANCE),
            asyncio.to_thread(in_a_loop),
            asyncio.to_thread(without_a_loop),
        )

    assert here.content == there.content == text


async def test_an_interrupt_of_the_terminal_does_not_reach_the_engine(engine: VLLMEngine) -> None:
    """Ctrl-C reaches all processes of a terminal; it may stop a reply, not the engine."""
    async with asyncio.timeout(120), vllm() as backend:
        for process in engine_processes(_llm(engine)):
            os.kill(process.pid, signal.SIGINT)

        assert (await backend.complete(FRANCE)).content
        assert not engine.dead


async def test_the_options_of_a_request_reach_the_engine(engine: VLLMEngine) -> None:
    """A seed repeats a random reply, a stop word ends it, top_k=1 makes it deterministic."""
    backend = vllm(temperature=1.0, max_tokens=12)
    async with asyncio.timeout(120), backend:

        async def said(**options: Any) -> str:
            return (await backend.complete(ask("Count to nine.", **options))).content or ""

        assert await said(seed=1) == await said(seed=1)
        assert len({await said(seed=number, ignore_eos=True) for number in range(4)}) > 1
        certain = await said(top_k=1)
        assert certain == await said(temperature=0)
        word = certain.split()[1]
        assert word not in await said(top_k=1, stop=word)


async def test_the_arguments_of_the_engine_reach_it(engine: VLLMEngine) -> None:
    """The length is checked here; parallelism is passed the same way."""
    config = _llm(engine).vllm_config

    assert config.model_config.max_model_len == 1024
    assert config.model_config.enforce_eager
    assert config.parallel_config.tensor_parallel_size == 1


async def test_a_template_of_the_users_is_used(engine: VLLMEngine) -> None:
    """It replaces the tokenizer's."""
    async with asyncio.timeout(120):
        usage = (await vllm(chat_template="1 2 3").complete(ask("?", max_tokens=1))).usage

    assert usage is not None
    assert usage.input_tokens < 10


async def test_a_response_format_bounds_the_reply(engine: VLLMEngine) -> None:
    """With the option of chat completions."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
    bound = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    async with asyncio.timeout(120):
        message = await vllm().complete(ask("Where?", response_format=bound, max_tokens=40))

    assert "".join((message.content or "").split()) == '{"city":"Paris"}'


async def test_an_engine_argument_that_is_none_is_refused() -> None:
    """Before anything is loaded."""
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match="no engine argument max_modellen"):
            await vllm(engine={"max_modellen": 1}).__aenter__()


class _Scripted(ChatJob):
    """A chat with a scripted user."""

    lines: ClassVar = ["What is the capital of France?", "What is 1 plus 2?"]

    async def read(self) -> str | None:
        said = sum(message.role == "user" for message in self.conversation)
        return self.lines[said] if said < len(self.lines) else None


class _Heard(View):
    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


async def test_a_chat_on_it(engine: VLLMEngine) -> None:
    """Two rounds; code above the backend is the same."""
    conversation, view = Conversation(), _Heard()
    backend = vllm(max_tokens=30)
    async with asyncio.timeout(120), backend, Commander() as commander:
        await commander.run(_Scripted(backend, conversation, view=view))

    assert [m.role for m in conversation] == ["user", "assistant"] * 2
    assert "Paris" in view.text


async def test_a_tool_is_called_and_its_result_answered(engine: VLLMEngine) -> None:
    """The model is forced to call; its call runs; the answer is text."""

    @tool(read_only=True)
    def get_time(city: str) -> str:
        """Get the time of day in a city."""
        return "noon"

    conversation = Conversation()
    conversation.add("What time is it in Paris?")
    async with asyncio.timeout(120), vllm(max_tokens=60) as backend:
        call = await backend.complete(
            conversation.request(tools=[get_time], tool_choice="required")
        )
        conversation.add(call)
        for each in call.tool_calls:
            conversation.add(Message(role="tool", content="noon", tool_call_id=each.id))
        answer = await backend.complete(conversation.request(tools=[get_time]))

    assert [c.name for c in call.tool_calls] == ["get_time"]
    assert set(call.tool_calls[0].arguments) == {"city"}
    assert answer.content
    assert not answer.tool_calls


async def test_a_reply_goes_on_when_its_engine_dies(engine: VLLMEngine) -> None:
    """With resume="continue" a new engine starts and continues the text."""
    backend = vllm(resume="continue", retries=Retries(backoff=0))
    text = ""
    async with asyncio.timeout(600), backend:
        async with aclosing(
            backend.stream(ask("Count.", max_tokens=100, ignore_eos=True))
        ) as reply:
            async for delta in reply:
                if not text:
                    kill(_llm(engine))
                text += delta.text
        assert engine.dead
        assert await keep_engine() is backend._running() is not engine

    assert delta.finish_reason == "length"


async def test_the_last_one_to_close_shuts_the_engine_down(engine: VLLMEngine) -> None:
    """Its processes and its thread have ended when the close returns."""
    running = list(engine_processes(_llm(engine)))
    async with asyncio.timeout(120):
        async with vllm() as backend:
            assert (await backend.complete(FRANCE)).content
            await close_engine()
            assert all(process.is_alive() for process in running)

    assert running
    assert not any(process.is_alive() for process in running)
    assert not engine._thread.is_alive()
    assert VLLMEngine._shared == {}
