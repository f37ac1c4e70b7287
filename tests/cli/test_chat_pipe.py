"""The real program: with the local model, and in a pipe."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

from support.chat_command import CHAT, TIMEOUT_SECONDS, environment, run_chat, saved_messages
from support.scripted_server import DONE, Reply, ScriptedServer, Step, chunk, text
from support.terminal import CTRL_C, open_terminal


async def test_a_question_from_a_pipe_is_answered() -> None:
    """Standard output has the answer only, and the status is 0."""
    status, out, _ = await run_chat("--tools", "none", said="What is the capital of France?\n")
    assert status == 0
    assert "Paris" in out


async def test_a_real_chat_in_a_real_terminal(tmp_path: Path) -> None:
    """Answers, calls a tool, keeps the text of an interrupted answer, and exits."""
    async with open_terminal(folder=tmp_path) as on:
        await on.shows("/help lists the commands")
        await on.say("What is the capital of France?")
        await on.wait(lambda: "The capital of France is Paris" in on.text, TIMEOUT_SECONDS)
        await on.over()
        await on.say("What is the weather in Paris?")
        await on.wait(lambda: "[tool] get_current_weather(" in on.text, TIMEOUT_SECONDS)
        await on.shows("18 degrees")
        await on.over(2, TIMEOUT_SECONDS)
        await on.say("Tell me a long story about a fox.")
        await on.wait(lambda: "fox" in on.text.partition("story about a fox.")[2], TIMEOUT_SECONDS)
        await on.press(CTRL_C)
        await on.shows("(stopped; the text so far is saved)")
        await on.say("/save talk.json")
        await on.wait(lambda: re.search(r"saved \d+ messages to talk.json", on.text))
        await on.leave()

    saved = saved_messages(tmp_path / "talk.json")
    called = next(message for message in saved if message.get("tool_calls"))
    assert called["tool_calls"][0]["function"]["name"] == "get_current_weather"
    result = saved[saved.index(called) + 1]
    assert result["role"] == "tool"
    assert "18 degrees" in result["content"]
    assert saved[saved.index(result) + 1]["role"] == "assistant"
    assert [each["role"] for each in saved[-2:]] == ["user", "assistant"]
    assert saved[-1]["content"]


# --- a scripted server


async def test_a_failed_turn_loses_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    """A refused key is one line; /save still works; /retry sends the same message again."""
    path = tmp_path / "kept.json"
    async with ScriptedServer(
        Reply.error(401, {"message": "bad key"}), text("Hello", "!")
    ) as server:
        status, out, err = await run_chat(
            "--model",
            server.url,
            "--name",
            "tiny",
            said=f"Hi there\n/save {path}\n/retry\n",
        )
    assert status == 1  # a turn has failed
    assert out == "Hello!\n"
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if "bad key" in line]) == 1
    assert [message["content"] for message in saved_messages(path)] == ["Hi there"]
    assert server.requests[-1].body["messages"] == server.requests[0].body["messages"]


async def test_several_lines_from_a_pipe_are_several_turns() -> None:
    """Each line is a turn of one conversation."""
    async with ScriptedServer(text("one"), text("two")) as server:
        status, out, _ = await run_chat("--model", server.url, "--name", "m", said="a\n\nb\n")
    assert (status, out) == (0, "one\ntwo\n")
    assert [m["content"] for m in server.requests[1].body["messages"]] == ["a", "one", "b"]


async def test_a_system_prompt_and_options_reach_the_model() -> None:
    """The request has them under the names of the wire."""
    options = ("--system", "Be brief.", "--temperature", "0.5", "--max-tokens", "9", "-t", "none")
    async with ScriptedServer(text("ok")) as server:
        await run_chat("--model", server.url, "--name", "m", *options, said="x\n")
    body = server.requests[0].body
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)
    assert not body.get("tools")


async def test_an_interrupt_ends_a_chat_from_a_pipe() -> None:
    """The status is 130, and later lines are not sent."""
    async with ScriptedServer(Reply([chunk({"content": "Once upon"}), Step.HANG])) as server:
        process = await asyncio.create_subprocess_exec(
            *CHAT,
            *("--model", server.url, "--name", "m"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await process.stdout.readexactly(9) == b"Once upon"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        process.stdin.close()
    assert len(server.requests) == 1


async def test_a_reader_that_leaves_ends_the_chat_quietly() -> None:
    """`anabranch chat | head -1` ends without an error message."""
    long = Reply([*[chunk({"content": "river " * 1000})] * 50, chunk(finish="stop"), DONE])
    async with ScriptedServer(long) as server, asyncio.timeout(TIMEOUT_SECONDS):
        process = await asyncio.create_subprocess_shell(
            f"'{sys.executable}' -m anabranch chat --model {server.url} --name m | head -c 5",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        out, err = await process.communicate(b"one\ntwo\nthree\n")
    assert (out, err) == (b"river", b"")
    assert len(server.requests) == 1


async def test_help_and_version_are_there() -> None:
    """`--help` and `--version` print text and end with status 0."""
    status, out, _ = await run_chat("--help")
    assert status == 0
    assert "--tools" in out
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "anabranch", "--version", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert re.fullmatch(rb"anabranch \d+\.\d+\.\d+\n", out)


async def test_calls_that_a_model_writes_as_text_are_read(tmp_path: Path) -> None:
    """--format works and is repeatable; an unknown name is an error that lists all."""
    called = '<tool_call>{"name": "calculate", "arguments": {"expression": "6 * 7"}}</tool_call>'
    path = tmp_path / "kept.json"
    async with ScriptedServer(text(called), text("It is 42.")) as server:
        to = ("--model", server.url, "--name", "tiny")
        status, out, err = await run_chat(
            *to, "--format", "hermes", "--format", "think", said=f"6 * 7?\n/save {path}\n"
        )
        assert (status, out) == (0, "It is 42.\n"), err
        assert [each["role"] for each in saved_messages(path)] == [
            "user",
            "assistant",
            "tool",
            "assistant",
        ]
        assert saved_messages(path)[2]["content"] == "6 * 7 = 42"

        status, out, err = await run_chat(*to, "--format", "Hermes", said="Hi\n")
        assert (status, out) == (2, "")
        assert "unknown format 'Hermes'. Use one of: hermes, mistral," in err
