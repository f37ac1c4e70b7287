"""The page of a recording, in a real Chromium without a network."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.recording_page import (
    CONTRASTS,
    HOSTILE_TEXTS,
    SELECTED,
    RecordingPage,
    conversation_trace,
    event_line,
    node_lines,
    record_agent,
    request_lines,
    selected_row,
    table_cells,
    trace_of,
    visible_rows,
    wide_trace,
)

from anabranch.backends import Price
from anabranch.messages import Usage
from anabranch.tracing import Trace, read

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 30_000  # milliseconds

pytestmark = [
    pytest.mark.contract("S3"),
    pytest.mark.xdist_group("chromium"),  # one worker runs it
    pytest.mark.skipif(
        CHROMIUM is None, reason="NO CHROMIUM on the path: the page was not opened by anything"
    ),
]


# --- the browser


@pytest.fixture(scope="module")
def opened() -> Generator[RecordingPage]:
    """One Chromium for all tests of the module, with its network off."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(offline=True)
        context.set_default_timeout(PATIENCE)
        yield RecordingPage(context.new_page())
        browser.close()


Show = Callable[..., Any]


@pytest.fixture
def show(opened: RecordingPage, tmp_path: Path) -> Generator[Show]:
    """Open the page of a trace; a request or an error in the page fails the test."""
    page = opened.page
    opened.wrong.clear()

    def show(
        trace: Trace,
        *,
        width: int = 1280,
        height: int = 800,
        scheme: str = "light",
        prices: dict[str, Price] | None = None,
    ) -> Any:
        file = tmp_path / "page.html"
        trace.html(file, prices=prices)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield show
    assert opened.wrong == []


# --- display


@pytest.mark.parametrize(("size", "listed"), [(5, 7), (498, 3), (9_998, 3)])
def test_page_opens_with_the_network_off(show: Show, size: int, listed: int) -> None:
    """For a tree of any size it sends no request, and draws only visible rows."""
    page = show(wide_trace(size))

    assert len(visible_rows(page)) == listed
    assert page.locator("#numbers").inner_text().startswith(tuple("0123456789"))
    assert f"{size + 1:,} nodes" in page.locator("#numbers").inner_text()
    assert page.evaluate("window.anabranchReady") > 0


