"""Which effect a call is: the same one in each attempt and each execution."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..commander import ConfigurationError, current_node
from ..commander.scope import is_aside_here
from ._held import Stuck
from ._json import digest
from ._unreplayed import SHORT, caller_in, caller_node, hold, wait_for_unreplayed

if TYPE_CHECKING:
    from ._scope import NodeScope

__all__ = ["Claim"]


class Claim:
    """A call of a node's, and the effect that it is.

    That is its ordinal among equal calls of the node, whatever attempt that is in. If no attempt
    has made that call before, it takes the place of one with the same name and inputs that an
    earlier attempt below the same durable or retried node has begun, and that this attempt does not
    make again. That is written, so that it is the same in each execution. A `harmless` one belongs
    to its attempt. One with a `key` is known by that alone, below its root.
    """

    def __init__(
        self, caller: NodeScope, name: str, text: str, *, harmless: bool, key: str | None
    ) -> None:
        self.caller = caller
        self.stable = key
        self._ledger = caller.ledger
        self._name = name
        self._text = text
        self._aside = is_aside_here()
        self._inputs = digest(text).hex()[:SHORT]
        # Where the next attempt looks for it: below what, and in which attempt it is.
        self.shared: dict[str, str] = {}
        # Its identity in this attempt alone, while it may still take the place of another call.
        self._here: bytes | None = None
        self.ident = self._identify(harmless) if key is None or harmless else self._find(key)
        self._ledger.claimed.add(self.ident)

    def _identify(self, harmless: bool) -> bytes:
        caller, ledger, name, text = self.caller, self._ledger, self._name, self._text
        number = caller.number(f"effect {name} {text}", aside=is_aside_here())
        here = digest(caller.now, "effect", name, text, number)
        if harmless:
            return here
        mine = digest(caller.free_now, "effect", name, text, number)
        if caller.free_before is not None:
            before = digest(caller.free_before, "effect", name, text, number)
            intent = ledger.find(before, "intent")
            if intent is not None and (
                caller_in(json.loads(intent.value)) == caller.now.hex()
                or ledger.find(mine, "intent") is None
            ):
                mine = before
        if not caller.retried:
            return mine
        holder = caller.holder
        attempt, of = (each.hex()[:SHORT] for each in (holder.now, digest(holder.free, name, text)))
        self.shared = {"of": of, "in": attempt}
        if (row := ledger.find(here, "takes")) is not None:
            return bytes.fromhex(json.loads(row.value)["effect"])
        if ledger.taken_effects.get(mine) == attempt:
            return here
        ledger.taken_effects[mine] = attempt
        if mine not in ledger.begun[of] and self._left():
            self._here = here
        return mine

    def _left(self) -> list[bytes]:
        """Return what earlier attempts have begun like it, and this one has not so far."""
        attempt, taken = self.shared["in"], self._ledger.taken_effects
        begun = self._ledger.begun[self.shared["of"]].items()
        return [each for each, by in begun if by != attempt and taken.get(each) != attempt]

    def _find(self, key: str) -> bytes:
        """Return who it is by its key; refuse a key that another call of these attempts has."""
        caller, ledger = self.caller, self._ledger
        caller.number(f"key {key}", key, what="calls of tools")
        above = [*caller.up()]
        root = next(scope for scope in above if scope.is_root or scope.parent is None)
        ident = digest(root.free, "key", key)
        before = ledger.keyed.get(ident)
        if before and all(scope.attempt == attempt for scope, attempt in before):
            raise ConfigurationError(f"the key {key!r} is given to two calls of tools in one run")
        ledger.keyed[ident] = [(scope, scope.attempt) for scope in above]
        what = f"effect {self._name} {self._text}"
        if (row := ledger.find(ident, "takes")) is not None:
            found = bytes.fromhex(json.loads(row.value)["effect"])
        elif ledger.find(ident, "intent") is not None:
            return ident
        else:  # an earlier version of the code may have made this call without a key
            number, _ = (caller._counts or {}).get(what, (0, None))
            found = digest(caller.free_now, "effect", self._name, self._text, number)
            if ledger.find(found, "intent") is None:
                return ident
            value = json.dumps({"effect": found.hex(), "in": ""}).encode()
            ledger.append(ident, "takes", value)
        caller.number(what)  # it still counts among those without a key
        return found

    async def settle(self) -> None:
        """Take the place of a call that an earlier attempt has made, once this one does not."""
        here, self._here = self._here, None
        if here is None:
            return
        ledger, holder = self._ledger, caller_node(self.caller.holder)

        def decide() -> bool:
            return not self._left() or holder is None or holder in Stuck(ledger)

        if await hold(ledger, decide) and (left := self._left()):
            self.ident, attempt = left[0], self.shared["in"]
            ledger.taken_effects[self.ident] = attempt
            ledger.claimed.add(self.ident)
            value = {"effect": self.ident.hex(), "in": attempt}
            ledger.append(here, "takes", json.dumps(value).encode())

    async def wait_for_unreplayed(self) -> None:
        """Hold it, as it is new, while it may be a recorded one that has moved."""
        await wait_for_unreplayed(self.caller, self._name, self._inputs, self.stable)

    def intent(self) -> dict[str, Any]:
        """Return what is written of it before it is done: who calls it, where and with what."""
        by = self._ledger.intents.name_caller(self.caller)
        value: dict[str, Any] = {"by": by, "name": self._name}
        if led := self._count_led(len(by.split())):
            value["led"] = led
            unseen = [scope.first_unseen() for scope in islice(self.caller.up(), led)]
            if any(unseen):
                value["unseen"] = unseen
        if self.stable is not None:
            value["key"] = self.stable
        at = (caller_node(self.caller) or current_node())._node_name
        return {**value, "inputs": self._inputs, "at": at}

    def _count_led(self, most: int) -> int:
        """Return for how many nodes, the caller and those above it, their own tasks led to it."""
        count = 0
        for scope in () if self._aside else self.caller.up():
            count += 1
            if scope.aside or count == most:
                break
        return count

    def attempt(self) -> str:
        """Say which attempt of its caller this is."""
        if self.stable is None:
            return self.caller.now.hex()
        # Wherever the call is now: the attempts of all above that had more than one.
        return " ".join(str(each.attempt) for each in self.caller.up() if each.attempt > 1)
