"""The runs of a journal as tables and as JSON values."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from shlex import quote
from typing import Any, cast

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..handlers.legible import legible
from ..messages.mask import mask
from ..store import PendingApproval, PendingDoubt, RunRow, RunView, RunWait
from ._call_layout import lay_out_arguments
from ._output import one_line

__all__ = [
    "STATE_STYLES",
    "describe_question",
    "describe_run",
    "describe_view",
    "describe_wait",
    "format_age",
    "format_value",
    "read_json",
    "show_run",
    "show_runs",
]

STATE_STYLES = {
    "pending": "dim",
    "running": "bold cyan",
    "suspended": "blue",
    "parked": "bold magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "abandoned": "bold red",
}
# The style of each kind of row in a history: success, failure, or a wait.
ROW_STYLES = {
    "result": "green",
    "gave": "green",
    "reply": "cyan",
    "message": "cyan",
    "failure": "red",
    "failed": "red",
    "cancelled": "yellow",
    "withdrawn": "yellow",
    "refused": "yellow",
    "gone": "yellow",
    "attempt": "yellow",
    "question": "magenta",
    "waits": "magenta",
    "letter": "magenta",
}
PLAIN_COLUMNS = 200  # of a table in a pipe
MAX_HISTORY_ROWS, MAX_VALUE_CHARS = 20, 300  # of a history without --rows, and of one value
MAX_TABLE_RUNS = 500
NUMBER_COLUMNS = ("age", "updated", "rows", "recoveries", "rec.")  # right-aligned columns


def format_value(value: Any, limit: int = MAX_VALUE_CHARS) -> str:
    """Return a JSON value or a text as one line of limited length, with secrets masked."""
    value = mask(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return one_line(text, limit)


def format_age(seconds: float) -> str:
    """Format a duration in its largest unit."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def describe_wait(wait: RunWait) -> str:
    """Return what a run waits for, in a few words."""
    until = "" if wait.until is None else f" until {_format_time(wait.until)}"
    match wait.kind:
        case "approval" | "doubt":
            return f"{wait.kind} {wait.number}: {legible(wait.name)}"
        case "signal":
            kind = f" ({legible(wait.type)})" if wait.type else ""
            return f"signal {legible(wait.name)}{kind}{until}"
        case "sleep":
            return f"sleep{until}"
        case "retry":
            return f"next try at {_format_time(wait.until or 0)}"
        case _:
            return f"{wait.kind}{until}"


def show_runs(views: list[RunView]) -> None:
    """Print a table of runs. More than `MAX_TABLE_RUNS` become plain lines, ten times faster."""
    now = time.time()
    console = _console()
    roomy = console.width >= 120
    last = ["recoveries" if roomy else "rec.", "waits for"]
    head = ["run", "class", "state", "age", "updated", "rows", *last]
    rows: list[list[str]] = []
    for view in views:
        run = view.run
        module, _, name = run.class_name.partition(":")
        rows.append([
            legible(run.run_id),
            legible(f"{module}:{name}" if roomy else name),
            "abandoned" if view.abandoned else run.state,
            format_age(now - run.created),
            format_age(now - run.updated),
            f"{run.rows:,}",
            str(run.recoveries or ""),
            "; ".join(map(describe_wait, view.waits)),
        ])  # fmt: skip
    if len(rows) > MAX_TABLE_RUNS:
        columns = [[*map(cell_len, column)] for column in zip(head, *rows, strict=True)]
        widths = [max(column) for column in columns]
        for number, row in enumerate([head, *rows]):
            spaces = [" " * (widths[at] - columns[at][number]) for at in range(len(head))]
            cells = [
                space + cell if head[at] in NUMBER_COLUMNS else cell + space
                for at, (cell, space) in enumerate(zip(row, spaces, strict=True))
            ]
            print("  ".join(cells).rstrip())
        return
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 2 if roomy else 1, 0, 0)
    )
    table.add_column("run", overflow="fold", min_width=10)
    table.add_column("class", overflow="ellipsis", no_wrap=True, min_width=5)
    table.add_column("state", no_wrap=True)
    for name in head[3:7]:
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("waits for", overflow="fold", min_width=12)
    for run_id, name, state, *others, waits in rows:
        state = Text(state, STATE_STYLES.get(state, ""))
        table.add_row(Text(run_id), Text(name), state, *others, Text(waits))
    console.print(table)


def show_run(
    view: RunView, questions: Iterable[PendingApproval | PendingDoubt], *, every: bool
) -> None:
    """Print a run with the last rows of its history, or with `every` row."""
    console, run = _console(), view.run
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, fact in _facts(view):
        facts.add_row(name, fact)
    console.print(Text(legible(run.run_id), "bold"))
    console.print(facts)
    for each in questions:
        _show_question(console, each)
    if view.letters:
        console.print(Text("\nsignals and messages", "bold"))
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for letter in view.letters:
            table.add_row(
                str(letter.id),
                _format_time(letter.time),
                letter.kind,
                Text(one_line(letter.name, 40) if letter.kind == "signal" else ""),
                Text(format_value(read_json(letter.value))),
                Text(
                    f"refused: {one_line(why, 200)}" if (why := view.refused.get(letter.id)) else ""
                ),
            )
        console.print(table)
    _show_history(console, view, every=every)


