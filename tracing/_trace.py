"""A recording read: the tree of a run as it was, with what each node did, took and spent.

Everything that shows a run reads this and nothing else: the page, the terminal, Perfetto, `diff`.
It is built line by line, so a recording that still grows is followed by feeding it the next lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, cast

from ..backends import Price
from ..commander.errors import ConfigurationError
from ..messages import Usage
from ._line import VERSION
from ._trace_node import Life, Spell, TraceError, TraceNode, TraceRequest, TraceState

__all__ = [
    "Life",
    "Spell",
    "Trace",
    "TraceError",
    "TraceNode",
    "TraceRequest",
    "TraceState",
    "read",
]


class Trace:
    """The tree of a recording; times are in seconds since it began.

    `root` is the commander. `feed` takes the next line. `lives` are the processes that have written
    to it, `prices` what models cost as far as the recording says, `missed` how many events it
    lacks. `end` is the time of the last line.
    """

    def __init__(self) -> None:
        self.root = TraceNode(0, "Commander", None, 0.0, "running")
        self.lives: list[Life] = []
        self.prices: dict[str, Price] = {}
        self.missed = 0
        self.end = 0.0
        # Whether what is open may still go on; else it is "lost".
        self.live = False
        # Nodes that are not as they were, in order, for whoever puts a dictionary here and empties
        # it: what draws a large tree many times looks at these alone.
        self.changed: dict[TraceNode, None] | None = None
        # The nodes of the life that is read, by number; those of durable runs, by who they are.
        self._here: dict[int, TraceNode] = {0: self.root}
        self._known: dict[tuple[str, str], TraceNode] = {}
        self._runs_here: set[str] = set()
        # What nodes of these had spent in earlier lives, which this one may count again.
        self._earlier: dict[TraceNode, dict[str, Usage]] = {}
        # Numbers of requests are those of the process that asked: one node asks in one process.
        self._asked: dict[tuple[int, int], TraceRequest] = {}
        # What gaps have told of, and no line of its own.
        self._guessed: set[int] = set()
        # What is told of this life's nodes; and what it lacks, as in a gap: that is the root's.
        self._spent: dict[str, Usage] = {}
        self._lacking: dict[str, Usage] = {}

    def __iter__(self) -> Iterator[TraceNode]:
        """Yield all nodes but the commander, each before its children."""
        nodes = self.root.walk()
        next(nodes)
        return nodes

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def time(self) -> float:
        """The time of day at which the recording began."""
        return self.lives[0].time if self.lives else 0.0

    def node(self, number: int) -> TraceNode | None:
        """Return the node that has this number in the last process that has written."""
        return self._here.get(number)

    def usage(self, node: TraceNode | None = None) -> dict[str, Usage]:
        """Return what `node` (default: all) and all below it have spent, by model."""
        total: dict[str, Usage] = {}
        for each in (node or self.root).walk():
            for model, used in each.usage.items():
                _add(total, model, used)
        return total

    def usage_by_agent(self) -> dict[str, dict[str, Usage]]:
        """Return what each agent has spent, by model; what is nobody's stands under ""."""
        total: dict[str, dict[str, Usage]] = {}
        stack = [(self.root, "")]
        while stack:
            node, agent = stack.pop()
            agent = node.own_agent or agent
            for model, used in node.usage.items():
                _add(total.setdefault(agent, {}), model, used)
            stack.extend((child, agent) for child in node.children)
        return total

    def cost(
        self, usage: Mapping[str, Usage], prices: Mapping[str, Price] | None = None
    ) -> float | None:
        """Return what `usage` costs, as far as prices are known; None if none of it has one."""
        known = self.prices if prices is None else {**self.prices, **prices}
        found = [known[model].of(used) for model, used in usage.items() if model in known]
        return sum(found) if found else None

    @property
    def first_failure(self) -> TraceNode | None:
        """The node that failed first, or call of a tool that did; of several the deepest."""
        bad = [(node.ended, node) for node in self if node.is_bad and node.ended is not None]
        first = min((ended for ended, _ in bad), default=None)
        return max(
            (node for ended, node in bad if ended == first),
            key=lambda node: sum(1 for _ in node.upwards()),
            default=None,
        )

    # --- showing

    def html(self, file: str | PathLike[str], *, prices: Mapping[str, Price] | None = None) -> None:
        """Write a page that shows it; it opens from disk and asks nobody."""
        from ._page import write_page

        write_page(self, file, prices)

    def perfetto(self, file: str | PathLike[str]) -> None:
        """Write it as a trace for ui.perfetto.dev or chrome://tracing."""
        from ._perfetto import write_perfetto

        write_perfetto(self, file)

    # --- reading

    def feed(self, said: Mapping[str, Any]) -> None:
        """Take the next line in. One of a kind that is not known says nothing.

        Raises `ConfigurationError` if the recording is of a later version, or not one at all.
        """
        if "recording" in said:
            self._begin_life(said)
            return
        if not self.lives:
            raise ConfigurationError("this is no recording: its first line does not say so")
        at = self.lives[-1].offset + _time(said.get("t", 0.0))
        self.end = max(self.end, at)
        kind = said.get("e")
        if kind == "put":
            self._put(said, at)
        elif kind == "price":
            names = "input", "output", "cached_input"
            self.prices[said["model"]] = Price(*(said[name] for name in names))
        elif kind == "gap":
            self._fill_gap(said, at)
        elif kind == "end":
            self.lives[-1].usage = usage = _usage(said["usage"])
            self._charge_lacking(usage)
            self._end_life()
        elif (node := self._here.get(said.get("n", -1))) is not None:
            self._happen(node, str(kind), said, at)
            self._note(node)

    def _note(self, node: TraceNode) -> None:
        if self.changed is not None:
            self.changed[node] = None

    def _begin_life(self, said: Mapping[str, Any]) -> None:
        if not isinstance(said["recording"], int) or said["recording"] > VERSION:
            raise ConfigurationError(
                f"this recording is of version {said['recording']!r}; this program reads those up"
                f" to {VERSION}: a newer anabranch wrote it"
            )
        if self.lives:
            self.lose_open()
        time = _time(said["time"])
        # A life begins after the one before, also where the clock of the day was put back.
        offset = max(self.end, time - self.lives[0].time) if self.lives else 0.0
        self.end = offset
        life = Life(time, offset, said["pid"], said["host"], bool(said["content"]))
        self.lives.append(life)
        self.root.state = "running"
        self.root.spells.append(Spell(offset))
        self.root.ended = None
        self._here = {0: self.root}
        self._runs_here, self._guessed = set(), set()
        self._asked, self._spent, self._lacking = {}, {}, {}

    def _end_life(self) -> None:
        self.lives[-1].ended = True
        self.root.state = "completed"
        self.root.ended = self.root.spells[-1].end = self.end

    def lose_open(self) -> None:
        """Take it that nothing more comes: what is open now never got to its end."""
        self._lose_below(self.root, self.end)
        if self.root.is_open and not self.lives[-1].ended:
            self._lose(self.root, self.end)

    def _lose_below(self, node: TraceNode, at: float) -> None:
        """Take what is open below a node as lost: a worker that died has not told of its end."""
        stack = [child for child in node.children if child.is_open]
        while stack:
            lost = stack.pop()
            self._lose(lost, at)
            stack.extend(child for child in lost.children if child.is_open)

    def _lose(self, node: TraceNode, at: float) -> None:
        node.state, node.ended = "lost", at
        node.waits, node.waits_for, node.waits_at = "", (), ""
        self._close_spell(node, at)
        self._note(node)

    def _put(self, said: Mapping[str, Any], at: float) -> None:
        number, kept = said["n"], bool(said.get("kept"))
        run_id, identity = place = said.get("run", ""), said.get("id", "")
        if run_id and run_id not in self._runs_here:
            self._runs_here.add(run_id)
            self._forget_spent(run_id)
        node = self._known.get(place)
        if node is not None:  # it comes again
            node.number, node.state, node.ended, node.error = number, "pending", None, None
            node.waits, node.waits_for, node.waits_at = "", (), ""
            node.lives += 1
            if not kept:
                node.reason, node.text, node.host = "", "", ""
        elif number in self._guessed:  # a gap came before it
            node = self._here[number]
            self._guessed.remove(number)
        else:
            node = TraceNode(number, said["name"], self._here.get(said["p"], self.root), at)
            assert node.parent is not None
            node.parent.children.append(node)
        if identity:
            self._known[place] = node
        node.run_id, node.identity, node.kept = run_id, identity, kept
        node.own_agent = said.get("agent", node.own_agent)
        node.own_session = str(said.get("session", node.own_session))
        node.host = said.get("host", node.host)
        self._here[number] = node
        self._note(node)

    def _forget_spent(self, run_id: str) -> None:
        """Begin at nothing: a life counts anew what its run has spent before, as far as it does."""
        for (run, _), node in self._known.items():
            if run == run_id:
                if node.usage:
                    self._earlier[node] = node.usage
                node.usage, node.others = {}, {}
                self._note(node)

    def _happen(self, node: TraceNode, kind: str, said: Mapping[str, Any], at: float) -> None:
        match kind:
            case "started":
                node.state = "running"
                node.spells.append(Spell(at))
            case "joining":
                node.state = "joining"
                if node.spells:
                    node.spells[-1].joined = at
            case "retried":
                node.state = "pending"
                node.retried.append((at, TraceError.read(said.get("error"))))
                self._lose_below(node, at)
                self._close_spell(node, at)
            case "completed" | "failed" | "cancelled":
                node.state = kind
                node.ended = at
                node.error = TraceError.read(said.get("error"))
                node.reason = said.get("reason", "")
                node.waits, node.waits_for, node.waits_at = "", (), ""
                self._lose_below(node, at)
                self._close_spell(node, at)
            case "placed":
                node.host = said["host"]
            case "charged":
                self._charge(node, said)
            case "waiting":
                node.waits = said.get("text", "")
                node.waits_for, node.waits_at = tuple(said.get("on", ())), said.get("at", "")
            case "slow":
                node.slow.append((at, said["seconds"], said.get("at", "")))
            case "text":
                node.text += said["text"]
            case "called":
                node.tool, node.call_id, node.call_size = said["tool"], said["call"], said["size"]
                node.arguments = said.get("arguments")
            case "answered":
                node.status, node.result_size = said["status"], said["size"]
                node.result = said.get("result", "")
            case "request" | "first_chunk" | "reply":
                self._ask(node, kind, said, at)
            case _:
                pass

    def _close_spell(self, node: TraceNode, at: float) -> None:
        if node.spells and node.spells[-1].end is None:
            node.spells[-1].end = at
        for request in node.requests:
            if request.end is None:  # its stream was never closed
                request.end, request.left = at, True

    def _charge(self, node: TraceNode, said: Mapping[str, Any]) -> None:
        for account, amount in said["usage"].items():
            if isinstance(amount, (int, float)):
                node.others[account] = node.others.get(account, 0) + amount
            if not isinstance(amount, dict):
                continue
            used = left = Usage(**cast("dict[str, int]", amount))
            _add(self._spent, account, used)
            if said.get("again") and node.kept:
                left = self._restore(node, account, used)
            if left != Usage():
                _add(node.usage, account, left)

    def _restore(self, node: TraceNode, model: str, used: Usage) -> Usage:
        """Give back to a node that does not run again what it and those below it had spent.

        Returns what the journal has beyond that; all of `used` if it has less.
        """
        found = [each for each in node.walk() if model in self._earlier.get(each, ())]
        left = used
        for each in found:
            left = _minus(left, self._earlier[each][model])
        if min(left.model_dump().values()) < 0:
            return used
        for each in found:
            _add(each.usage, model, self._earlier[each].pop(model))
            self._note(each)
        return left

    def _ask(self, node: TraceNode, kind: str, said: Mapping[str, Any], at: float) -> None:
        number = said["q"]
        key = said["n"], number
        if kind == "request":
            request = TraceRequest(
                number,
                said["provider"],
                said["model"],
                at,
                said.get("options", {}),
                said.get("messages", 0),
                tuple(said.get("tools", ())),
                said.get("replayed", False),
                input=said.get("input", []),
            )
            node.requests.append(request)
            self._asked[key] = request
        elif (request := self._asked.get(key)) is None:
            pass
        elif kind == "first_chunk":
            request.first = at
        else:
            del self._asked[key]
            request.end, request.chunks = at, said["chunks"]
            request.finish_reason = said.get("finish", "")
            request.error = TraceError.read(said.get("error"))
            request.left = said.get("left", False)
            request.usage = _usage(said["usage"])
            request.output = said.get("output")

    def _fill_gap(self, said: Mapping[str, Any], at: float) -> None:
        """Go on after a gap: what is not there any more has ended, nobody knows how."""
        self.missed += said["missed"]
        there = {number for number, *_ in said["nodes"]}
        for number, parent, name, state in said["nodes"]:
            if number not in self._here:
                above = self._here.get(parent, self.root)
                node = self._here[number] = TraceNode(number, name, above, at)
                above.children.append(node)
                self._guessed.add(number)
            self._note(self._here[number])
            if number and self._here[number].state != state:
                self._here[number].state = state
                if state != "pending" and not self._here[number].spells:
                    self._here[number].spells.append(Spell(at))
        for number, node in self._here.items():
            if number not in there and node.is_open:
                self._lose(node, at)
        self._charge_lacking(_usage(said["usage"]))

    def _charge_lacking(self, usage: dict[str, Usage]) -> None:
        """Charge the root with what this life has spent, and no line has said of whom."""
        for model, used in usage.items():
            lacking = _minus(used, self._spent.get(model, Usage()))
            before = self._lacking.get(model, Usage())
            if min(lacking.model_dump().values()) >= 0 and lacking != before:
                self._lacking[model] = lacking
                _add(self.root.usage, model, _minus(lacking, before))
                self._note(self.root)


