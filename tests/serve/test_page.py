"""The chat page in a real Chromium: a user chats with an agent, watches the tree, and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import Any

import pytest
from support.serve_page import (
    CHROMIUM_MARKS,
    Crowd,
    Gates,
    OpenPage,
    agent,
    calls,
    chromium,
    open_pages,
)

from anabranch.messages import Delta
from anabranch.testing import deltas

pytestmark = CHROMIUM_MARKS


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    """One Chromium for all tests of the module."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def talk(browser: Any) -> Generator[OpenPage]:
    """Open the page of a server; the test fails for any error in the page."""
    with open_pages(browser) as opens:
        yield opens


# --- conversations


def test_an_answer_streams_beside_its_tree(talk: OpenPage) -> None:
    """Text appears while the model generates; then time and tokens; the tree has all nodes."""
    gates = Gates()
    page = talk(agent(calls("Rome", name="weather", field="city"), gates.wait("It is ", "sunny.")))
    page.ask("How is Rome?")
    page.see("It is")
    assert page.page.locator("#send").is_hidden()
    page.page.locator("#tree .running").first.wait_for()
    page.served.do(gates.gate.set)

    assert re.fullmatch(r"[\d.]+ s · [\d,]+ tokens in, [\d,]+ out", page.end())
    assert page.said == ["It is sunny."]
    assert page.page.locator(".message.user").text_content() == "You: How is Rome?"
    assert page.page.locator("details.call.ok summary").inner_text() == (
        'weather {"city": "Rome"} → sunny in Rome'
    )
    page.page.locator("#tree .running").first.wait_for(state="detached")
    assert (
        page.page.locator("#tree .completed")
        .first.get_attribute("aria-label")
        .startswith("ann, completed, ")
    )


def test_the_conversation_is_sent_until_a_new_chat(talk: OpenPage) -> None:
    """The model gets the conversation; after New chat it gets the new question only."""
    ann = agent("One.", "Two.", "Three.")
    page = talk(ann)
    page.ask("a")
    page.end(1)
    page.ask("b")
    page.end(2)
    page.page.click("text=New chat")
    assert page.page.locator("#conversation .message").count() == 0
    page.ask("c")
    page.end(1)
    heard = [[m.content for m in each.messages[1:]] for each in ann.backend.requests]
    assert heard == [["a"], ["a", "One.", "b"], ["c"]]


def test_enter_twice_sends_once(talk: OpenPage) -> None:
    """A second Enter before the server's response starts no second run."""
    ann = agent("One.", otherwise="again")
    page = talk(ann)
    page.page.fill("#message", "a")
    page.page.evaluate(
        """() => { for (let i = 0; i < 2; i++) document.getElementById("message").dispatchEvent(
            new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true})) }"""
    )
    page.end()
    assert len(ann.backend.requests) == 1


def test_a_question_may_be_sent_before_the_models_are_known(talk: OpenPage) -> None:
    """It waits for them."""
    page = talk(agent("Here."))
    page.page.wait_for_selector("#hint")
    held: list[Any] = []
    page.page.route("**/v1/models", lambda route: held.append(route))
    with page.page.expect_request("**/v1/models"):
        page.page.goto(page.served.url)
    page.page.evaluate("""() => { message.value = "Early?"; document.forms[0].requestSubmit() }""")
    held[0].continue_()
    page.end()
    assert page.said == ["Here."]


def test_an_answer_that_breaks_off_is_struck_out(talk: OpenPage) -> None:
    """Later requests contain the answer after it."""
    page = talk(agent("Here."))
    page.page.wait_for_selector("#hint")
    frames = [
        ("text", {"text": "Half an", "speech": "1"}),
        ("broken", {}),
        ("text", {"text": "A whole one.", "speech": "2"}),
        ("completed", {"usage": {}}),
    ]
    body = "".join(
        f"id: {n}\nevent: {kind}\ndata: {json.dumps({'number': n, **data})}\n\n"
        for n, (kind, data) in enumerate(frames, 1)
    )
    page.page.route("**/events?*", lambda route: route.fulfill(body=body))
    page.ask("Hello?")
    page.end()
    assert page.page.locator(".broken").all_inner_texts() == ["Half an"]
    said = page.page.evaluate("JSON.parse(sessionStorage.getItem('messages'))")
    assert [each["content"] for each in said] == ["Hello?", "A whole one."]


def test_reasoning_is_folded_and_separate_from_the_answer(talk: OpenPage) -> None:
    """One for each reply, in order, also after a reload; later requests have only the answer."""
    steps = [Delta(reasoning="A hat? "), Delta(reasoning="<b>Yes</b>."), *deltas("Done.")]
    first = calls("Oslo", name="weather", field="city").model_copy(update={"reasoning": "Look."})
    page = talk(agent(first, steps))
    page.ask("Buy")
    page.end()
    for _ in "12":
        thoughts = page.page.locator("details.reasoning")
        assert thoughts.evaluate_all("all => all.map(each => each.open)") == [False, False]
        assert thoughts.locator("div").all_text_contents() == ["Look.", "A hat? <b>Yes</b>."]
        assert page.said == ["Done."]
        page.page.reload()
        page.page.wait_for_selector("details.reasoning")
    said = page.page.evaluate("JSON.parse(sessionStorage.getItem('messages'))")
    assert [each["content"] for each in said] == ["Buy", "Done."]
    kinds = page.page.locator("#conversation > details").evaluate_all(
        "all => all.map(e => e.classList[0])"
    )
    assert kinds == ["reasoning", "call", "reasoning"]