def test_page_forbids_itself_every_request(show: Show) -> None:
    """Its policy allows no request, and no other script."""
    page = show(wide_trace(1))
    policy = page.locator("meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_many_similar_siblings_are_one_row(show: Show) -> None:
    """Ended similar siblings start as one row; a failed one is beside it."""
    page = show(wide_trace(9_998, failed=5000))

    assert visible_rows(page)[2] == "Leaf, 9,997 similar, completed"
    assert visible_rows(page)[3].startswith("Leaf #5000, failed, ")
    assert (
        page.locator(".row.group")
        .inner_text()
        .replace("\n", " ")
        .startswith("Leaf \u00d7 9,997 completed")
    )


def test_row_of_many_opens_and_folds(show: Show) -> None:
    """An open group has thousands of rows; only visible ones are elements."""
    page = show(wide_trace(9_998))
    page.locator(".row.group").click()

    page.keyboard.press("Enter")
    assert 20 < len(visible_rows(page)) < 80
    page.keyboard.press("End")
    assert selected_row(page).startswith("Leaf #9999, completed")
    assert page.locator(SELECTED).get_attribute("aria-posinset") == "9998"
    assert page.locator(SELECTED).get_attribute("aria-setsize") == "9998"
    page.keyboard.press("ArrowLeft")
    assert selected_row(page) == "Leaf, 9,998 similar, completed"
    page.keyboard.press(" ")
    assert len(visible_rows(page)) == 3


def test_keys_walk_the_tree(show: Show) -> None:
    """Arrow keys go up, down, in and out; the focus follows the selection."""
    page = show(conversation_trace())

    walked = []
    for key in (
        "ArrowDown",
        "ArrowDown",
        "ArrowRight",
        "ArrowLeft",
        "ArrowLeft",
        "ArrowDown",
        "Home",
        "End",
    ):
        page.keyboard.press(key)
        walked.append(selected_row(page).partition(",")[0])
    assert walked == [
        "Talk #1",
        "ask #2",
        "search #3",
        "ask #2",
        "ask #2",
        "ask #4",
        "Commander",
        "ever #6",
    ]
    assert page.locator("[aria-label^='ask #2']").get_attribute("aria-expanded") == "false"


def test_screen_reader_finds_the_tree(show: Show) -> None:
    """The accessibility tree has the items, each with name, level, position and state."""
    page = show(conversation_trace())

    said = page.locator("[role=tree]").aria_snapshot()
    assert said.startswith('- tree "Nodes of the run"')
    about = "failed, 290 ms, agent critic, 1 request, 30 tokens, ExceptionGroup"
    assert re.search(rf'treeitem "ask #4, {about}[^"]*" \[.*level=3', said)
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    items = [node for node in nodes if node.get("role", {}).get("value") == "treeitem"]
    assert len(items) == 7
    facts = [
        {each["name"]: each["value"].get("value") for each in node["properties"]} for node in items
    ]
    assert sorted(fact["level"] for fact in facts) == [1, 2, 3, 3, 3, 4, 4]
    assert sum(bool(fact.get("selected")) for fact in facts) == 1
    roles = {node.get("role", {}).get("value") for node in nodes}
    assert {
        "tree",
        "tablist",
        "tab",
        "tabpanel",
        "searchbox",
        "separator",
        "complementary",
    } <= roles


def test_first_failure_is_one_key_away(show: Show) -> None:
    """`f` selects the first failure in any folded part, with its error and line."""
    page = show(wide_trace(9_998, failed=7000))
    page.locator(".row").nth(1).click()
    page.keyboard.press("ArrowLeft")
    assert len(visible_rows(page)) == 2

    page.keyboard.press("f")
    assert selected_row(page).startswith("Leaf #7000, failed")
    said = page.locator("#pane-node").inner_text()
    assert "ValueError" in said
    assert "too small" in said
    assert "app.py:9 in task" in said


def test_search_and_filters_show_matches_and_their_ancestors(show: Show) -> None:
    """By names, agents, models, kinds and states; Escape shows all again."""
    page = show(conversation_trace())
    everything = visible_rows(page)

    page.keyboard.press("/")
    page.keyboard.type("SLOW DOWN")
    assert visible_rows(page) == []
    page.keyboard.press("Control+A")
    page.keyboard.type("no such node")
    assert page.locator("#nothing").is_visible()
    page.keyboard.press("Escape")
    assert visible_rows(page) == everything
    page.keyboard.type("#3")
    page.keyboard.press("Enter")
    assert page.locator("#found").inner_text() == "1 of 7 match"
    assert [row.partition(",")[0] for row in visible_rows(page)] == [
        "Commander",
        "Talk #1",
        "ask #2",
        "search #3",
    ]
    page.locator("#clear").click()
    page.locator("#kind").select_option("failed")
    assert page.locator("#found").inner_text() == "2 of 7 match"
    page.locator("#kind").select_option("")
    page.locator("#agent").select_option("critic")
    assert [row.partition(",")[0] for row in visible_rows(page)] == [
        "Commander",
        "Talk #1",
        "ask #4",
    ]
    page.locator("#agent").select_option("")
    page.locator("#model").select_option("small")
    assert [row.partition(",")[0] for row in visible_rows(page)] == [
        "Commander",
        "Talk #1",
        "ask #2",
    ]
    page.locator("#model").select_option("")
    page.locator("[data-state=running]").click()
    assert "ever #6" in visible_rows(page)[-1]


def test_details_show_the_wait_of_a_node(show: Show) -> None:
    """The reason, the line of code, and a link to the other node."""
    page = show(conversation_trace())
    page.locator("[aria-label^='wait #5']").click()

    said = page.locator("#pane-node").inner_text()
    assert "is running, awaits ever#6" in said
    assert "app.py:50 in task" in said
    page.locator("#pane-node .links button").click()
    assert selected_row(page).startswith("ever #6")


def test_details_show_requests_tools_and_attempts(show: Show) -> None:
    """Requests with times, options and tokens; calls with arguments and results; each attempt."""
    page = show(conversation_trace())

    page.locator("[aria-label^='ask #2']").click()
    said = page.locator("#pane-node").inner_text()
    for part in (
        "writer",
        "2 requests",
        "temperature",
        "10.0 ms",
        "50.0 ms",
        "stop",
        "1,000",
        "400",
    ):
        assert part in said
    page.locator("[aria-label^='search #3']").click()
    said = page.locator("#pane-node").inner_text()
    for part in ("c1", "12 characters", '"query": "rivers"', "no answer", "failed"):
        assert part in said
    page.locator("[aria-label^='ask #4']").click()
    said = page.locator("#pane-node").inner_text()
    for part in (
        "ExceptionGroup",
        "OSError",
        "RateLimited",
        "slow down",
        "app.py:40 in task",
        "80.0 ms",
    ):
        assert part in said


def test_problems_are_listed_in_order_of_time(show: Show) -> None:
    """Failed, open and retried nodes, and nodes that blocked the loop, are in one pane."""
    page = show(conversation_trace())
    page.keyboard.press("2")

    said = page.locator("#pane-problems").inner_text()
    parts = [
        "search #3",
        "no answer",
        "ask #4",
        "ExceptionGroup: two",
        "Still open (3)",
        "awaits ever#6",
        "Retried (1)",
        "RateLimited",
        "Blocked the event loop (1)",
        "app.py:40 in task",
    ]
    places = [said.index(part) for part in parts]
    assert places == sorted(places)


def test_sums_equal_the_traces(show: Show) -> None:
    """Tokens and cost by agent and by model equal `usage_by_agent`, `usage` and `cost`."""
    trace = conversation_trace()
    prices = {"small": Price(10.0, 100.0)}
    page = show(trace, prices=prices)
    page.keyboard.press("3")

    def line(used: dict[str, Usage]) -> list[str]:
        fields = "input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"
        sums = [f"{sum(getattr(each, field) for each in used.values()):,}" for field in fields]
        cost = trace.cost(used, prices)
        assert cost is not None
        return [*sums, f"{cost:.3g}"]

    by_agent = {agent: line(used) for agent, used in trace.usage_by_agent().items()}
    by_model = {model: line({model: used}) for model, used in trace.usage().items()}
    everything = {"all": line(trace.usage())}
    assert table_cells(page, "By agent") == by_agent | everything
    assert table_cells(page, "By model") == by_model | everything


def test_time_of_a_name_is_split(show: Show) -> None:
    """Into body, tools, models, children and queue, which add up to the time of the nodes."""
    page = show(conversation_trace())
    page.keyboard.press("4")

    found = table_cells(page, "By name of node")
    # ask #2 took 280 ms: 10 queued, 100 at models, 50 with its child. ask #4 took 300 ms: 110
    # queued (100 of them between attempts), 50 at a model.
    assert found["ask \u00d7 2"] == ["260 ms", "\u2013", "150 ms", "50.0 ms", "120 ms"]
    assert found["search \u00d7 1"] == ["\u2013", "40.0 ms", "\u2013", "\u2013", "10.0 ms"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(show: Show, scheme: str) -> None:
    """Text has the contrast that WCAG AA requires, light and dark, on each background."""
    page = show(conversation_trace(), scheme=scheme)

    texts = ["text", "dim", "accent", "failed-text", "lost", "model", "tool"]
    pairs = [(text, under) for text in texts for under in ("panel", "chosen", "hover", "sunk")]
    pairs += [
        ("on-bar", bar) for bar in ("own", "model", "tool", "failed", "cancelled", "lost", "retry")
    ]
    found = page.evaluate(
        CONTRASTS,
        [list(pair) for pair in pairs],
    )
    assert [pair for pair in found if pair[2] < 4.5] == []


def test_theme_follows_the_system_until_it_is_changed(show: Show) -> None:
    """The page is dark if the system is; `t` changes it, and the canvas too."""
    page = show(conversation_trace(), scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)

    page.keyboard.press("t")
    light = page.evaluate(ground)
    assert dark != light
    page.keyboard.press("t")
    assert page.evaluate(ground) == dark


def test_timeline_is_zoomed_at_the_pointer_and_moved(show: Show) -> None:
    """The wheel zooms at the pointer, `z` to a node, `0` shows the complete run again."""
    page = show(conversation_trace())
    sight = page.locator("#range")
    whole = sight.inner_text()
    box = page.locator("#timeline").bounding_box()

    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 100)
    page.mouse.wheel(0, -600)
    visible_rows(page)
    zoomed = sight.inner_text()
    assert zoomed != whole
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100, steps=3)
    page.mouse.up()
    visible_rows(page)
    assert sight.inner_text() != zoomed
    page.keyboard.press("0")
    visible_rows(page)
    assert sight.inner_text() == whole
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + 3.5 * 24)
    visible_rows(page)
    assert "search #3" in page.locator("#pane-node h2").inner_text()
    assert (
        sight.inner_text() == "195 ms \u2013 255 ms" or sight.inner_text() == "196 ms \u2013 254 ms"
    )