def _time(said: Any) -> float:
    if not isfinite(time := float(said)):
        raise ValueError(f"{time} is no time")
    return time


def _add(total: dict[str, Usage], model: str, used: Usage) -> None:
    total[model] = total.get(model, Usage()) + used


def _usage(said: Mapping[str, Any]) -> dict[str, Usage]:
    usage: dict[str, Any] = {model: used for model, used in said.items() if type(used) is dict}
    return {model: Usage(**used) for model, used in usage.items()}


def _minus(more: Usage, less: Usage) -> Usage:
    fields = {name: getattr(more, name) - getattr(less, name) for name in Usage.model_fields}
    return Usage(**fields)


def read(file: str | Path) -> Trace:
    """Read a recording.

    One that is still written is read as far as it is; of one whose process was killed, the nodes
    that were open are "lost". Raises `ConfigurationError` for what is no recording.
    """
    from ._record import is_recorded

    trace = Trace()
    path = Path(file)
    live = is_recorded(path)
    try:
        with path.open(encoding="utf-8") as lines:
            feed_lines(trace, lines, str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the recording {str(file)!r}: {error}") from None
    if not trace.lives:
        raise ConfigurationError(f"{str(file)!r} is empty, and no recording")
    trace.live = live
    if not live:
        trace.lose_open()
    return trace


def feed_lines(trace: Trace, lines: Iterable[str], name: str, before: int = 0) -> None:
    """Feed whole lines, which follow those `before`.

    One that was cut off, as its process was killed, is passed over.
    """
    for number, line in enumerate(lines, before + 1):
        if not line.endswith("\n"):
            break
        try:
            said = json.loads(line)
            trace.feed(said)
        except RecursionError:
            raise ConfigurationError(
                f"{name!r} is no recording: line {number} nests too deep"
            ) from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{name!r}: {error}") from None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise ConfigurationError(
                f"{name!r} is no recording, or is damaged at line {number}: {error!r:.200}"
            ) from None
