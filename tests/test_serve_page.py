"""The page of a server, in a real Chromium: a person talks to an agent, watches it, is asked."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest
from _talks import Served, serving
from _until import until

from anabranch import Agent, Job, Message, ToolCall, tool
from anabranch.messages import Request
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend, deltas

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 20_000  # milliseconds

pytestmark = [
    pytest.mark.xdist_group("chromium"),  # one worker runs it
    pytest.mark.skipif(
        CHROMIUM is None, reason="NO CHROMIUM on the path: the page was not opened by anything"
    ),
]


# --- what is served


@tool(read_only=True)
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


@tool(approve=True)
def buy(item: str) -> str:
    """Buy something."""
    return f"bought {item}"


def calls(*items: str, name: str = "buy", field: str = "item") -> Message:
    """Return a reply that calls a tool once for each item."""
    made = [
        ToolCall(id=f"c{place}", name=name, arguments={field: item}, index=place)
        for place, item in enumerate(items)
    ]
    return Message(role="assistant", content=None, tool_calls=made)


class Gates:
    """Replies that wait, in the server's loop, until the test lets them go on."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = threading.Event()

    def wait(self, *texts: str) -> Callable[[Request], list[Any]]:
        """Return a reply of several texts, with a gate between each two."""

        def reply(request: Request) -> list[Any]:
            self.asked.set()
            steps: list[Any] = []
            for place, text in enumerate(texts):
                pieces = deltas(text)
                ends = pieces if place == len(texts) - 1 else pieces[:-1]
                steps += [*([self.gate] if place else []), *ends]
            return steps

        return reply


def agent(*replies: Any, **options: Any) -> Agent:
    """Return an agent with both tools and a model that says what is written down."""
    return Agent(
        ScriptedBackend(*replies, **options), "Be short.", tools=[weather, buy], name="ann"
    )


class Leaf(Job[int]):
    """Does nothing, or fails."""

    number: int

    async def task(self) -> int:
        if self.number == 1500:
            raise ValueError("the 1,500th")
        return self.number


class Crowd(Job[str]):
    """Has very many children."""

    policy = "isolate"
    question: str

    async def task(self) -> str:
        for number in range(2000):
            self.put_job(Leaf(number))
        return "all were put"


# --- the browser


