"""Groups whose members change during a conversation, and groups in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.conversing_agents import contents_by_sender, silent_user

from anabranch import AgentMessage
from anabranch.agents import (
    ConversableAgent,
    Directory,
    GroupChat,
    GroupTalk,
    ReplyResult,
    UserProxyAgent,
    reply,
)
from anabranch.agents.conversation import GroupConversation, random_speaker

KINDS = pytest.mark.parametrize("kind", [GroupChat, GroupTalk])


class ChangingMember(ConversableAgent):
    """Changes its group before it answers, and stops answering after some turns."""

    def __init__(
        self, name: str, team: Callable[[], Any], changes: list[tuple[str, bool]], turns: int
    ):
        super().__init__(name, max_consecutive_auto_reply=None)
        self.team, self.changes, self.turns = team, changes, turns

    @reply
    def change(self, message: AgentMessage) -> ReplyResult:
        members = self.team().members
        if self.changes:
            name, add = self.changes.pop(0)
            if add:
                members[name] = self.team().known[name]
            else:
                members.pop(name, None)
        self.turns -= 1
        return f"{self.name}!" if self.turns >= 0 else None


changes = st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=4)


@KINDS
@settings(deadline=None, max_examples=60)
@given(plans=st.lists(changes, min_size=1, max_size=3), seed=st.none() | st.integers(0, 9))
def test_members_come_and_go_while_they_talk(
    kind: Any, plans: list[list[tuple[str, bool]]], seed: int | None
) -> None:
    """No conversation fails, and each final member has received all messages of others."""

    async def main() -> None:
        made: dict[str, Any] = {}
        known = {
            name: ChangingMember(name, lambda: made["team"], plan, 3)
            for name, plan in zip("abcd", [*plans, [], [], []], strict=False)
        }
        members = [*known.values()][: len(plans)]
        options = {"speaker": random_speaker(seed)} if kind is GroupChat and seed else {}
        team = made["team"] = kind("team", members, max_turns=8, **options)
        team.known = known
        user = silent_user()
        async with asyncio.timeout(60):
            for number in range(2):
                if not team.members:
                    team.members["a"] = known["a"]
                await user.initiate_chat(team, f"Go {number}.", clear_history=False, max_turns=1)
        talk = team.talks["user"]
        assert [message.sender for message in talk.messages].count("user") == 2
        for name, member in team.members.items():
            # Messages of the group itself to one member are not part of the conversation.
            heard = [each for each in member.chat_messages.get("team", []) if each.sender != "team"]
            of_others = [each for each in contents_by_sender(heard) if each[0] != name]
            assert of_others == [
                each for each in contents_by_sender(talk.messages) if each[0] != name
            ]

    asyncio.run(main())


@KINDS
async def test_a_member_that_is_added_hears_what_was_said_and_answers(kind: Any) -> None:
    """In the same conversation."""

    class Inviting(ConversableAgent):
        @reply
        def invite(self, message: AgentMessage) -> ReplyResult:
            if "late" in team.members:
                return None
            team.members["late"] = ConversableAgent("late", default_auto_reply="I am late.")
            return "Come in."

    team: Any = kind("team", [Inviting("host")], max_turns=3)
    async with asyncio.timeout(60):
        await silent_user().initiate_chat(team, "Begin.", max_turns=1)
    talk = contents_by_sender(team.talks["user"].messages)
    assert talk[:3] == [("user", "Begin."), ("host", "Come in."), ("late", "I am late.")]


async def test_a_member_that_is_removed_while_it_is_chosen_is_not_asked() -> None:
    """The policy is called again."""

    def policy(talk: GroupConversation) -> str | None:
        if "b" in talk.names:
            team.members.pop("b")
            return "b"
        return None if talk.messages[-1].sender == "a" else "a"

    team = GroupChat("team", [ConversableAgent(name, default_auto_reply=name) for name in "ab"])
    team.speaker = policy
    await silent_user().initiate_chat(team, "Go.", max_turns=1)
    assert contents_by_sender(team.talks["user"].messages) == [("user", "Go."), ("a", "a")]


@KINDS
async def test_a_group_without_members_has_nothing_to_say(kind: Any) -> None:
    """After all have been removed."""
    team: Any = kind("team", [ConversableAgent("a")])
    team.members.clear()
    async with asyncio.timeout(60):
        result = await silent_user().initiate_chat(team, "Go.", max_turns=1)
    assert result.status == "no_answer"


# --- groups in groups

links = st.dictionaries(st.sampled_from("abcd"), st.sets(st.sampled_from("abcdx"), min_size=1))


def is_circular(groups: Mapping[str, set[str]], start: str) -> bool:
    """Return whether a group below `start` is a member of itself, through other groups."""
    reached, waiting = set[str](), [start]
    while waiting:
        for each in groups.get(waiting.pop(), ()):
            if each not in reached:
                reached.add(each)
                waiting.append(each)
    below: dict[str, set[str]] = {each: {*groups.get(each, ())} for each in (start, *reached)}
    for _ in below:
        for each in below:
            below[each] |= {far for near in below[each] for far in below.get(near, ())}
    return any(each in below[each] for each in below)


@settings(deadline=None)
@given(groups=links.filter(lambda groups: all(each not in of for each, of in groups.items())))
def test_a_group_that_contains_itself_is_refused_over_however_many(
    groups: dict[str, set[str]],
) -> None:
    """Other groups answer."""

    async def main() -> None:
        directory = Directory(ConversableAgent("x", default_auto_reply="x"))
        for name in sorted({*"abcd"} - {*groups}):
            directory.add(ConversableAgent(name, default_auto_reply=name))
        for name, members in groups.items():
            GroupChat(name, sorted(members), max_turns=1, directory=directory)
        user = UserProxyAgent(human_input_mode="NEVER", directory=directory)
        for name in groups:
            asking = user.initiate_chat(name, "Go.", max_turns=1)
            if is_circular(groups, name):
                with pytest.raises(ValueError, match="is a member of itself"):
                    await asking
            else:
                assert (await asking).status == "turn_limit"

    asyncio.run(main())


async def test_two_groups_in_each_other_are_refused() -> None:
    """The error shows the circle, and no member receives a message."""
    directory = Directory()
    GroupChat("one", ["two"], directory=directory)
    GroupChat("two", ["one"], directory=directory)
    user = UserProxyAgent(human_input_mode="NEVER", directory=directory)
    with pytest.raises(ValueError, match="a member of itself: one > two > one"):
        await user.initiate_chat("one", "Go.")
