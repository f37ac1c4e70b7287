"""Stored names of classes and functions, which stay when a class or function moves.

Journals, cassettes, indexes and the identities of nodes refer to a class or a function as
`module:qualname`. `MOVED` maps these names to current places. So old data stays readable, and new
data uses the same names. No other module creates or resolves stored names.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["MOVED", "find_loaded", "find_stored", "place_of", "stored_name"]

# Stored name: current place. Add an entry with each move or rename. At a second move, change the
# place. Never remove an entry or change its stored name: data on users' disks has it. An entry also
# covers the classes and functions inside its own. The identity of a node includes its name and the
# names of its attributes, which this table does not translate: a renamed class needs `name=`.
MOVED: dict[str, str] = {
    "anabranch.store._approvals:PendingApproval": "anabranch.store._view:PendingApproval",
    "anabranch.store._approvals:PendingDoubt": "anabranch.store._view:PendingDoubt",
    "anabranch.store._approvals:_Question": "anabranch.store._view:_PendingQuestion",
    "anabranch.store._call:_Call": "anabranch.store._call:_ToolCall",
    "anabranch.store._call:_Called": "anabranch.store._call:_CallNode",
    "anabranch.store._call:_Once": "anabranch.store._call:_CallAttempt",
    "anabranch.store._canonical:_Walk": "anabranch.store._json:_Walk",
    "anabranch.store._claim:Claim": "anabranch.store._match:EffectMatch",
    "anabranch.store._codec:_Exact": "anabranch.store._json:ExactIntegers",
    "anabranch.store._codec:_Schema": "anabranch.store._codec:_StorableSchema",
    "anabranch.store._conversation:KeptConversation": "anabranch.store._conversation:DurableConversation",
    "anabranch.store._conversation:Talks": "anabranch.store._conversation:Conversations",
    "anabranch.store._conversation:_Entry": "anabranch.store._conversation:_RecordedMessage",
    "anabranch.store._durable:_Called": "anabranch.store._durable:_CallableTool",
    "anabranch.store._effect:KeptEffect": "anabranch.store._effect:DurableEffect",
    "anabranch.store._endings:Endings": "anabranch.store._completion_order:CompletionOrder",
    "anabranch.store._file:JournalFile": "anabranch.store._journal_file:JournalFile",
    "anabranch.store._file:Letter": "anabranch.store._journal_file:Letter",
    "anabranch.store._file:RunRow": "anabranch.store._journal_file:RunRow",
    "anabranch.store._gone:Gone": "anabranch.store._unreplayed:Unreplayed",
    "anabranch.store._held:Stuck": "anabranch.store._match:_Stuck",
    "anabranch.store._ledger:Ledger": "anabranch.store._execution:Execution",
    "anabranch.store._look:Partial": "anabranch.store._view:Partial",
    "anabranch.store._look:RunView": "anabranch.store._view:RunView",
    "anabranch.store._look:Wait": "anabranch.store._view:RunWait",
    "anabranch.store._mark:Mark": "anabranch.store._last_commit:CommitNote",
    "anabranch.store._mark:Noted": "anabranch.store._last_commit:LastCommit",
    "anabranch.store._roots:PutBy": "anabranch.store._roots:RoundPutter",
    "anabranch.store._rows:Cancel": "anabranch.store._execution:Cancel",
    "anabranch.store._run:KeptRun": "anabranch.store._run:OwnedRun",
    "anabranch.store._scope:Kept": "anabranch.store._scope:DurableNode",
    "anabranch.store._seal:BytesCodec": "anabranch.store._checksums:BytesCodec",
    "anabranch.store._seal:Row": "anabranch.store._checksums:Row",
    "anabranch.store._seal:Seal": "anabranch.store._checksums:Checksums",
    "anabranch.store._session:Written": "anabranch.store._session:ResultCodec",
    "anabranch.store._session:_Call": "anabranch.store._session:_SessionCallNode",
    "anabranch.store._shape:Shape": "anabranch.store._codec:Shape",
    "anabranch.store._shape:_Missing": "anabranch.store._codec:_Missing",
    "anabranch.store._shape:_NotWritten": "anabranch.store._codec:_LiveMarker",
    "anabranch.store._watch:Call": "anabranch.store._inbox:FileCall",
    "anabranch.store._watch:Watch": "anabranch.store._inbox:FileWatch",
    "anabranch.store._writer:Bell": "anabranch.store._file_thread:WakeUp",
    "anabranch.store._writer:Claim": "anabranch.store._file_thread:Lease",
    "anabranch.store._writer:Writer": "anabranch.store._file_thread:FileThread",
    "anabranch.store._writer:_Asked": "anabranch.store._file_thread:_QueuedCall",
    "anabranch.store._writer:_Stop": "anabranch.store._file_thread:_Stop",
    "anabranch.agents.orchestration._planner:Engineer": "anabranch.agents.orchestration._strategies:PlanningEngineer",
    "anabranch.agents.orchestration._planner:Executor": "anabranch.agents.orchestration._strategies:Executor",
    "anabranch.agents.orchestration._planner:ExecutorEngineer": "anabranch.agents.orchestration._strategies:ExecutorEngineer",
    "anabranch.agents.orchestration._planner:Move": "anabranch.agents.orchestration._strategies:Move",
    "anabranch.agents.orchestration._planner:Plan": "anabranch.agents.orchestration._strategies:Plan",
    "anabranch.agents.orchestration._planner:Planner": "anabranch.agents.orchestration._strategies:Planner",
    "anabranch.agents.orchestration._planner:PlannerEngineer": "anabranch.agents.orchestration._strategies:PlannerEngineer",
    "anabranch.agents.orchestration._planner:PlannerState": "anabranch.agents.orchestration._strategies:PlannerState",
    "anabranch.agents.orchestration._planner:Review": "anabranch.agents.orchestration._strategies:Review",
    "anabranch.agents.orchestration._planner:Reviewer": "anabranch.agents.orchestration._strategies:Reviewer",
    "anabranch.agents.orchestration._planner:ReviewerEngineer": "anabranch.agents.orchestration._strategies:ReviewerEngineer",
    "anabranch.agents.orchestration._reflexion:Actor": "anabranch.agents.orchestration._strategies:ReflexionActor",
    "anabranch.agents.orchestration._reflexion:ActorEngineer": "anabranch.agents.orchestration._strategies:ReflexionActorEngineer",
    "anabranch.agents.orchestration._reflexion:Reflector": "anabranch.agents.orchestration._strategies:Reflector",
    "anabranch.agents.orchestration._reflexion:ReflectorEngineer": "anabranch.agents.orchestration._strategies:ReflectorEngineer",
    "anabranch.agents.orchestration._reflexion:ReflexionState": "anabranch.agents.orchestration._strategies:ReflexionState",
    "anabranch.agents.orchestration._single_agent:Actor": "anabranch.agents.orchestration._strategies:SingleActor",
    "anabranch.agents.orchestration._single_agent:ActorEngineer": "anabranch.agents.orchestration._strategies:SingleActorEngineer",
    "anabranch.agents.orchestration._single_agent:SingleAgentState": "anabranch.agents.orchestration._strategies:SingleAgentState",
    "anabranch.agents.orchestration._strategy:PastAction": "anabranch.agents.orchestration._strategies:PastAction",
    "anabranch.agents.orchestration._strategy:Prompts": "anabranch.agents.orchestration._engineer:Prompts",
    "anabranch.agents.layers._sessions:_Answer": "anabranch.agents.layers._sessions:_AnswerCodec",
    "anabranch.agents.layers._executor:_Execute": "anabranch.agents.layers._executor:ExecutorCall",
    "anabranch.commander._limits:NodeLimits": "anabranch.commander._options:NodeLimits",
    "anabranch.commander._reach:BodyWait": "anabranch.commander._task_waits:BodyWait",
    "anabranch.commander._reach:LocalFuture": "anabranch.commander._task_waits:LocalFuture",
    "anabranch.commander._reach:Postponed": "anabranch.commander._task_waits:Postponed",
    "anabranch.commander._reach:Wait": "anabranch.commander._task_waits:Wait",
    "anabranch.commander._record:Defaults": "anabranch.commander._record:RareDefaults",
    "anabranch.commander._record:Kept": "anabranch.commander._record:RareValues",
    "anabranch.commander._record:Rare": "anabranch.commander._record:RareField",
    "anabranch.commander._seat:Loan": "anabranch.commander._slot:LentWait",
    "anabranch.commander._seat:Seat": "anabranch.commander._slot:Slot",
    "anabranch.commander._waits:Waits": "anabranch.commander._wait_events:WaitPublisher",
    "anabranch.commander._watch:Watch": "anabranch.commander._block_detector:BlockDetector",
    "anabranch.commander._watch:_Looks": "anabranch.commander._block_detector:_Looks",
    "anabranch.commander._watch:_Watcher": "anabranch.commander._block_detector:_Watcher",
    "anabranch.messages._asked:Asked": "anabranch.messages._request_events:RequestEvent",
    "anabranch.messages._asked:Replied": "anabranch.messages._request_events:ReplyEvent",
    "anabranch.messages._asked:Working": "anabranch.messages._request_events:ProgressEvent",
    "anabranch.messages._delta:Delta": "anabranch.messages._message:Delta",
    "anabranch.messages._delta:ToolCallDelta": "anabranch.messages._message:ToolCallDelta",
    "anabranch.messages._tool_call_error:ToolCallError": "anabranch.messages.arguments:ToolCallError",
    "anabranch.messages.sqlite:DatabaseFile": "anabranch.files.sqlite:DatabaseFile",
    "anabranch.agents.conversation._scope:Scope": "anabranch.agents.conversation._scope:ConversationScope",
    "anabranch.agents.layers._cut:Cut": "anabranch.agents.layers._interrupted:InterruptedCall",
    "anabranch.agents.layers._memory:OwnSession": "anabranch.agents.layers._memory:TemporarySession",
    "anabranch.agents.layers._stream:Speech": "anabranch.agents.layers._stream:StreamedReply",
    "anabranch.commander._place:Away": "anabranch.commander._place:RemoteBody",
    "anabranch.commander.kept:Effect": "anabranch.commander.durable:Effect",
    "anabranch.commander.kept:KeptReply": "anabranch.commander.durable:DurableReply",
    "anabranch.commander.scope:Attempt": "anabranch.commander.durable:DurableAttempt",
    "anabranch.commander.scope:KeptRun": "anabranch.commander.durable:DurableRun",
    "anabranch.commander.scope:Put": "anabranch.commander.durable:PutOptions",
    "anabranch.commander.scope:Scope": "anabranch.commander.durable:DurableScope",
    "anabranch.commander.tap:RunPlace": "anabranch.commander.tap:RunIdentity",
    "anabranch.commander.thread:Notice": "anabranch.commander.thread:CancelNotice",
    "anabranch.cli._exit:Killed": "anabranch.cli._exit:KilledBySignal",
    "anabranch.cli._question:Question": "anabranch.cli._call_layout:CallLayout",
    "anabranch.cli._terminal:LegibleLog": "anabranch.cli._output:LegibleLog",
    "anabranch.cli._tree_model:Collapsed": "anabranch.cli._tree_model:CollapsedNodes",
    "anabranch.cli.chat._agent_partner:Cut": "anabranch.cli.chat._agent_partner:InterruptedTurn",
    "anabranch.cli.chat._agent_partner:_Turn": "anabranch.cli.chat._agent_partner:_AnswerTurn",
    "anabranch.cli.chat._agent_partner:_Watch": "anabranch.cli.chat._agent_partner:_DoubtPoller",
    "anabranch.cli.chat._asking:PromptQuestion": (
        "anabranch.cli.chat._prompt_question:PromptQuestion"
    ),
    "anabranch.cli.chat._asking:PromptQuestions": (
        "anabranch.cli.chat._prompt_question:PromptQuestions"
    ),
    "anabranch.cli.chat._attach:Attached": "anabranch.cli.chat._attach:AttachedMessage",
    "anabranch.cli.chat._commands:obey": "anabranch.cli.chat._commands:execute_command",
    "anabranch.cli.chat._live:LiveScreen": "anabranch.cli.chat._live_screen:LiveScreen",
    "anabranch.cli.chat._live:Stage": "anabranch.cli.chat._live_screen:ChatController",
    "anabranch.cli.chat._log_renderer:_Reply": "anabranch.cli.chat._log_renderer:_StreamingReply",
    "anabranch.cli.chat._loop:Chat": "anabranch.cli.chat._loop:ChatLoop",
    "anabranch.cli.chat._loop:Chat._steer": "anabranch.cli.chat._loop:ChatLoop._steer",
    "anabranch.cli.chat._markdown_view:Look": "anabranch.cli.chat._markdown_view:MarkdownStyle",
    "anabranch.cli.chat._partner:Runs": "anabranch.cli.chat._partner:RunSource",
    "anabranch.cli.chat._plain:PlainScreen": "anabranch.cli.chat._plain_screen:PlainScreen",
    "anabranch.cli.chat._prompt:Listener": "anabranch.cli.chat._prompt:PromptListener",
    "anabranch.cli.chat._rules:Rule": "anabranch.cli.chat._approval_rules:ApprovalRule",
    "anabranch.cli.chat._rules:Rules": "anabranch.cli.chat._approval_rules:ApprovalRules",
    "anabranch.cli.chat._start:ChatOptions": "anabranch.cli.chat._start:ChatArguments",
    "anabranch.cli.chat._status:Figures": "anabranch.cli.chat._status:TurnFigures",
    "anabranch.cli.chat._status:_Request": "anabranch.cli.chat._status:_OpenRequest",
    "anabranch.serve._kept:Answer": "anabranch.serve._durable_run:DurableAnswer",
    "anabranch.serve._kept:Incomplete": "anabranch.serve._durable_run:IncompleteInput",
    "anabranch.serve._kept:Told": "anabranch.serve._durable_run:Outcome",
    "anabranch.serve._kept:go_on": "anabranch.serve._durable_run:run_in_journal",
    "anabranch.serve._kept_log:_Speech": "anabranch.serve._replay:_LoggedReply",
    "anabranch.serve._log:Gone": "anabranch.serve._run_log:EntriesExpired",
    "anabranch.serve._log:Left": "anabranch.serve._run_log:ServerEnding",
    "anabranch.serve._log:Entry": "anabranch.serve._run_log:Entry",
    "anabranch.serve._log:Log": "anabranch.serve._run_log:RunLog",
    "anabranch.serve._fields:BadQuestion": "anabranch.serve._served_model:InvalidInput",
    "anabranch.serve._options:ModelOptions": "anabranch.serve._model_options:ModelOptions",
    "anabranch.serve._runs:NotBegun": "anabranch.serve._runs:NotRunning",
    "anabranch.serve._served:Question": "anabranch.serve._served_model:RunInput",
    "anabranch.serve._served:Served": "anabranch.serve._served_model:ServedModel",
    "anabranch.serve._served:_Agent": "anabranch.serve._served_model:_ServedAgent",
    "anabranch.serve._served:_Backend": "anabranch.serve._served_model:_ServedBackend",
    "anabranch.serve._served:_Conversation": "anabranch.serve._served_model:_ServedConversation",
    "anabranch.serve._served:_Made": "anabranch.serve._served_model:_ServedNode",
    "anabranch.serve._served:_Orchestrator": "anabranch.serve._served_model:_ServedOrchestrator",
    "anabranch.serve._served:ask_model": "anabranch.serve._served_model:ask_model",
    "anabranch.serve.talk:Talk": "anabranch.serve.local:LocalRun",
    "anabranch.serve._masked_logs:_Mask": "anabranch.serve._failure:_MaskFilter",
    "anabranch.serve._run:_BrokenOff": "anabranch.serve._run:_BrokenReplies",
    "anabranch.tracing._follow:_Reader": "anabranch.tracing._read:_RecordingReader",
    "anabranch.tracing._handle:Handle": "anabranch.tracing._event_thread:TreeFollower",
    "anabranch.tracing._live:LiveTrace": "anabranch.tracing._recorder:LiveTrace",
    "anabranch.tracing._feed:Feed": "anabranch.tracing._event_thread:EventThread",
    "anabranch.tracing._feed:Gap": "anabranch.tracing._event_thread:Gap",
    "anabranch.tracing._feed:Sink": "anabranch.tracing._event_thread:Sink",
    "anabranch.tracing._feed:_End": "anabranch.tracing._event_thread:_End",
    "anabranch.tracing._record:Recorder": "anabranch.tracing._recorder:Recorder",
    "anabranch.tracing._record:_FileSink": "anabranch.tracing._recorder:_FileSink",
    "anabranch.tracing._record:_RecordSink": "anabranch.tracing._recorder:_RecordSink",
    "anabranch.tracing._record:_UnreadSink": "anabranch.tracing._recorder:_UnreadSink",
    "anabranch.tracing._diff:Pace": "anabranch.tracing._diff:DurationChange",
    "anabranch.tracing._diff:Spent": "anabranch.tracing._diff:UsageChange",
    "anabranch.tracing._trace_node:Life": "anabranch.tracing._trace_node:Execution",
    "anabranch.tracing._trace_node:Spell": "anabranch.tracing._trace_node:Interval",
    "anabranch.tracing._meter:Meter": "anabranch.tracing._genai:Meter",
    "anabranch.tracing._run_ids:RunIds": "anabranch.tracing._spans:RunIds",
    "anabranch.cli.chat._run_partner:Refused": "anabranch.cli.chat._partner:MessageRefused",
    "anabranch.cli.chat._run_partner:RunPartner": "anabranch.cli.chat._partner:RunPartner",
    "anabranch.cli.chat._served_partner:CannotAnswer": (
        "anabranch.cli.chat._local_runs:CannotAnswer"
    ),
    "anabranch.cli.chat._served_partner:ask_person": "anabranch.cli.chat._partner:_ask",
    "anabranch.cli.chat._telling:BadEntry": "anabranch.cli.chat._log_renderer:BadEntry",
    "anabranch.backends._address:Host": "anabranch.backends._providers:HostedProvider",
    "anabranch.backends._backend:Recipe": "anabranch.backends._backend:BackendFactory",
    "anabranch.backends._local_engine:LocalEngine": "anabranch.backends._local:LocalEngine",
    "anabranch.backends._local_engine:Work": "anabranch.backends._local:Work",
    "anabranch.backends._local_engine:_Stopped": "anabranch.backends._local:_Stopped",
    "anabranch.backends._local_model:Piece": "anabranch.backends._local_model:TextChunk",
    "anabranch.backends._local_model:Source": "anabranch.backends._local_model:ModelFile",
    "anabranch.backends._local_reply:Manner": "anabranch.backends._local_reply:PromptStyle",
    "anabranch.backends._secret:_Needles": "anabranch.backends._secret:_KeyPatterns",
    "anabranch.backends._secret:_Plain": "anabranch.backends._secret:_Unescaped",
    "anabranch.backends._tape:Tape": "anabranch.backends._cassette_file:CassetteFile",
    "anabranch.backends._tape:Track": "anabranch.backends._cassette_file:RecordedReply",
    "anabranch.backends._timeout:_Watch": "anabranch.backends._timeout:_DeadlineTimer",
    "anabranch.backends._turn:Gate": "anabranch.backends._turn:Limiter",
    "anabranch.backends._vllm_engine:Loaded": "anabranch.backends._vllm_engine:LoadedModel",
    "anabranch.backends._vllm_reply:_Question": "anabranch.backends._vllm_reply:_PreparedRequest",
    "anabranch.backends._vllm_tools:Reader": "anabranch.backends._vllm_reply:ReplyReader",
    "anabranch.backends._wire:_Halves": "anabranch.backends._wire:_SurrogateMender",
    "anabranch.backends.limits:Start": "anabranch.backends.limits:RequestStart",
    "anabranch.backends.limits:Turns": "anabranch.backends.limits:TurnLimits",
    "anabranch.jobs._response:ResponseJob": "anabranch.jobs._chat:ResponseJob",
    "anabranch.handlers._look_up:look_up": "anabranch.handlers._respond:look_up",
    "anabranch.handlers._show:show": "anabranch.handlers._view:show",
    "anabranch.backends._tell:ToldQuestion": "anabranch.backends._request_events:ObservedRequest",
    "anabranch.cli._drawing:Watcher": "anabranch.cli._display:DisplayThread",
    "anabranch.cli._drawing:_Tree": "anabranch.cli._display:TreeDisplay",
    "anabranch.cli._fold:Choice": "anabranch.cli._tree_model:_Choice",
    "anabranch.cli._keys:Mode": "anabranch.cli._keyboard:TerminalMode",
    "anabranch.cli._screen:Screen": "anabranch.cli._display:LiveRegion",
    "anabranch.cli._survey:Spent": "anabranch.cli._tree_model:TreeUsage",
    "anabranch.cli._survey:Survey": "anabranch.cli._tree_model:TreeSummary",
    "anabranch.cli._watch_url:_Again": "anabranch.cli._watch:_Reconnect",
    "anabranch.cli.chat._job_fields:FieldMissing": "anabranch.cli._fields:FieldMissing",
    "anabranch.cli.chat._streams:Above": "anabranch.cli._streams:CapturedStream",
    "anabranch.serve._fields:Field": "anabranch.jobs.fields:Field",
    "anabranch.agents.conversation._answering:Answering": "anabranch.agents.conversation._reply:ReplyNode",
    "anabranch.agents.conversation._directory:Answer": "anabranch.agents.conversation._participant:Answer",
    "anabranch.agents.conversation._directory:Directory": "anabranch.agents.conversation._participant:Directory",
    "anabranch.agents.conversation._directory:Participant": "anabranch.agents.conversation._participant:Participant",
    "anabranch.agents.conversation._floor:GroupTalk": "anabranch.agents.conversation._turns:GroupTalk",
    "anabranch.agents.conversation._floor:_Floor": "anabranch.agents.conversation._turns:_Turns",
    "anabranch.agents.conversation._floor:_Seat": "anabranch.agents.conversation._turns:_MemberNode",
    "anabranch.agents.conversation._talk:Talk": "anabranch.agents.conversation._group:GroupConversation",
    "anabranch.agents.conversation._talk:TalkNode": "anabranch.agents.conversation._group:ConversationNode",
    "anabranch.agents.conversation._transcript:Transcript": "anabranch.agents.conversation._human:Transcript",
    "anabranch.agents.conversation._transcript:_Entry": "anabranch.agents.conversation._human:_Entry",
    "anabranch.dispatch._channel:_Holding": "anabranch.dispatch._channel:_ClosedGates",
    "anabranch.dispatch._reply:_Whole": "anabranch.dispatch._reply:_MessageAwaitable",
    "anabranch.agents.layers._actions:FencedCall": "anabranch.dispatch.formats:FencedCall",
    "anabranch.agents.layers._actions:TextCall": "anabranch.dispatch.formats:TextCall",
    "anabranch.agents.layers._actions:_FirstCall": "anabranch.dispatch.formats:_FirstCall",
    "anabranch.agents.layers._actions:_Found": "anabranch.dispatch.formats:WrittenCall",
    "anabranch.agents.layers._call:KeptCall": "anabranch.agents.layers._call:JournalCall",
    "anabranch.agents.layers._call:KeptSession": "anabranch.agents.layers._call:OuterSession",
    "anabranch.agents.layers._knowledge:Knowledge": "anabranch.agents.layers._answer:Knowledge",
    "anabranch.agents.layers._sessions:KeptSessions": "anabranch.agents.layers._sessions:JournalSessions",
    "anabranch.agents.layers._steer:Heard": "anabranch.agents.layers._steer:Delivery",
    "anabranch.agents.layers._steer:Hearing": "anabranch.agents.layers._steer:Deliveries",
    "anabranch.agents.layers._strict:_NotStrictError": "anabranch.messages.output:_NotStrictError",
    "anabranch.agents.layers._usage:CountedCall": "anabranch.agents.layers._call:CountedCall",
    "anabranch.agents.layers._usage:Spending": "anabranch.agents.layers._call:UsageTotals",
    "anabranch.agents.orchestration._environment:Environment": "anabranch.agents.orchestration._orchestrator:Environment",
    "anabranch.agents.orchestration._environment:EpisodeStep": "anabranch.agents.orchestration._orchestrator:EpisodeStep",
    "anabranch.agents.orchestration._environment:Observation": "anabranch.agents.orchestration._orchestrator:Observation",
    "anabranch.agents.orchestration._environment:act": "anabranch.agents.orchestration._orchestrator:act",
    "anabranch.agents.orchestration._environment:observe": "anabranch.agents.orchestration._orchestrator:observe",
    "anabranch.tools._effect:_Keyed": "anabranch.tools._effect:_EffectCall",
    "anabranch.tools._figures:Figures": "anabranch.tools._python:FigureFolder",
    "anabranch.tools._kernel:Output": "anabranch.tools._kernel:KernelOutput",
    "anabranch.tools._kernel_pool:Pool": "anabranch.tools._python:KernelPool",
    "anabranch.tools._mcp:_Connection": "anabranch.tools._mcp_connection:Connection",
    "anabranch.tools._mcp_wire:_Bounded": "anabranch.tools._mcp_wire:_BoundedStream",
    "anabranch.tools._mcp_wire:_Lines": "anabranch.tools._mcp_wire:_LineDecoder",
    "anabranch.tools._narrate:_NarratingTool": "anabranch.tools._describe:_NarratingTool",
    "anabranch.tools._remote_schema:_Check": "anabranch.tools._remote_schema:_Checker",
    "anabranch.tools._remote_schema:_Unclear": "anabranch.tools._remote_schema:_Undecided",
    "anabranch.tools.calls:_tell_refused": "anabranch.tools.calls:_emit_refused",
    "anabranch.tools.toolkits:SameName": "anabranch.tools.toolkits:DuplicateToolName",
    "anabranch.knowledge._folder:Added": "anabranch.knowledge._folder:FolderReport",
    "anabranch.knowledge._folder:Progress": "anabranch.knowledge._folder:FolderProgress",
    "anabranch.knowledge._pieces:Part": "anabranch.knowledge._pieces:BlockPart",
    "anabranch.knowledge._pieces:Piece": "anabranch.knowledge._pieces:DocumentPiece",
    "anabranch.knowledge._postgres:_Kept": "anabranch.knowledge._postgres:_LoopConnections",
    "anabranch.knowledge._read_main:Refused": "anabranch.knowledge._read_main:UnreadableFile",
    "anabranch.knowledge._reader:Reader": "anabranch.knowledge._reader:FileReader",
    "anabranch.knowledge._reader:Refused": "anabranch.knowledge._reader:UnreadableFile",
    "anabranch.knowledge._reader:Said": "anabranch.knowledge._reader:FileContent",
    "anabranch.knowledge._store:Found": "anabranch.knowledge._store:StoredPiece",
    "anabranch.knowledge._store:Maker": "anabranch.knowledge._store:VectorSpace",
    "anabranch.knowledge._store:Source": "anabranch.knowledge._store:IndexedDocument",
    "anabranch.cluster._agent_service:AgentFactory": "anabranch.cluster._agent_actor:AgentFactory",
    "anabranch.cluster._agent_service:AgentService": "anabranch.cluster._agent_actor:AgentService",
    "anabranch.cluster._agent_service:Caller": "anabranch.cluster._agent_actor:Caller",
    "anabranch.cluster._agent_service:CallerProxy": "anabranch.cluster._agent_actor:CallerProxy",
    "anabranch.cluster._agent_service:ClusterDirectory": "anabranch.cluster._agent_actor:ClusterDirectory",
    "anabranch.cluster._agent_service:MessageQuota": "anabranch.cluster._agent_actor:MessageQuota",
    "anabranch.cluster._agent_service:MessageSender": "anabranch.cluster._agent_actor:MessageSender",
    "anabranch.cluster._agent_service:ServedCallNode": "anabranch.cluster._agent_actor:ServedCallNode",
    "anabranch.cluster._agent_service:TextCache": "anabranch.cluster._agent_actor:TextCache",
    "anabranch.cluster._engine:_Schema": "anabranch.cluster._engine:_ToolSchema",
    "anabranch.cluster._mailbox:Inbox": "anabranch.cluster._mailbox:CommanderInbox",
    "anabranch.cluster._payload:Failure": "anabranch.cluster._payload:PackedFailure",
    "anabranch.cluster._payload:_StandIn": "anabranch.cluster._payload:_UnknownObject",
    "anabranch.cluster._protocol:AgentCall": "anabranch.cluster._protocol:AgentRequest",
    "anabranch.cluster._protocol:Delivery": "anabranch.cluster._protocol:ReportDelivery",
    "anabranch.cluster._protocol:MessagePart": "anabranch.cluster._protocol:SentMessage",
    "anabranch.cluster._remote:RemoteCommander": "anabranch.cluster._subtree:RemoteCommander",
    "anabranch.cluster._remote:RemoteNode": "anabranch.cluster._subtree:RemoteNode",
    "anabranch.cluster._remote:Reporter": "anabranch.cluster._subtree:Reporter",
    "anabranch.cluster._remote:_ClockOffset": "anabranch.cluster._subtree:_ClockOffset",
    "anabranch.cluster._remote:_Entry": "anabranch.cluster._subtree:_RemoteEntry",
}


def stored_name(thing: Any) -> str:
    """Return the stored name of a class or a function, as `module:Class.Inner`."""
    if issubclass(type(thing), type):
        # Read by the getters of `type`, because a metaclass may override these attributes.
        module, qualname = _module(thing), _qualname(thing)
    else:
        module = getattr(thing, "__module__", "")
        qualname = str(getattr(thing, "__qualname__", ""))
    place = f"{module}:{qualname}"
    if (found := _STORED.get(place)) is not None:
        return found
    if "." in qualname or "[" in qualname:
        return _translate(place, _STORED)
    return place


def place_of(name: str) -> str:
    """Return the current place of a stored name, as `module:Class.Inner`."""
    return _translate(name, _PLACES)


def find_stored(name: str) -> Any:
    """Return the class or function of a stored name; import its module if it is not loaded.

    Raises `ImportError`, `AttributeError` or `ValueError` if it does not exist. Errors of the
    module's import propagate.
    """
    module, _, qualname = place_of(name).partition(":")
    found: Any = sys.modules.get(module) or import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def find_loaded(name: str) -> Any:
    """Return the class or function of a stored name; None if no loaded module has it."""
    module, _, qualname = place_of(name).partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


_module: Any = type.__dict__["__module__"].__get__
_qualname: Any = type.__dict__["__qualname__"].__get__

# Python's own moves: the stored name, and the place in some Python versions.
_PYTHON = {
    "re:error": "re:PatternError",
    "pathlib:Path": "pathlib._local:Path",
    "pathlib:PosixPath": "pathlib._local:PosixPath",
    "pathlib:PurePath": "pathlib._local:PurePath",
    "pathlib:PurePosixPath": "pathlib._local:PurePosixPath",
    "pathlib:PureWindowsPath": "pathlib._local:PureWindowsPath",
    "pathlib:WindowsPath": "pathlib._local:WindowsPath",
}

# `MOVED` and Python's moves, in both directions.
_PLACES: dict[str, str] = {}
_STORED: dict[str, str] = {}


def _fill() -> None:
    _PLACES.clear()
    _STORED.clear()
    for name, other in _PYTHON.items():
        kind: type = getattr(re if name == "re:error" else pathlib, name.partition(":")[2])
        if f"{kind.__module__}:{kind.__qualname__}" == other:
            _STORED[other] = name
        else:
            _PLACES[other] = (
                name  # in journals of earlier releases of Anabranch, from such a version
            )
    for name, place in MOVED.items():
        _PLACES[name] = place
        _STORED[place] = name


def _translate(name: str, table: Mapping[str, str]) -> str:
    if (found := table.get(name)) is not None:
        return found
    # Try the enclosing classes and functions, from the inside out. `[` is for generic models of
    # pydantic, `module:Class[str]`.
    colon = name.find(":")
    at = max(name.rfind("."), name.rfind("["))
    while at > colon:
        if (found := table.get(name[:at])) is not None:
            return found + name[at:]
        at = max(name.rfind(".", 0, at), name.rfind("[", 0, at))
    return name


_fill()