def describe_run(run: RunRow) -> dict[str, Any]:
    """Return the data of a run as a JSON value."""
    return {
        "run_id": run.run_id,
        "class": run.class_name,
        "version": run.version,
        "state": run.state,
        "created": _iso(run.created),
        "updated": _iso(run.updated),
        "rows": run.rows,
        "recoveries": run.recoveries,
        "queue": run.queue,
        "owner": run.owner,
    }


def describe_view(view: RunView, *, rows: bool) -> dict[str, Any]:
    """Return a run as a JSON value, with or without its history, signals and messages."""
    found = describe_run(view.run) | {
        "abandoned": view.abandoned,
        "error": view.error,
        "waits": [
            {**each._asdict(), "until": None if each.until is None else _iso(each.until)}
            for each in view.waits
        ],
    }
    if not rows:
        return found
    history = [
        {
            "number": row.seq,
            "time": _iso(row.time),
            "kind": row.kind,
            "ident": row.ident.hex(),
            "name": view.names.get(row.ident),
            "value": read_json(row.value),
        }
        for row in view.rows
    ]
    letters = [
        {
            "number": each.id,
            "time": _iso(each.time),
            "kind": each.kind,
            "name": each.name,
            "value": read_json(each.value),
            "refused": view.refused.get(each.id),
        }
        for each in view.letters
    ]
    return found | {
        "inputs": read_json(view.run.inputs),
        "result": None if view.result is None else read_json(view.result),
        "usage": view.usage,
        "gone": view.unreplayed,
        "letters": letters,
        "history": history,
    }


def describe_question(question: PendingApproval | PendingDoubt) -> dict[str, Any]:
    """Return an open question as a JSON value."""
    return {
        "number": question.number,
        "kind": "doubt" if isinstance(question, PendingDoubt) else "approval",
        "tool": question.tool,
        "arguments": dict(question.arguments),
        "agent": question.agent,
        "asked": question.asked.isoformat(timespec="milliseconds"),
    }


def _facts(view: RunView) -> Iterable[tuple[str, Text]]:
    run, now = view.run, time.time()
    yield "class", Text(legible(f"{run.class_name}, version {run.version}"))
    state = Text(run.state, STATE_STYLES.get(run.state, ""))
    if view.abandoned:
        state.append(" (its process has died; resume it)", STATE_STYLES["abandoned"])
    elif run.owner:
        state.append(f" by {legible(run.owner)}")
    if run.recoveries:
        state.append(f", resumed {run.recoveries} times without a new row")
    yield "state", state
    for name, when in ("started", run.created), ("updated", run.updated):
        yield (
            name,
            Text(f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S}, {format_age(now - when)} ago"),
        )
    inputs: dict[str, Any] = read_json(run.inputs)
    lines = [f"{name}: {format_value(value)}" for name, value in mask(inputs).items()]
    yield "inputs", Text("\n".join(lines) if lines else "none")
    if view.error is not None:
        yield "error", Text(format_value(view.error, 2000), STATE_STYLES.get(run.state, ""))
    if view.result is not None:
        yield "result", Text(format_value(read_json(view.result), 2000))
    if view.usage:
        each = [f"{legible(model)}: {_usage(taken)}" for model, taken in view.usage.items()]
        yield "usage", Text("\n".join(each))
    if view.unreplayed:
        yield (
            "not replayed",
            Text("\n".join(format_value(each, 2000) for each in view.unreplayed), "yellow"),
        )
    if view.waits:
        yield "waits for", Text("\n".join(map(describe_wait, view.waits)), ROW_STYLES["waits"])


def _show_question(console: Console, question: PendingApproval | PendingDoubt) -> None:
    """Print a question with its complete and exact arguments, so that a person can decide."""
    by = f" by {legible(question.agent)}" if question.agent else ""
    doubt = question.note if isinstance(question, PendingDoubt) else None
    kind = "approval" if doubt is None else "doubt"
    head = f"\n{kind} {question.number}: {one_line(question.tool, 80)}{by},"
    console.print(
        Text(f"{head} {format_age(time.time() - question.asked.timestamp())} ago", "magenta")
    )
    if doubt is not None:
        console.print(Text(f"  did it happen? {one_line(doubt, MAX_VALUE_CHARS)}"))
    arguments: Mapping[str, Any] = mask(dict(question.arguments))
    for rows in lay_out_arguments(arguments, console.width, console.encoding):
        console.print(Text("\n".join(rows)), soft_wrap=True)
    run_id, command = legible(quote(question.run_id)), "  anabranch runs approve"
    if doubt is None:
        options = [f"{run_id} {question.number}", f"{run_id} {question.number} --deny"]
    else:
        options = [f"{run_id} {question.number} {each}" for each in ("--done RESULT", "--not-done")]
    for each in options:
        console.print(Text(f"{command} {each}", "dim"), soft_wrap=True)


