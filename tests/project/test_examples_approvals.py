"""The example of approvals in a browser: allow, refuse, and a restart with an open question."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from support.chat_command import environment
from support.examples import EXAMPLES, load_example
from support.serve_page import CHROMIUM_MARKS, PATIENCE, chromium
from support.threaded_server import serve_in_thread
from support.waiting import block_until

from anabranch.messages import Message, Request, ToolCall
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

pytestmark = CHROMIUM_MARKS

FILE = EXAMPLES / "embed_approvals.py"
QUESTION = 'refund({"order": "A7", "euros": 12})'


def reply(request: Request) -> Message:
    """Call the tool for a refund, and repeat its result."""
    last = request.messages[-1]
    if last.role == "tool":
        return Message(role="assistant", content=f"Done: {last.content}")
    if "refund" not in (last.content or ""):
        return Message(role="assistant", content="Hello!")
    call = ToolCall(id="c1", name="refund", arguments={"order": "A7", "euros": 12})
    return Message(role="assistant", content=None, tool_calls=[call])


class Page:
    """An open page of one user."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def ask(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")

    def see(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for()

    def see_question(self) -> None:
        self.page.locator("#questions").get_by_text(QUESTION).wait_for()

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name).click()

    @property
    def messages(self) -> list[str]:
        found: list[str] = self.page.locator("#messages p").all_inner_texts()
        return found

    @property
    def questions(self) -> int:
        return int(self.page.locator("#questions p").count())


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    with chromium() as browser:
        yield browser


@contextmanager
def opened(browser: Any, url: str) -> Generator[Page]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(url)
    yield Page(page)
    context.close()


def test_a_person_allows_and_refuses_calls(browser: Any, tmp_path: Path) -> None:
    """The page shows each question, and only to its user; then the result."""
    app = load_example("embed_approvals").application(
        ScriptedBackend(otherwise=reply), str(tmp_path / "runs.db")
    )
    with (
        serve_in_thread(app) as server,
        opened(browser, f"{server.url}?user=ann") as ann,
        opened(browser, f"{server.url}?user=ben") as ben,
    ):
        ann.ask("a refund, please")
        ann.see_question()
        ben.ask("hi")
        ben.see("desk: Hello!")
        assert ben.questions == 0
        ann.click("Allow")
        ann.see("desk: Done: refunded")
        assert ann.questions == 0

        ann.ask("another refund")
        ann.see_question()
        # Neither another user's question nor an unknown or decided one can be answered.
        answers = [{"user": "ben", "number": number, "allow": True} for number in range(1, 40)]
        with httpx.Client(base_url=server.url) as client:
            posts = [client.post("/decide", json=each) for each in answers]
        assert {each.status_code for each in posts} == {409}
        ann.click("Refuse")
        ann.see("desk: Done: Error")
        assert [text.split(": ")[0] for text in ann.messages] == ["user", "desk", "desk"] * 2


@contextmanager
def program(model: str, port: int, path: Path) -> Generator[subprocess.Popen[str]]:
    options = ["--model", "openai:tiny", "--port", str(port), "--journal", str(path)]
    process = subprocess.Popen(
        [sys.executable, str(FILE), *options],
        env=environment(OPENAI_BASE_URL=model, OPENAI_API_KEY="sk-test"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_open_question_survives_a_restart(
    browser: Any, tmp_path: Path, how: signal.Signals
) -> None:
    """The open page reconnects and shows it. The answer continues the turn."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = tmp_path / "runs.db"
    with serve_in_thread(serve({"tiny": ScriptedBackend(otherwise=reply)})) as served:
        model = f"{served.url}v1"
        with program(model, port, path) as first:
            block_until(lambda: is_open(port))
            with opened(browser, f"http://127.0.0.1:{port}/?user=ann") as page:
                page.ask("a refund, please")
                page.see_question()
                first.send_signal(how)
                first.wait()
                page.page.evaluate("() => find('questions').replaceChildren()")
                with program(model, port, path):
                    page.see_question()
                    page.click("Allow")
                    page.see("desk: Done: refunded 12 euros for order A7")
                    assert page.messages[0] == "user: a refund, please"


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
