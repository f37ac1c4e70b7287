"""Rules that allow calls without a question: "always for this tool, here"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from ...commander.errors import ConfigurationError
from ...messages import ToolCall
from ...messages.mask import mask
from ...messages.whole import write_whole
from ...tools import AnyTool
from ...tools.origins import definition_of

__all__ = ["Rule", "Rules"]

VERSION = 2
"""The version of the file. The digests of version 1 did not cover the arguments of a server's
program, so a rule for one server allowed the calls of another: none of its rules holds."""


@dataclass(frozen=True)
class Rule:
    """Allows calls of a tool in a folder: any calls, or only those with the same `arguments`."""

    tool: str
    definition: str
    """A digest of the tool and its source; another tool of this name is not allowed."""
    folder: str
    arguments: str | None = None
    """As JSON; None allows any arguments."""
    source: str = ""
    """The tool's source, with possible keys masked."""

    def __str__(self) -> str:
        which = "" if self.arguments is None else f" with {self.arguments}"
        return f"{self.tool}{which}, in {self.folder}"


class Rules:
    """The rules of this user, in a JSON file that only they can read.

    Each change is written at once and keeps the changes of other terminals. If the file is invalid,
    methods raise `ConfigurationError` and no rule holds.
    """

    def __init__(self, path: Path | None = None, folder: Path | None = None) -> None:
        self.path = user_config_path("anabranch") / "approvals.json" if path is None else path
        self.folder = str((Path.cwd() if folder is None else folder).resolve())

    def list(self) -> list[Rule]:
        """Return all valid rules of all folders, oldest first."""
        version, rules = self._read()
        return rules if version == VERSION else []

    def drop_old(self) -> bool:
        """Remove the rules of an earlier version; False if there are none.

        Raises `OSError` if the file cannot be written.
        """
        version, rules = self._read()
        if version == VERSION or not rules:
            return False
        self._save([])
        return True

    def allows(self, call: ToolCall, tool: AnyTool) -> bool:
        """Say whether a rule allows this call in this folder."""
        wanted = (None, _write(call.arguments))
        here = [
            each
            for each in self.list()
            if (each.tool, each.folder) == (tool.name, self.folder) and each.arguments in wanted
        ]
        return bool(here) and definition_of(tool) in [each.definition for each in here]

    def add(self, tool: AnyTool, arguments: Mapping[str, Any] | None = None) -> Rule:
        """Allow calls of a tool in this folder; with `arguments`, only calls with these.

        Raises `OSError` if the file cannot be written.
        """
        given = None if arguments is None else _write(arguments)
        source = mask(tool.bare.source)
        rule = Rule(tool.name, definition_of(tool), self.folder, given, source)
        rules = self.list()
        if rule not in rules:
            self._save([*rules, rule])
        return rule

    def revoke(self, rule: Rule) -> bool:
        """Remove a rule; False if it does not exist any more."""
        rules = self.list()
        if rule not in rules:
            return False
        self._save([each for each in rules if each != rule])
        return True

    def _read(self) -> tuple[int, list[Rule]]:
        """Return the version of the file and its rules."""
        try:
            saved: Any = json.loads(self.path.read_text("utf-8"))
            version = saved.get("version", 1)
            if version not in (1, VERSION):
                raise ValueError("a later version wrote it")
            rules = [Rule(**each) for each in saved["rules"]]
            if any(not isinstance(each, str | None) for rule in rules for each in _fields(rule)):
                raise TypeError("a field is no text")
        except FileNotFoundError:
            return VERSION, []
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ConfigurationError(
                f"{self.path} cannot be read as rules ({type(error).__name__}): mend or remove it"
            ) from error
        return version, rules

    def _save(self, rules: list[Rule]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        rules_as_json = [asdict(each) for each in rules]
        write_whole(self.path, json.dumps({"version": VERSION, "rules": rules_as_json}, indent=1))


def _write(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _fields(rule: Rule) -> tuple[Any, ...]:
    return tuple(vars(rule).values())