def test_a_tooltip_shows_the_activity_at_the_pointer(show: Show) -> None:
    """Over the timeline of a node; beside it there is none."""
    page = show(conversation_trace())
    box = page.locator("#timeline").bounding_box()
    whole = 0.7 * 1.075  # visible seconds, with the margins

    def point(row: int, time: float) -> str:
        at = box["x"] + (time + 0.7 * 0.015) / whole * box["width"]
        page.mouse.move(at, box["y"] + (row + 0.5) * 24)
        return " ".join(filter(None, page.locator("#tip > *").all_inner_texts()))

    first = "request to large, 50.0 ms, first chunk after 10.0 ms"
    assert point(2, 0.06) == f"ask #2 completed, 270 ms {first}"
    assert point(3, 0.203) == "search #3 completed, 40.0 ms waits for its start"
    assert point(3, 0.23) == "search #3 completed, 40.0 ms call of search"
    assert point(4, 0.55).startswith("ask #4 failed, 290 ms blocked the loop for 80.0 ms")
    assert point(3, 0.6) == "search #3 completed, 40.0 ms"


def test_panes_are_made_wider_by_keys(show: Show) -> None:
    """Arrow keys move the splitter between two panes."""
    page = show(conversation_trace())
    before = page.locator("#tree").bounding_box()["width"]

    page.locator("#split").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tree").bounding_box()["width"] == before + 24
    assert page.locator("#split").get_attribute("aria-valuenow") == str(int(before + 24))


