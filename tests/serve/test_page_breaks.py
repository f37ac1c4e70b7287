"""The chat page with lost connections, ended servers and failed runs, and after a reload."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from support.serve_page import CHROMIUM_MARKS, Gates, OpenPage, agent, calls, chromium, open_pages
from support.waiting import wait_until

from anabranch.messages import Request

pytestmark = CHROMIUM_MARKS


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    """One Chromium for all tests of the module."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def talk(browser: Any) -> Generator[OpenPage]:
    """Open the page of a server; the test fails for any unexpected error in the page."""
    with open_pages(browser) as opens:
        yield opens


def test_stop_closes_the_models_stream_and_keeps_the_text(talk: OpenPage) -> None:
    """S11: Escape stops too; the partial answer stays in the conversation."""
    gates = Gates()
    ann = agent(gates.wait("Once upon ", "a time."), otherwise="Again.")
    page = talk(ann)
    page.ask("A tale")
    page.see("Once upon")
    page.page.keyboard.press("Escape")
    assert page.end().startswith("Stopped · ")
    assert ann.backend.opened == ann.backend.closed == 1
    page.ask("And?")
    page.end(2)
    (_, _, before, _) = ann.backend.requests[-1].messages
    assert (before.content or "").startswith("Once upon")
    assert page.page.locator(".broken").count() == 0


def test_a_reload_continues_the_answer(talk: OpenPage) -> None:
    """S10: the text before and after appears exactly once, and the tree too."""
    gates = Gates()
    page = talk(agent(gates.wait("Once upon ", "a time.")))
    page.ask("A tale")
    page.see("Once upon")
    page.page.reload()
    page.see("Once upon")
    page.served.do(gates.gate.set)
    page.end()
    assert page.said == ["Once upon a time."]
    assert page.page.locator("#tree .completed").count() > 0
    page.page.reload()
    page.see("Once upon a time.")
    page.page.wait_for_selector("#tree .completed")
    assert page.said == ["Once upon a time."]


def test_a_lost_connection_is_replaced(talk: OpenPage) -> None:
    """S10: the text of that time appears exactly once; a status line reports the loss."""
    gates = Gates()
    page = talk(agent(gates.wait("Once upon ", "a time.")))
    page.expected = ["ERR_"]
    page.ask("A tale")
    page.see("Once upon")
    page.page.context.set_offline(True)
    page.served.cut()
    page.see("Connection lost")
    page.served.do(gates.gate.set)
    page.page.context.set_offline(False)
    page.end()
    assert page.said == ["Once upon a time."]
    page.page.wait_for_selector("#tree .completed")
    assert page.page.locator("#tree .running").count() == 0


def test_a_message_stays_if_the_server_cannot_be_reached(talk: OpenPage) -> None:
    """It stays in the box, and can be sent again."""
    page = talk(agent("Here."))
    page.expected = ["ERR_"]
    page.page.wait_for_selector("#hint")
    page.page.context.set_offline(True)
    page.ask("Hello?")
    page.see("Cannot reach the server.")
    assert page.page.input_value("#message") == "Hello?"
    page.page.context.set_offline(False)
    page.page.press("#message", "Enter")
    page.see("Here.")


def test_an_expired_run_is_reported(talk: OpenPage) -> None:
    """S13: after a late reload the page shows it, and still works."""
    gates = Gates()
    page = talk(agent(gates.wait("Once ", "upon."), otherwise="Here."), keep=0.0)
    page.expected = ["404"]
    page.ask("A tale")
    page.see("Once")
    page.page.goto("about:blank")
    page.served.do(gates.gate.set)
    runs = page.served.app.runs
    page.served.do(lambda: wait_until(lambda: not runs.of("")))
    runs._keep = 60.0  # the next run must not expire before the page reads it
    page.page.goto(page.served.url)
    assert page.end() == "Error: there is no such run"
    assert page.page.input_value("#message") == "A tale"
    page.page.press("#message", "Enter")
    page.see("Here.")