def _show_history(console: Console, view: RunView, *, every: bool) -> None:
    rows = view.rows if every else view.rows[-MAX_HISTORY_ROWS:]
    if not rows:
        console.print(Text("\nno rows yet", "dim"))
        return
    # Only the last column grows, to the full width, whatever the length of its texts.
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0), expand=True)
    table.add_column("row", justify="right", no_wrap=True)
    table.add_column("time", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column(
        "node", overflow="ellipsis", no_wrap=True, max_width=max(console.width // 5, 8)
    )
    table.add_column(
        "content", overflow="fold" if every else "ellipsis", no_wrap=not every, ratio=1
    )
    for row in rows:
        name = view.names.get(row.ident, row.ident.hex()[:8])
        table.add_row(
            str(row.seq),
            _format_time(row.time),
            Text(legible(row.kind), ROW_STYLES.get(row.kind, "")),
            Text(one_line(name.rpartition(":")[2], 60)),
            Text(format_value(_row_text(row.kind, read_json(row.value)))),
        )
    console.print()
    if len(rows) < len(view.rows):
        hidden = f"{len(view.rows) - len(rows):,} earlier rows: --rows shows all"
        console.print(Text(hidden, "dim"))
    console.print(table)


def _row_text(kind: str, value: Any) -> Any:
    """Return the content of a row, without fields that only Anabranch needs."""
    describe = ROW_TEXTS.get(kind)
    if describe is None or not isinstance(value, dict):
        return "" if value is None else value
    try:
        return describe(value)
    except (LookupError, TypeError, AttributeError):
        return cast("Any", value)  # another version wrote it


def _root_text(value: Any) -> str:
    key = f" [{value['key']}]" if value.get("key") else ""
    return f"{format_value(value['inputs'])}{key}"


def _message_text(value: Any) -> Any:
    message = value.get("message") or value.get("result")
    if message is None:
        return f"the reply of row {value['reply']}"
    calls = ", ".join(f"{each['name']}(...)" for each in message.get("tool_calls", ()))
    content = f"the result of row {value['gave']}" if "gave" in value else message.get("content")
    text = " ".join(filter(None, [content, calls and f"[calls {calls}]"]))
    return f"{message.get('role', 'tool')}: {text}"


def _failure_text(value: Any) -> str:
    """Return the failure of a node or of one of its effects."""
    found = value.get("failure", value)
    found = json.loads(found) if isinstance(found, str) else found
    return f"{found['type'][1]}: {found['message']}"


ROW_TEXTS: dict[str, Callable[[Any], Any]] = {
    "root": _root_text,
    "intent": lambda value: f"starts {value['name']}",
    "failure": _failure_text,
    "failed": _failure_text,
    "reply": _message_text,
    "message": _message_text,
    "attempt": lambda value: f"failed; next try at {_format_time(value['due'])}",
    "usage": lambda value: "; ".join(f"{name}: {_usage(each)}" for name, each in value.items()),
    "letter": lambda value: (
        "timed out" if value["id"] is None else read_json(value["value"].encode())
    ),
    "question": lambda value: (
        f"may it run? {format_value(value['arguments'])}"
        if value["kind"] == "approval"
        else f"did it happen? {format_value(value['arguments'])}"
    ),
    "waits": lambda value: describe_wait(
        RunWait(value["kind"], value.get("name", ""), 0, value.get("until"))
    ),
    "cancelled": lambda value: value["reason"],
}


def _usage(usage: Mapping[str, Any]) -> str:
    counts = [
        f"{count:,} {name.replace('_', ' ')}"
        for name, count in usage.items()
        if isinstance(count, int | float) and count
    ]
    return ", ".join(counts) or "nothing"


def read_json(value: bytes) -> Any:
    """Return a stored JSON value, or the text if it is not JSON; unwrap each `$exact`."""
    try:
        return json.loads(value, object_hook=lambda it: it.get("$exact", it)) if value else None
    except ValueError:
        return value.decode(errors="replace")


def _format_time(when: float) -> str:
    """Format a time, without the date if it is today."""
    local = datetime.fromtimestamp(when)
    return (
        f"{local:%H:%M:%S}"
        if local.date() == datetime.now().date()
        else f"{local:%Y-%m-%d %H:%M:%S}"
    )


def _iso(when: float) -> str:
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds")


def _console() -> Console:
    console = Console(highlight=False, markup=False)  # a run's name can contain markup
    if not console.is_terminal:
        console.width = PLAIN_COLUMNS
    return console