def test_code_is_shown_and_never_runs(talk: OpenPage) -> None:
    """Code gets boxes with a copy button; markup in a reply is shown as text."""
    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    text = f"**See** `x`:\n```python\nprint('a')\n  b\n```\n{hostile}\n```\nopen to the end"
    page = talk(agent(text, size=3))
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.ask("Code?")
    page.end()
    message = page.page.locator(".message.assistant")
    assert message.locator("pre").all_text_contents() == ["print('a')\n  b\n", "open to the end"]
    assert message.locator("b").inner_text() == "See"
    assert message.locator("span > code").inner_text() == "x"
    assert hostile in message.inner_text()
    message.locator("text=Copy").first.click()
    message.locator("text=Copied").wait_for()
    assert page.page.evaluate("navigator.clipboard.readText()") == "print('a')\n  b\n"
    page.page.reload()
    page.page.wait_for_selector("pre")
    assert message.locator("pre").all_text_contents() == ["print('a')\n  b\n", "open to the end"]


def test_the_user_chooses_among_models(talk: OpenPage) -> None:
    """By name, and the choice survives a reload; a single model is the title."""
    page = talk({"first": agent("I am first."), "second": agent(otherwise="I am second.")})
    page.page.select_option("#model", "second")
    page.ask("Who?")
    page.end()
    assert page.said == ["I am second."]
    page.page.reload()
    page.page.wait_for_selector("#choice:visible")
    assert page.page.input_value("#model") == "second"
    alone = talk(agent("One."))
    alone.page.wait_for_selector("#hint")
    assert alone.page.inner_text("h1") == "ann"
    assert alone.page.locator("#choice").is_hidden()


# --- approvals


@pytest.mark.parametrize(("button", "answer"), [("Yes, run it", "bought a hat"), ("No", "said no")])
def test_the_user_approves_or_denies(talk: OpenPage, button: str, answer: str) -> None:
    """S16: a tool with approval waits for the answer; the model gets the result."""
    ann = agent(calls("a hat"), "Well.")
    page = talk(ann)
    page.ask("Buy")
    card = page.page.get_by_role("group", name="May buy run?")
    card.get_by_role("button", name=button).click()
    page.end()
    assert card.get_by_role("button").count() == 0
    assert "You said" in card.inner_text()
    assert answer in (ann.backend.requests[-1].messages[-1].content or "")
    assert page.focus == "message"


def test_two_questions_are_answered_separately(talk: OpenPage) -> None:
    """S16: a yes to one does not approve the other."""
    ann = agent(calls("a hat", "a boat"), "Well.")
    page = talk(ann)
    page.ask("Buy")
    hat, boat = (page.page.locator(".question", has_text=item) for item in ("a hat", "a boat"))
    boat.get_by_role("button", name="No").click()
    boat.get_by_text("You said no.").wait_for()
    hat.get_by_role("button", name="Yes").click()
    page.end()
    heard = {m.tool_call_id: m.content for m in ann.backend.requests[-1].messages[-2:]}
    assert heard["c0"] == "bought a hat"
    assert "bought" not in (heard["c1"] or "")


def test_a_stop_closes_open_questions(talk: OpenPage) -> None:
    """S16: their buttons disappear."""
    page = talk(agent(calls("a hat"), "Well."))
    page.ask("Buy")
    page.page.wait_for_selector(".question button")
    page.page.click("#stop")
    assert page.end().startswith("Stopped · ")
    page.see("Not answered.")
    assert page.page.locator(".question button").count() == 0


def test_a_question_is_there_after_a_reload(talk: OpenPage) -> None:
    """S16: and can be answered then."""
    page = talk(agent(calls("a hat"), "You have it."))
    page.ask("Buy")
    page.page.wait_for_selector(".question button")
    page.page.reload()
    page.page.get_by_role("button", name="Yes").click()
    page.end()
    assert page.said == ["You have it."]


# --- display, keys, screen readers


def test_a_long_answer_is_not_laid_out_for_each_delta(talk: OpenPage) -> None:
    """S12: so the page keeps up with the stream."""
    pieces = 2000
    page = talk(agent("word " * pieces, size=5))
    page.page.wait_for_selector("#hint")
    session = page.page.context.new_cdp_session(page.page)
    session.send("Performance.enable")
    page.ask("Talk")
    page.end()
    metrics = session.send("Performance.getMetrics")["metrics"]
    assert next(each["value"] for each in metrics if each["name"] == "LayoutCount") < pieces
    assert page.said == [("word " * pieces)]
    page.page.wait_for_function(
        "conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 2"
    )