def test_help_lists_the_keys(show: Show) -> None:
    """`?` opens and closes the list of keys."""
    page = show(conversation_trace())

    page.keyboard.press("?")
    assert "first failure" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("?")
    assert not page.locator("#help").is_visible()


def test_names_and_content_stay_text(show: Show) -> None:
    """No name, error, argument, reply or option becomes markup."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(HOSTILE_TEXTS, 1):
        at = number / 100
        lines += [
            event_line(
                "put",
                at,
                number,
                p=0,
                name=text,
                agent=text,
                session=text,
                host=text,
                run=text,
                id=text,
            ),
            event_line("started", at, number),
            event_line(
                "called", at, number, tool=text or "t", call=text, size=1, arguments={text: [text]}
            ),
            *request_lines(
                number,
                text,
                at,
                {"input_tokens": 1},
                output={
                    "role": text,
                    "content": text,
                    "reasoning": text,
                    "tool_calls": [{text: text}],
                },
                error={"type": text, "message": text, "at": text},
            ),
            event_line("answered", at, number, status=text, size=2, result=text),
            event_line("waiting", at, number, on=[1, 99], at=text, text=text),
            event_line("text", at, number, text=text),
            event_line(
                "failed", at + 0.06, number, error={"type": text, "message": text, "at": text}
            ),
        ]
    page = show(
        trace_of(
            *lines,
            {"e": "price", "model": "__proto__", "input": 1.0, "output": 1.0, "cached_input": 1.0},
        )
    )
    page.locator("[role=treeitem]").first.focus()

    for number, text in enumerate(HOSTILE_TEXTS, 1):
        page.keyboard.press("ArrowDown")
        assert f"#{number}" in page.locator("#pane-node h2").inner_text()
        seen = page.locator("#pane-node .error b").first.evaluate("each => each.textContent")
        assert seen.isascii() is text.isascii()
    for key in "234":
        page.keyboard.press(key)
    assert page.evaluate("window.broken") is None
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0


def test_lost_nodes_and_missing_events_are_reported(show: Show) -> None:
    """Open nodes of a killed process are marked; a note has the size of a gap."""
    page = show(
        trace_of(
            *node_lines(1, "Job", parent=0)[:2],
            *node_lines(2, "Leaf")[:2],
            {
                "e": "gap",
                "t": 0.1,
                "missed": 12,
                "nodes": [[0, None, "Commander", "running"], [1, 0, "Job", "running"]],
                "usage": {},
            },
        )
    )

    assert visible_rows(page)[1].startswith("Job #1, lost")
    said = page.locator("#notes").inner_text()
    assert "2 nodes" in said
    assert "lacks 12 events" in said


def test_a_run_of_two_processes_is_one_page(show: Show) -> None:
    """The executions of a durable run are listed, and a click shows each."""
    trace = trace_of(*node_lines(1, "Job", parent=0)[:2])
    trace.feed({"recording": 1, "time": 1_790_000_600.0, "pid": 8, "host": "two", "content": True})
    for line in (*node_lines(1, "Job", parent=0), {"e": "end", "t": 1.0, "usage": {}}):
        trace.feed(line)
    page = show(trace)

    assert "2 processes" in page.locator("#notes").inner_text()
    page.get_by_text("execution 2 (pid 8, two)").click()
    visible_rows(page)
    assert page.locator("#range").inner_text().startswith("10 m 0 s")


def test_page_fits_a_narrow_screen(show: Show) -> None:
    """At 400 pixels the tree, the timeline and the details are visible, and not cut off."""
    page = show(wide_trace(300, failed=100), width=400, height=800)
    page.keyboard.press("f")

    assert page.evaluate("document.documentElement.scrollWidth") == 400
    for name in ("#tree", "#timeline", "#pane-node", "#first", "#search"):
        box = page.locator(name).bounding_box()
        assert box["width"] > 30
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400
    assert page.locator("#side").bounding_box()["height"] > 200
    assert page.locator("#scroller").bounding_box()["height"] > 150


def test_deep_tree_is_walked_to_its_end(show: Show) -> None:
    """A tree of 3,000 levels opens, and its last level is found."""
    lines = [
        line
        for number in range(1, 3001)
        for line in node_lines(number, f"Level{number}", number - 1)
    ]
    page = show(trace_of(*lines))

    page.keyboard.press("/")
    page.keyboard.type("Level3000")
    page.keyboard.press("Enter")
    visible_rows(page)  # it is drawn
    assert page.locator(SELECTED).get_attribute("aria-level") == "3001"


def test_the_page_of_a_real_run_is_complete(show: Show, tmp_path: Path) -> None:
    """It has the agent, its tool's result, tokens and cost."""
    file = tmp_path / "run.jsonl"
    with ThreadPoolExecutor(1) as pool:  # this thread has the browser's loop
        pool.submit(asyncio.run, record_agent(file)).result()
    page = show(read(file))

    assert "220 tokens 0.0004 cost" in page.locator("#numbers").inner_text().replace("\n", " ")
    page.keyboard.press("f")
    assert "no entry for anabranch" in page.locator("#pane-node").inner_text()
    page.keyboard.press("3")
    assert table_cells(page, "By agent")["sage"] == ["200", "0", "20", "0", "0.0004"]