@pytest.fixture(scope="module")
def browser() -> Generator[Any]:
    """One Chromium for all tests of the module."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Talk:
    """A page that is open, and what went wrong in it."""

    def __init__(self, page: Any, served: Served) -> None:
        self.page = page
        self.served = served
        self.wrong: list[str] = []
        self.expected: list[str] = []  # parts of messages that are not wrong
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda said: self.wrong.append(said.text))

    def ask(self, words: str) -> None:
        """Write a question and press Enter."""
        self.page.fill("#words", words)
        self.page.press("#words", "Enter")

    def end(self, count: int = 1) -> str:
        """Wait until so many answers have ended; return what the last line says of it."""
        note = self.page.locator("#talk > .spent, #talk > .error").nth(count - 1)
        note.wait_for()
        return str(note.inner_text())

    @property
    def said(self) -> list[str]:
        """What the agent has said, each reply by itself."""
        found: list[str] = self.page.locator(".message.assistant").all_inner_texts()
        return found

    def see(self, text: str) -> None:
        """Wait until a text is there."""
        self.page.get_by_text(text).first.wait_for()

    @property
    def focus(self) -> str:
        """The id, or the text, of what has the focus."""
        found: str = self.page.evaluate(
            "() => document.activeElement.id || document.activeElement.textContent"
        )
        return found


Open = Callable[..., Talk]


@pytest.fixture
def talk(browser: Any) -> Generator[Open]:
    """Serve things, and open the page of them; nothing may go wrong in it."""
    opened: list[tuple[Talk, Any, Any]] = []

    def talk(*things: Any, width: int = 1100, scheme: str = "light", **options: Any) -> Talk:
        server = serving(serve(*things, **options))
        served = server.__enter__()
        context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        made = Talk(context.new_page(), served)
        opened.append((made, context, server))
        made.page.goto(served.url)
        return made

    yield talk
    for _, context, server in opened:
        context.close()
        server.__exit__(None, None, None)
    wrong = [
        text
        for made, _, _ in opened
        for text in made.wrong
        if not any(part in text for part in made.expected)
    ]
    assert wrong == []


# --- talking


def test_an_answer_streams_beside_its_tree(talk: Open) -> None:
    """Words are there while the model still speaks; then time and tokens; the tree shows all."""
    gates = Gates()
    page = talk(agent(calls("Rome", name="weather", field="city"), gates.wait("It is ", "sunny.")))
    page.ask("How is Rome?")
    page.see("It is")
    assert page.page.locator("#send").is_hidden()
    assert page.page.locator("#tree .running").count() > 0
    page.served.do(gates.gate.set)

    assert re.fullmatch(r"[\d.]+ s · [\d,]+ tokens in, [\d,]+ out", page.end())
    assert page.said == ["It is sunny."]
    assert page.page.locator(".message.user").text_content() == "You: How is Rome?"
    assert page.page.locator("details.call.ok summary").inner_text() == (
        'weather {"city": "Rome"} → sunny in Rome'
    )
    assert page.page.locator("#tree .running").count() == 0
    assert (
        page.page.locator("#tree .completed")
        .first.get_attribute("aria-label")
        .startswith("ann, completed, ")
    )


def test_what_was_said_is_sent_again_until_a_new_talk(talk: Open) -> None:
    """The model hears the talk so far; after New talk it hears the new question alone."""
    ann = agent("One.", "Two.", "Three.")
    page = talk(ann)
    page.ask("a")
    page.end(1)
    page.ask("b")
    page.end(2)
    page.page.click("text=New talk")
    assert page.page.locator("#talk .message").count() == 0
    page.ask("c")
    page.end(1)
    heard = [[m.content for m in each.messages[1:]] for each in ann.backend.requests]
    assert heard == [["a"], ["a", "One.", "b"], ["c"]]


def test_enter_twice_asks_once(talk: Open) -> None:
    """A second Enter, before the server has answered the first, begins no second run."""
    ann = agent("One.", otherwise="again")
    page = talk(ann)
    page.page.fill("#words", "a")
    page.page.evaluate(
        """() => { for (let i = 0; i < 2; i++) document.getElementById("words").dispatchEvent(
            new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true})) }"""
    )
    page.end()
    assert len(ann.backend.requests) == 1


def test_a_question_may_be_sent_before_the_models_are_known(talk: Open) -> None:
    """It waits for them."""
    page = talk(agent("Here."))
    page.page.wait_for_selector("#hello")
    held: list[Any] = []
    page.page.route("**/v1/models", lambda route: held.append(route))
    with page.page.expect_request("**/v1/models"):
        page.page.goto(page.served.url)
    page.page.evaluate("""() => { words.value = "Early?"; say.requestSubmit() }""")
    held[0].continue_()
    page.end()
    assert page.said == ["Here."]


def test_an_answer_that_breaks_off_is_struck_out(talk: Open) -> None:
    """What is sent again is the answer that came after it."""
    page = talk(agent("Here."))
    page.page.wait_for_selector("#hello")
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
    said = page.page.evaluate("JSON.parse(sessionStorage.getItem('said'))")
    assert [each["content"] for each in said] == ["Hello?", "A whole one."]


def test_a_text_with_code_is_shown_so_and_nothing_of_it_runs(talk: Open) -> None:
    """Code gets boxes that can be copied; markup of a model's is text."""
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


def test_several_models_are_chosen_from(talk: Open) -> None:
    """Each is asked by its name, and the choice outlives a reload; one alone is a title."""
    page = talk({"first": agent("I am first."), "second": agent(otherwise="I am second.")})
    page.page.select_option("#model", "second")
    page.ask("Who?")
    page.end()
    assert page.said == ["I am second."]
    page.page.reload()
    page.page.wait_for_selector("#choice:visible")
    assert page.page.input_value("#model") == "second"
    alone = talk(agent("One."))
    alone.page.wait_for_selector("#hello")
    assert alone.page.inner_text("h1") == "ann"
    assert alone.page.locator("#choice").is_hidden()


# --- a person decides


