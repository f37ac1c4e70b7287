"""An order that survives its process: charged once and announced once, whatever is killed when.

    python examples/durable_order.py                    # an order from its start to its end
    python examples/durable_order.py --order B-7 --feedback

Press Ctrl-C in the middle, or kill the process, and start the same again: it goes on where it was.
The second one waits for the customer's word, which comes from another process:

    python examples/durable_order.py --order B-7 --say "well packed"

The model is scripted, so that this runs without a key: it charges the customer and sends a mail.
The world outside is a file of its own, `shop.db`, that no journal knows of: there you can count.
`examples/durable_kills.py` kills this program at random moments, again and again.
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
    """What is outside: it does what it is told, and writes down what it did."""

    def __init__(self, file: Path, way: float) -> None:
        self.file = file
        self.way = way
        with closing(self.open()) as sql:
            sql.execute("create table if not exists charge (key text unique, name text)")
            sql.execute("create table if not exists mail (key text, name text)")

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.file, timeout=30, isolation_level=None)

    async def write(self, statement: str, order: str) -> bool:
        """Do something, with a way there and a way back on which a process may die."""
        await asyncio.sleep(self.way)
        with closing(self.open()) as sql:
            new = sql.execute(statement, (effect_key(), order)).rowcount == 1
        await asyncio.sleep(self.way)
        return new

    @tool(effect="keyed")
    async def charge(self, order: str, cents: int) -> str:
        """Charge the customer of an order."""
        # The shop looks at the key, and does nothing for one that it knows.
        new = await self.write("insert or ignore into charge values (?, ?)", order)
        show("charged" if new else "was charged before: the shop knows the key")
        return f"{cents} cents are paid"

    async def find_mail(self, order: str, text: str, effect_key: str) -> Done | NotDone:
        """Say whether a mail was sent: asked when nobody here knows."""
        with closing(self.open()) as sql:
            found = sql.execute("select 1 from mail where key = ?", (effect_key,)).fetchone()
        show(f"the mail is in doubt: the shop says it was {'sent' if found else 'not sent'}")
        return Done("it is sent") if found else NotDone()

    async def mail(self, order: str, text: str) -> str:
        """Send the customer of an order a mail."""
        await self.write("insert into mail values (?, ?)", order)
        show("mailed")
        return "it is sent"

    # The mail three times: in doubt the shop is asked; a person is; or it is just sent again,
    # for it was said that the shop looks at the key, which it does not.
    send_mail = tool(name="send_mail", reconcile=find_mail, reconcile_after=0)(mail)
    ask_person = tool(name="send_mail")(mail)
    send_again = tool(name="send_mail", effect="keyed")(mail)


MAILS = {"reconcile": "send_mail", "person": "ask_person", "again": "send_again"}


class Order(Durable[str]):
    """Charge, announce, pack; then wait for a while, and perhaps for the customer's word."""

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
    """Play the model: charge, then write the mail, then say so."""
    order = str(request.messages[0].content).split()[-1].rstrip(".")
    done = sum(message.role == "tool" for message in request.messages)
    if done == 2:
        return "Charged and announced."
    name, more = ("charge", {"cents": 1_900}) if not done else ("send_mail", {"text": "Soon!"})
    call = ToolCall(id=f"c{done}", name=name, arguments={"order": order, **more})
    return Message(role="assistant", tool_calls=[call])


def show(text: str) -> None:
    print(text, flush=True)  # at once, as the process may be killed


def main() -> None:
    """Handle an order, or be its customer."""
    parser = argparse.ArgumentParser(
        description="Handle an order, and survive: kill it, and start the same again."
    )
    parser.add_argument("--order", default="A-17", help="its name (%(default)s)")
    parser.add_argument("--feedback", action="store_true", help="wait for the customer's word")
    parser.add_argument("--say", metavar="WORD", help="be the customer, and say this")
    parser.add_argument(
        "--mail",
        choices=MAILS,
        default="reconcile",
        help="where nobody knows whether the mail was sent: ask the shop (%(default)s), wait for a"
        " person, or send it again, which doubles it",
    )
    parser.add_argument(
        "--way", type=float, default=0.5, help="seconds on the way to the shop (%(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="where runs.db and shop.db are (here)"
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
    """Be the customer."""
    async with Journal(journal) as runs:
        await runs.signal(run_id, "feedback", word)


if __name__ == "__main__":
    main()
