"""Agents that talk with each other, in pairs and groups, and with people.

A message comes in by `receive`, from a `Chat` or a group; `_answering` finds the answer (a
function's, a person's or the model's), which goes back the same way. Whoever listens hears it as it
grows.

- `_conversable`: the agents; `_reply`: their functions; `_answering`: one answer as a node
- `_chat`: a conversation of two as a node; `_transcript` prints one
- `_messages`: what counts as a message
- `_group`: one speaks at a time; `_speakers`: who is next; `_floor`: all hear, and ask to speak;
  `_talk`: what was said so far, as each who chooses a speaker gets it
- `_directory`: agents by name, and what a participant is; `_human`: asks people
- `_scope`: what a whole conversation shares: its limit of messages, and who listens
"""

from ._chat import Chat as Chat
from ._chat import ChatOptions as ChatOptions
from ._chat import ChatResult as ChatResult
from ._conversable import ConversableAgent as ConversableAgent
from ._conversable import GroupAggregator as GroupAggregator
from ._conversable import HumanInputMode as HumanInputMode
from ._conversable import UserProxyAgent as UserProxyAgent
from ._directory import Answer as Answer
from ._directory import Directory as Directory
from ._directory import Participant as Participant
from ._directory import Status as Status
from ._floor import GroupTalk as GroupTalk
from ._floor import role_prompt as role_prompt
from ._group import Group as Group
from ._group import GroupChat as GroupChat
from ._group import SpeakerPolicy as SpeakerPolicy
from ._human import HumanInput as HumanInput
from ._human import Question as Question
from ._human import Questions as Questions
from ._human import QueueInput as QueueInput
from ._human import TerminalInput as TerminalInput
from ._messages import TERMINATE as TERMINATE
from ._messages import MessageLike as MessageLike
from ._reply import NOT_MINE as NOT_MINE
from ._reply import ReplyResult as ReplyResult
from ._reply import SenderFilter as SenderFilter
from ._reply import reply as reply
from ._scope import MAX_MESSAGES as MAX_MESSAGES
from ._scope import Listener as Listener
from ._speakers import choose_by_model as choose_by_model
from ._speakers import random_speaker as random_speaker
from ._speakers import round_robin as round_robin
from ._talk import Talk as Talk
from ._transcript import Transcript as Transcript