def test_a_failed_run_shows_no_cause(talk: OpenPage, caplog: pytest.LogCaptureFixture) -> None:
    """S14: the question returns to the box."""

    def fail(request: Request) -> str:
        raise ValueError("the secret of the inside")

    page = talk(agent(fail, "Well."))
    page.ask("Try")
    assert page.end().startswith("Error: The run failed (id ")
    assert page.page.input_value("#message") == "Try"
    assert "secret" not in page.page.content()
    page.page.press("#message", "Enter")
    page.see("Well.")


def test_a_full_server_is_reported(talk: OpenPage) -> None:
    """S15: the message stays in the box."""
    gates = Gates()
    page = talk(agent(gates.wait("Once ", "upon."), "Later."), max_runs=1)
    page.expected = ["429"]
    page.ask("A tale")
    page.see("Once")
    other = page.page.context.new_page()
    other.goto(page.served.url)
    other.fill("#message", "Me too")
    other.press("#message", "Enter")
    other.get_by_text("has its maximum of runs").wait_for()
    assert other.input_value("#message") == "Me too"
    other.close()
    page.served.do(gates.gate.set)
    page.end()


def test_the_page_asks_for_a_key_until_it_is_right(talk: OpenPage) -> None:
    """S14: a wrong key is reported; the tab stores the right one."""
    page = talk(agent("Here."), auth="swordfish")
    page.expected = ["401"]
    dialog = page.page.get_by_role("dialog", name="This server needs a key")
    dialog.wait_for()
    page.page.keyboard.press("Escape")
    assert dialog.is_visible()
    page.page.fill("#key-value", "herring")
    page.page.keyboard.press("Enter")
    page.see("Unknown key.")
    page.page.fill("#key-value", "swordfish")
    page.page.keyboard.press("Enter")
    dialog.wait_for(state="hidden")
    page.ask("Hello?")
    page.end()
    page.page.reload()
    page.see("Here.")
    assert dialog.is_hidden()


def test_a_reload_shows_tools_questions_and_ends_again(talk: OpenPage) -> None:
    """With their results; later requests contain no more than without the reload."""
    lost = calls("Rome", name="weather", field="town")
    ann = agent(calls("Rome", name="weather", field="city"), calls("a hat"), "One.", lost, "Two.")
    page = talk(ann)
    page.expected = ["500"]
    page.ask("a")
    page.page.get_by_role("button", name="No", exact=True).click()
    page.end(1)
    page.ask("b")
    page.end(2)
    page.ask("c")  # the script lacks a reply for it
    page.end(3)
    before = page.page.locator("#conversation").inner_text()
    assert "sunny in Rome" in before
    assert "You said no." in before
    assert "Error: " in before
    for _ in range(2):
        page.page.reload()
        page.page.wait_for_selector("#tree > *")
        assert page.page.locator("#conversation").inner_text() == before
        assert page.page.locator("#status").inner_text() == ""
        assert page.page.locator("#conversation button").count() == 0
    page.ask("d")
    page.end(4)
    heard = [message.content for message in ann.backend.requests[-1].messages[1:]]
    assert heard == ["a", "One.", "b", "Two.", "d"]


def test_a_conversation_larger_than_the_storage_keeps_its_texts(talk: OpenPage) -> None:
    """The tab stores the messages first, and leaves out the tools."""
    page = talk(agent(calls("Rome", name="weather", field="city"), "One.", "Two."))
    page.page.wait_for_selector("#hint")
    page.page.evaluate(
        """() => {
            const set = Storage.prototype.setItem;
            Storage.prototype.setItem = function (name, value) {
                if (name === "entries" && value !== "null") throw new DOMException("it is full");
                set.call(this, name, value);
            };
        }"""
    )
    page.ask("a")
    page.end()
    page.page.reload()
    page.see("One.")
    assert page.said == ["One."]
    assert page.page.locator(".call").count() == 0
    page.ask("b")
    page.end()
    assert page.said == ["One.", "Two."]
