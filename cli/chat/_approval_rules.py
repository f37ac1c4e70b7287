"""Rules of the person that allow calls without a question: "always for this tool, here"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from ...commander.errors import ConfigurationError
from ...files.replacing import replace_private_file
from ...messages import ToolCall
from ...messages.mask import mask
from ...tools import AnyTool
from ...tools.origins import definition_of

__all__ = ["ApprovalRule", "ApprovalRules"]

RULES_VERSION = 2
"""The version of the file. Rules of version 1 are ignored. Their digests did not cover arguments of
an MCP server's command, so a rule for one server also allowed calls of another."""


@dataclass(frozen=True)
class ApprovalRule:
    """Allows the calls of a tool in one folder: all calls, or those with equal `arguments`."""

    tool: str
    definition: str
    """A digest of the tool and its source, so that another tool of this name is not allowed."""
    folder: str
    arguments: str | None = None
    """The arguments as JSON; None allows any arguments."""
    source: str = ""
    """The tool's source, with possible keys masked."""

    def __str__(self) -> str:
        which = "" if self.arguments is None else f" with {self.arguments}"
        return f"{self.tool}{which}, in {self.folder}"


class ApprovalRules:
    """The rules of this user, in a JSON file that only this user can read.

    Each change is written at once, on top of the changes of other terminals. If the file is
    invalid, no rule applies, and all methods raise `ConfigurationError`.
    """

    def __init__(self, path: Path | None = None, folder: Path | None = None) -> None:
        self.path = user_config_path("anabranch") / "approvals.json" if path is None else path
        self.folder = str((Path.cwd() if folder is None else folder).resolve())

    def list(self) -> list[ApprovalRule]:
        """Return the valid rules of all folders, oldest first."""
        version, rules = self._read()
        return rules if version == RULES_VERSION else []

    def drop_old(self) -> bool:
        """Remove the rules of an earlier version; return False if there are none.

        Raises `OSError` if the file cannot be written.
        """
        version, rules = self._read()
        if version == RULES_VERSION or not rules:
            return False
        self._save([])
        return True

    def allows(self, call: ToolCall, tool: AnyTool) -> bool:
        """Return whether a rule allows this call in this folder."""
        wanted = (None, _write(call.arguments))
        here = [
            each
            for each in self.list()
            if (each.tool, each.folder) == (tool.name, self.folder) and each.arguments in wanted
        ]
        return bool(here) and definition_of(tool) in [each.definition for each in here]

    def add(self, tool: AnyTool, arguments: Mapping[str, Any] | None = None) -> ApprovalRule:
        """Allow calls of a tool in this folder; with `arguments`, only calls with equal ones.

        Raises `OSError` if the file cannot be written.
        """
        arguments_json = None if arguments is None else _write(arguments)
        source = mask(tool.bare.source)
        rule = ApprovalRule(tool.name, definition_of(tool), self.folder, arguments_json, source)
        rules = self.list()
        if rule not in rules:
            self._save([*rules, rule])
        return rule

    def revoke(self, rule: ApprovalRule) -> bool:
        """Remove a rule; return False if it does not exist."""
        rules = self.list()
        if rule not in rules:
            return False
        self._save([each for each in rules if each != rule])
        return True

    def _read(self) -> tuple[int, list[ApprovalRule]]:
        """Return the version of the file and its rules."""
        try:
            saved: Any = json.loads(self.path.read_text("utf-8"))
            version = saved.get("version", 1)
            if version not in (1, RULES_VERSION):
                raise ValueError("a later version wrote the file")
            rules = [ApprovalRule(**each) for each in saved["rules"]]
            if any(not isinstance(each, str | None) for rule in rules for each in _fields(rule)):
                raise TypeError("a field is not text")
        except FileNotFoundError:
            return RULES_VERSION, []
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ConfigurationError(
                f"{self.path} is not a rules file ({type(error).__name__}). Repair or remove it"
            ) from error
        return version, rules

    def _save(self, rules: list[ApprovalRule]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        rules_as_json = [asdict(each) for each in rules]
        replace_private_file(
            self.path, json.dumps({"version": RULES_VERSION, "rules": rules_as_json}, indent=1)
        )


def _write(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _fields(rule: ApprovalRule) -> tuple[Any, ...]:
    return tuple(vars(rule).values())