def test_a_question_shows_invisible_characters(talk: OpenPage) -> None:
    """S16: characters that are invisible or change the order of others are shown as escapes."""
    page = talk(agent(calls("a\u202etah\u200b \u05d0"), "Fine."))
    page.ask("Buy")
    code = page.page.locator(".question code")
    assert code.inner_text() == '{"item": "a\\u202etah\\u200b \u05d0"}'
    page.page.get_by_role("button", name="No", exact=True).click()
    page.end()


def test_a_user_who_reads_above_is_not_moved(talk: OpenPage) -> None:
    """A button leads to the newest message; a user at the end stays at the end."""
    gates = Gates()
    page = talk(agent(gates.wait("line\n" * 80 + "half ", "the end")))
    bottom = "() => conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight"
    page.ask("Long")
    page.see("half")
    assert page.page.locator("#newest").is_hidden()
    page.page.evaluate("() => { conversation.scrollTop = 0 }")
    page.page.evaluate("() => new Promise(requestAnimationFrame)")
    page.served.do(gates.gate.set)
    page.end()
    assert page.page.evaluate("conversation.scrollTop") == 0
    page.page.get_by_role("button", name="Jump to the newest").click()
    assert page.page.evaluate(bottom) < 2
    assert page.page.locator("#newest").is_hidden()


def test_a_wide_tree_is_cut_except_for_failures(talk: OpenPage) -> None:
    """Of 2,000 children it shows 200, and the failed one."""
    page = talk(Crowd)
    page.ask("many")
    page.end()
    page.page.locator("#tree > .completed").wait_for()
    page.page.locator(".more", has_text="1,799 more").wait_for()
    assert page.page.locator("#tree .failed").count() == 1
    assert page.page.locator("#tree li").count() == 203


def test_keys_alone_are_enough(talk: OpenPage) -> None:
    """Tab follows the reading order, Shift+Enter breaks a line, arrow keys walk the tree."""
    ann = agent(calls("Rome", name="weather", field="city"), "Sunny.")
    page = talk(ann)
    page.page.wait_for_selector("#hint")
    keys = page.page.keyboard
    assert page.focus == "message"
    keys.type("a")
    keys.press("Shift+Enter")
    keys.type("b")
    keys.press("Enter")
    page.end()
    assert ann.backend.requests[0].messages[-1].content == "a\nb"
    page.page.locator("#tree > .completed").wait_for()

    walked: list[str] = []
    page.page.locator("#new-chat").focus()
    for _ in range(6):
        keys.press("Tab")
        walked.append(page.focus)
    assert walked[:2] == ["show-tree", "conversation"]
    assert walked[-3:-1] == ["message", "send"]
    name = "() => document.activeElement.getAttribute('aria-label').split(',')[0]"
    assert page.page.evaluate(name) == "ann"
    names = []
    for key in "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowUp", "End", "Home":
        keys.press(key)
        names.append(page.page.evaluate(name))
    assert names == ["respond", "Pump", "respond", "respond", "ann", "respond", "ann"]
    folded = page.page.locator("#tree [aria-expanded=false]")
    assert folded.count() == 1
    assert page.page.locator("#tree [tabindex='0']").count() == 1


def test_a_screen_reader_finds_everything(talk: OpenPage) -> None:
    """Roles, names and levels exist; the clock is not announced."""
    page = talk(agent("Hello."))
    page.ask("Hi")
    page.end()
    page.page.locator("#tree > .completed").wait_for()
    seen = page.page.locator("body").aria_snapshot()
    for part in (
        'heading "ann" [level=1]',
        'button "New chat"',
        'button "Tree" [pressed]',
        'log "Conversation"',
        'textbox "Your message"',
        'button "Send"',
        'complementary "The tree of the run"',
        'tree "Nodes"',
    ):
        assert part in seen, seen
    assert re.search(r'treeitem "ann, completed, [\d.]+ s" \[expanded\] \[level=1\]', seen), seen
    assert re.search(r'treeitem "respond, completed, [\d.]+ s".* \[level=2\]', seen), seen
    assert page.page.locator("#clock").get_attribute("role") == "timer"
    assert page.page.locator("#conversation").get_attribute("aria-busy") == "false"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(talk: OpenPage, scheme: str) -> None:
    """Nothing is wider than the screen, even with code and very long names and words."""
    long = "x" * 300
    page = talk({long: agent(f"{long}\n```\n{long}\n```")}, width=400, scheme=scheme)
    page.ask(long)
    page.end()
    page.page.click("#show-tree")
    page.page.locator("#tree > .completed").wait_for()
    assert page.page.evaluate("document.documentElement.scrollWidth") == 400
    assert page.page.evaluate("conversation.scrollWidth - conversation.clientWidth") == 0
    for button in "#new-chat", "#show-tree", "#send":
        box = page.page.locator(button).bounding_box()
        assert box["x"] + box["width"] <= 400


def test_the_page_runs_only_its_own_script(talk: OpenPage) -> None:
    """Its policy has the hashes of its script and style."""
    page = talk(agent("Hello."))
    response = page.page.request.get(page.served.url)
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self';")
    assert "unsafe" not in policy
    page.page.wait_for_selector("#hint")
