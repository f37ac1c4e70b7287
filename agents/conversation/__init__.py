"""Agents that talk with each other, in pairs and groups, and with people.

A message comes in by `receive`, from a `Chat` or a group. The reply comes from a function, a person
or the model, and goes back the same way. Listeners receive it while it grows.

- `_conversable`: the agents; `_reply`: their reply functions, and one reply as a node
- `_chat`: a conversation of two as a node
- `_group`: groups with one speaker at a time, and who is next; `_turns`: groups in which all read
  everything and ask for their turn
- `_participant`: participants, messages and the directory; `_human`: people and the transcript
- `_scope`: what a complete conversation shares: its limit of messages, and the listeners
"""

from ._chat import Chat as Chat
from ._chat import ChatOptions as ChatOptions
from ._chat import ChatResult as ChatResult
from ._conversable import ConversableAgent as ConversableAgent
from ._conversable import GroupAggregator as GroupAggregator
from ._conversable import HumanInputMode as HumanInputMode
from ._conversable import UserProxyAgent as UserProxyAgent
from ._group import Group as Group
from ._group import GroupChat as GroupChat
from ._group import GroupConversation as GroupConversation
from ._group import SpeakerPolicy as SpeakerPolicy
from ._group import choose_by_model as choose_by_model
from ._group import random_speaker as random_speaker
from ._group import round_robin as round_robin
from ._human import HumanInput as HumanInput
from ._human import Question as Question
from ._human import Questions as Questions
from ._human import QueueInput as QueueInput
from ._human import TerminalInput as TerminalInput
from ._human import Transcript as Transcript
from ._participant import TERMINATE as TERMINATE
from ._participant import Answer as Answer
from ._participant import Directory as Directory
from ._participant import MessageLike as MessageLike
from ._participant import Participant as Participant
from ._participant import Status as Status
from ._reply import NOT_MINE as NOT_MINE
from ._reply import ReplyResult as ReplyResult
from ._reply import SenderFilter as SenderFilter
from ._reply import reply as reply
from ._scope import MAX_MESSAGES as MAX_MESSAGES
from ._scope import Listener as Listener
from ._turns import GroupTalk as GroupTalk
from ._turns import role_prompt as role_prompt