@pytest.mark.parametrize(("button", "answer"), [("Yes, run it", "bought a hat"), ("No", "said no")])
def test_a_person_says_yes_or_no(talk: Open, button: str, answer: str) -> None:
    """S16: a tool that needs a yes waits for it; the model hears what came of it."""
    ann = agent(calls("a hat"), "Well.")
    page = talk(ann)
    page.ask("Buy")
    card = page.page.get_by_role("group", name="May buy run?")
    card.get_by_role("button", name=button).click()
    page.end()
    assert card.get_by_role("button").count() == 0
    assert "You said" in card.inner_text()
    assert answer in (ann.backend.requests[-1].messages[-1].content or "")
    assert page.focus == "words"


def test_two_questions_at_once_are_answered_each(talk: Open) -> None:
    """S16: a yes to one is none to the other."""
    ann = agent(calls("a hat", "a boat"), "Well.")
    page = talk(ann)
    page.ask("Buy")
    hat, boat = (page.page.locator(".ask", has_text=item) for item in ("a hat", "a boat"))
    boat.get_by_role("button", name="No").click()
    boat.get_by_text("You said no.").wait_for()
    hat.get_by_role("button", name="Yes").click()
    page.end()
    heard = {m.tool_call_id: m.content for m in ann.backend.requests[-1].messages[-2:]}
    assert heard["c0"] == "bought a hat"
    assert "bought" not in (heard["c1"] or "")


def test_a_stop_settles_what_is_asked(talk: Open) -> None:
    """S16: once the run is stopped nobody can answer, and the question has no buttons."""
    page = talk(agent(calls("a hat"), "Well."))
    page.ask("Buy")
    page.page.wait_for_selector(".ask button")
    page.page.click("#stop")
    assert page.end().startswith("Stopped · ")
    page.see("Not answered.")
    assert page.page.locator(".ask button").count() == 0


def test_a_question_is_there_after_a_reload(talk: Open) -> None:
    """S16: and is answered then."""
    page = talk(agent(calls("a hat"), "You have it."))
    page.ask("Buy")
    page.page.wait_for_selector(".ask button")
    page.page.reload()
    page.page.get_by_role("button", name="Yes").click()
    page.end()
    assert page.said == ["You have it."]


# --- what breaks


def test_stop_closes_the_models_stream_and_keeps_what_was_said(talk: Open) -> None:
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


def test_a_reload_goes_on_in_mid_answer(talk: Open) -> None:
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


def test_a_connection_that_is_cut_is_made_again(talk: Open) -> None:
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


def test_a_message_is_kept_while_the_server_is_away(talk: Open) -> None:
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


def test_a_run_that_is_forgotten_meanwhile_is_said_to_be(talk: Open) -> None:
    """S13: after a reload that comes too late the page is told so, and works on."""
    gates = Gates()
    page = talk(agent(gates.wait("Once ", "upon."), otherwise="Here."), keep=0.0)
    page.expected = ["404"]
    page.ask("A tale")
    page.see("Once")
    page.page.goto("about:blank")
    page.served.do(gates.gate.set)
    runs = page.served.app.runs
    page.served.do(lambda: until(lambda: not runs.of("")))
    page.page.goto(page.served.url)
    assert page.end() == "It did not work: there is no such run"
    assert page.page.input_value("#words") == "A tale"
    page.page.press("#words", "Enter")
    page.see("Here.")


def test_a_run_that_fails_says_so_and_no_more(talk: Open, caplog: pytest.LogCaptureFixture) -> None:
    """S14: nothing of the inside is told; the question is in the box again."""

    def fail(request: Request) -> str:
        raise ValueError("the secret of the inside")

    page = talk(agent(fail, "Well."))
    page.ask("Try")
    assert page.end() == "It did not work: the run failed"
    assert page.page.input_value("#words") == "Try"
    assert "secret" not in page.page.content()
    page.page.press("#words", "Enter")
    page.see("Well.")


def test_a_server_that_is_full_says_so(talk: Open) -> None:
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


def test_a_key_is_asked_for_until_it_is_right(talk: Open) -> None:
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


# --- eyes, keys, ears


