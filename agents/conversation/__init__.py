"""Conversations of agents, in pairs and groups, and with people.

A participant receives a message from a `Chat` or a group. A reply function, a person or the model
answers it. Listeners receive the answer while it grows.

- `_participant`: participants, messages and the directory
- `_conversable`: agents that converse; `_reply`: their reply functions, and one reply as a node
- `_human`: questions to people, and the transcript
- `_chat`: a conversation of two participants, as a node
- `_group`: groups with a policy that chooses the speaker; `_turns`: groups whose members ask for
  their turn
- `_scope`: the session, the message limit and the listeners of a complete conversation
"""

from ._chat import Chat as Chat
from ._chat import ChatOptions as ChatOptions
from ._chat import ChatResult as ChatResult
from ._chat import ChatStream as ChatStream
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
