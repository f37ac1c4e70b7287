"""The page of a server where connections, servers and answers break, and after a reload."""

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
    """Open a page of what is served; nothing may go wrong in it."""
    with open_pages(browser) as opens:
        yield opens


def test_stop_closes_the_models_stream_and_keeps_what_was_said(talk: OpenPage) -> None:
    """S11: Escape stops too; the answer as far as it came is part of the talk."""
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


def test_a_reload_goes_on_in_mid_answer(talk: OpenPage) -> None:
    """S10: what was said before and after is there exactly once, and the tree too."""
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


def test_a_connection_that_is_cut_is_made_again(talk: OpenPage) -> None:
    """S10: what was said meanwhile is there exactly once; the user is told in between."""
    gates = Gates()
    page = talk(agent(gates.wait("Once upon ", "a time.")))
    page.expected = ["ERR_"]
    page.ask("A tale")
    page.see("Once upon")
    page.page.context.set_offline(True)
    page.served.cut()
    page.see("The connection is lost")
    page.served.do(gates.gate.set)
    page.page.context.set_offline(False)
    page.end()
    assert page.said == ["Once upon a time."]
    page.page.wait_for_selector("#tree .completed")
    assert page.page.locator("#tree .running").count() == 0


def test_a_message_is_kept_while_the_server_is_away(talk: OpenPage) -> None:
    """It is still in the box, to be sent again."""
    page = talk(agent("Here."))
    page.expected = ["ERR_"]
    page.page.wait_for_selector("#hello")
    page.page.context.set_offline(True)
    page.ask("Hello?")
    page.see("The server cannot be reached.")
    assert page.page.input_value("#words") == "Hello?"
    page.page.context.set_offline(False)
    page.page.press("#words", "Enter")
    page.see("Here.")


def test_a_run_that_is_forgotten_meanwhile_is_said_to_be(talk: OpenPage) -> None:
    """S13: after a reload that comes too late the page is told so, and works on."""
    gates = Gates()
    page = talk(agent(gates.wait("Once ", "upon."), otherwise="Here."), keep=0.0)
    page.expected = ["404"]
    page.ask("A tale")
    page.see("Once")
    page.page.goto("about:blank")
    page.served.do(gates.gate.set)
    runs = page.served.app.runs
    page.served.do(lambda: wait_until(lambda: not runs.of("")))
    page.page.goto(page.served.url)
    assert page.end() == "It did not work: there is no such run"
    assert page.page.input_value("#words") == "A tale"
    page.page.press("#words", "Enter")
    page.see("Here.")


def test_a_run_that_fails_says_so_and_no_more(
    talk: OpenPage, caplog: pytest.LogCaptureFixture
) -> None:
    """S14: nothing of the inside is told; the question is in the box again."""

    def fail(request: Request) -> str:
        raise ValueError("the secret of the inside")

    page = talk(agent(fail, "Well."))
    page.ask("Try")
    assert page.end().startswith("It did not work: the run failed (id ")
    assert page.page.input_value("#words") == "Try"
    assert "secret" not in page.page.content()
    page.page.press("#words", "Enter")
    page.see("Well.")


def test_a_server_that_is_full_says_so(talk: OpenPage) -> None:
    """S15: the message stays in the box."""
    gates = Gates()
    page = talk(agent(gates.wait("Once ", "upon."), "Later."), max_runs=1)
    page.expected = ["429"]
    page.ask("A tale")
    page.see("Once")
    other = page.page.context.new_page()
    other.goto(page.served.url)
    other.fill("#words", "Me too")
    other.press("#words", "Enter")
    other.get_by_text("as many runs as it takes").wait_for()
    assert other.input_value("#words") == "Me too"
    other.close()
    page.served.do(gates.gate.set)
    page.end()


def test_a_key_is_asked_for_until_it_is_right(talk: OpenPage) -> None:
    """S14: a wrong one is refused by words; the right one is kept for this tab."""
    page = talk(agent("Here."), auth="swordfish")
    page.expected = ["401"]
    dialog = page.page.get_by_role("dialog", name="This server asks for a key")
    dialog.wait_for()
    page.page.keyboard.press("Escape")
    assert dialog.is_visible()
    page.page.fill("#key-value", "herring")
    page.page.keyboard.press("Enter")
    page.see("That key is not known.")
    page.page.fill("#key-value", "swordfish")
    page.page.keyboard.press("Enter")
    dialog.wait_for(state="hidden")
    page.ask("Hello?")
    page.end()
    page.page.reload()
    page.see("Here.")
    assert dialog.is_hidden()


def test_a_reload_shows_tools_questions_and_ends_again(talk: OpenPage) -> None:
    """As they were, whether they worked or not; and what is said again is no more than before."""
    lost = calls("Rome", name="weather", field="town")
    ann = agent(calls("Rome", name="weather", field="city"), calls("a hat"), "One.", lost, "Two.")
    page = talk(ann)
    page.expected = ["500"]
    page.ask("a")
    page.page.get_by_role("button", name="No", exact=True).click()
    page.end(1)
    page.ask("b")
    page.end(2)
    page.ask("c")  # beyond the script
    page.end(3)
    before = page.page.locator("#talk").inner_text()
    assert "sunny in Rome" in before
    assert "You said no." in before
    assert "It did not work" in before
    for _ in range(2):
        page.page.reload()
        page.page.wait_for_selector("#tree > *")
        assert page.page.locator("#talk").inner_text() == before
        assert page.page.locator("#status").inner_text() == ""
        assert page.page.locator("#talk button").count() == 0
    page.ask("d")
    page.end(4)
    heard = [message.content for message in ann.backend.requests[-1].messages[1:]]
    assert heard == ["a", "One.", "b", "Two.", "d"]


def test_a_talk_that_a_tab_cannot_keep_is_its_texts_after_a_reload(talk: OpenPage) -> None:
    """What is sent again comes first, and the tools give way to it."""
    page = talk(agent(calls("Rome", name="weather", field="city"), "One.", "Two."))
    page.page.wait_for_selector("#hello")
    page.page.evaluate(
        """() => {
            const set = Storage.prototype.setItem;
            Storage.prototype.setItem = function (name, value) {
                if (name === "talk" && value !== "null") throw new DOMException("it is full");
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