def test_who_reads_above_is_not_moved(talk: Open) -> None:
    """A button leads to the newest; who is at the end stays at the end."""
    gates = Gates()
    page = talk(agent(gates.wait("line\n" * 80 + "half ", "the end")))
    bottom = "() => talk.scrollHeight - talk.scrollTop - talk.clientHeight"
    page.ask("Long")
    page.see("half")
    assert page.page.locator("#newest").is_hidden()
    page.page.evaluate("() => { talk.scrollTop = 0 }")
    page.page.evaluate("() => new Promise(requestAnimationFrame)")
    page.served.do(gates.gate.set)
    page.end()
    assert page.page.evaluate("talk.scrollTop") == 0
    page.page.get_by_role("button", name="Jump to the newest").click()
    assert page.page.evaluate(bottom) < 2
    assert page.page.locator("#newest").is_hidden()


def test_a_wide_fan_is_cut_but_for_what_failed(talk: Open) -> None:
    """Of 2,000 children 200 are shown, and the one that failed."""
    page = talk(Crowd)
    page.ask("many")
    page.end()
    page.page.locator("#tree > .completed").wait_for()
    page.page.locator(".more", has_text="1,799 more").wait_for()
    assert page.page.locator("#tree .failed").count() == 1
    assert page.page.locator("#tree li").count() == 203


def test_keys_alone_are_enough(talk: Open) -> None:
    """Tab goes through in reading order, Shift+Enter breaks a line, arrows walk the tree."""
    ann = agent(calls("Rome", name="weather", field="city"), "Sunny.")
    page = talk(ann)
    page.page.wait_for_selector("#hello")
    keys = page.page.keyboard
    assert page.focus == "words"
    keys.type("a")
    keys.press("Shift+Enter")
    keys.type("b")
    keys.press("Enter")
    page.end()
    assert ann.backend.requests[0].messages[-1].content == "a\nb"
    page.page.locator("#tree > .completed").wait_for()

    walked: list[str] = []
    page.page.locator("#anew").focus()
    for _ in range(6):
        keys.press("Tab")
        walked.append(page.focus)
    assert walked[:2] == ["show-tree", "talk"]
    assert walked[-3:-1] == ["words", "send"]
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


def test_a_screen_reader_finds_all_of_it(talk: Open) -> None:
    """Roles, names and levels are there; the clock is not read out."""
    page = talk(agent("Hello."))
    page.ask("Hi")
    page.end()
    page.page.locator("#tree > .completed").wait_for()
    seen = page.page.locator("body").aria_snapshot()
    for part in (
        'heading "ann" [level=1]',
        'button "New talk"',
        'button "Tree" [pressed]',
        'log "The talk"',
        'textbox "Your message"',
        'button "Send"',
        'complementary "The tree of the run"',
        'tree "Tasks"',
    ):
        assert part in seen, seen
    assert re.search(r'treeitem "ann, completed, [\d.]+ s" \[expanded\] \[level=1\]', seen), seen
    assert re.search(r'treeitem "respond, completed, [\d.]+ s".* \[level=2\]', seen), seen
    assert page.page.locator("#clock").get_attribute("role") == "timer"
    assert page.page.locator("#talk").get_attribute("aria-busy") == "false"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(talk: Open, scheme: str) -> None:
    """Nothing is wider than the screen, with code, names and words without end."""
    long = "x" * 300
    page = talk({long: agent(f"{long}\n```\n{long}\n```")}, width=400, scheme=scheme)
    page.ask(long)
    page.end()
    page.page.click("#show-tree")
    page.page.locator("#tree > .completed").wait_for()
    assert page.page.evaluate("document.documentElement.scrollWidth") == 400
    assert page.page.evaluate("talk.scrollWidth - talk.clientWidth") == 0
    for button in "#anew", "#show-tree", "#send":
        box = page.page.locator(button).bounding_box()
        assert box["x"] + box["width"] <= 400


def test_the_page_lets_nothing_in(talk: Open) -> None:
    """Its policy names its own script and style by their sums, and nothing else runs."""
    page = talk(agent("Hello."))
    response = page.page.request.get(page.served.url)
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; connect-src 'self';")
    assert "unsafe" not in policy
    page.page.wait_for_selector("#hello")
