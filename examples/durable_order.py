"""An order that survives its process: one charge and one mail, whenever the process is killed.

    python examples/durable_order.py                    # process a complete order
    python examples/durable_order.py --order B-7 --feedback

Press Ctrl-C, or kill the process, and run the same command again: the order continues. The second
order waits for the customer's feedback, which another process sends:

    python examples/durable_order.py --order B-7 --say "well packed"

The model is scripted, so no key is needed. It charges the customer and sends a mail. The shop is a
separate file, `shop.db`, which the journal does not use: it counts all effects.
`examples/durable_kills.py` kills this program at random moments.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from anabranch import AnabranchError, Backend, Message, ToolCall, run, tool
from anabranch.handlers import respond
from anabranch.messages import Request
from anabranch.store import Done, Durable, Journal, Live, NotDone, effect_key, live
from anabranch.testing import ScriptedBackend

ITEMS = ["lamp", "shade", "bulb"]


class Shop:
    """The external service: it executes each effect and records it."""

    def __init__(self, file: Path, way: float) -> None:
        self.file = file
        self.way = way
        with closing(self.open()) as sql:
            sql.execute("create table if not exists charge (key text unique, name text)")
            sql.execute("create table if not exists mail (key text, name text)")

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, timeout=30, isolation_level=None)

    async def write(self, statement: str, order: str) -> bool:
        """Execute an effect, with a delay before and after it during which the process may die."""
        await asyncio.sleep(self.way)
        with closing(self.open()) as sql:
            new = sql.execute(statement, (effect_key(), order)).rowcount == 1
        await asyncio.sleep(self.way)
        return new

    @tool(effect="keyed")
    async def charge(self, order: str, cents: int) -> str:
        """Charge the customer of an order."""
        # The shop ignores a repetition with a known effect key.
        new = await self.write("insert or ignore into charge values (?, ?)", order)
        show("charged" if new else "was charged before: the shop knows the key")
        return f"{cents} cents are paid"

    async def find_mail(self, order: str, text: str, effect_key: str) -> Done | NotDone:
        """Return whether a mail was sent: the `reconcile` of a call in doubt."""
        with closing(self.open()) as sql:
            found = sql.execute("select 1 from mail where key = ?", (effect_key,)).fetchone()
        show(f"the mail is in doubt: the shop says it was {'sent' if found else 'not sent'}")
        return Done("it is sent") if found else NotDone()

    async def mail(self, order: str, text: str) -> str:
        """Send a mail to the customer of an order."""
        await self.write("insert into mail values (?, ?)", order)
        show("mailed")
        return "it is sent"

    # Three variants for a mail in doubt: ask the shop, ask a person, or send it again. The last one
    # declares wrongly that the shop ignores a repeated effect key.
    send_mail = tool(name="send_mail", reconcile=find_mail, reconcile_after=0)(mail)
    ask_person = tool(name="send_mail")(mail)
    send_again = tool(name="send_mail", effect="keyed")(mail)


MAILS = {"reconcile": "send_mail", "person": "ask_person", "again": "send_again"}


class Order(Durable[str]):
    """Charge, send a mail, pack; then wait for a while, and perhaps for the customer's feedback."""

    order: str
    mail: str
    feedback: bool
    backend: Live[Backend] = live()
    shop: Live[Shop] = live()

    async def task(self) -> str:
        talk = self.durable.conversation("talk")
        if not talk.messages:
            talk.add(f"Handle the order {self.order}.")
        tools = [self.shop.charge, getattr(self.shop, MAILS[self.mail])]
        answer = await self.call_handler(respond(self.backend, talk, tools))
        for item in await self.durable.step(load_items, self.order):
            self.put_job(Pack(item), key=item)
        await self.durable.sleep(0.1)
        if self.feedback:
            show(f'waits: python {sys.argv[0]} --order {self.order} --say "well packed"')
        word = await self.durable.signal("feedback", str) if self.feedback else "nothing"
        return f"{self.order}: {answer.content} The customer says {word}."


class Pack(Durable[str]):
    item: str

    async def task(self) -> str:
        await asyncio.sleep(0.01)
        show(f"packed {self.item}")
        return self.item


def load_items(order: str) -> list[str]:
    return ITEMS


def play(request: Request) -> Message | str:
    """Script the model: charge, then send the mail, then report."""
    order = str(request.messages[0].content).split()[-1].rstrip(".")
    done = sum(message.role == "tool" for message in request.messages)
    if done == 2:
        return "Charged and announced."
    name, more = ("charge", {"cents": 1_900}) if not done else ("send_mail", {"text": "Soon!"})
    call = ToolCall(id=f"c{done}", name=name, arguments={"order": order, **more})
    return Message(role="assistant", tool_calls=[call])


def show(text: str) -> None:
    print(text, flush=True)  # at once, since the process may be killed


def main() -> None:
    """Process an order, or send the feedback of its customer."""
    parser = argparse.ArgumentParser(
        description="Process an order. Kill it, and run the same command again."
    )
    parser.add_argument("--order", default="A-17", help="the name of the order (%(default)s)")
    parser.add_argument("--feedback", action="store_true", help="wait for the customer's feedback")
    parser.add_argument("--say", metavar="WORD", help="send this feedback as the customer")
    parser.add_argument(
        "--mail",
        choices=MAILS,
        default="reconcile",
        help="for a mail in doubt: ask the shop (%(default)s), wait for a person, or send it again,"
        " which doubles it",
    )
    parser.add_argument(
        "--way",
        type=float,
        default=0.5,
        help="seconds of delay before and after each effect (%(default)s)",
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="the folder of runs.db and shop.db (here)"
    )
    options = parser.parse_args()
    journal, run_id = str(options.folder / "runs.db"), f"order-{options.order}"
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        if options.say is not None:
            asyncio.run(say(journal, run_id, options.say))
            return
        order = Order(options.order, options.mail, options.feedback)
        shop = Shop(options.folder / "shop.db", options.way)
        live = {"backend": ScriptedBackend(otherwise=play), "shop": shop}
        show("begins")
        show(run(order, journal=journal, run_id=run_id, live=live))
    except (AnabranchError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    except KeyboardInterrupt:
        sys.exit("\nThe order is suspended: start the same again.")


async def say(journal: str, run_id: str, word: str) -> None:
    """Send the customer's feedback."""
    async with Journal(journal) as runs:
        await runs.signal(run_id, "feedback", word)


if __name__ == "__main__":
    main()
