"""Rules that allow calls without a question."""

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch import tool
from anabranch.cli.chat._approval_rules import ApprovalRules
from anabranch.commander.errors import ConfigurationError
from anabranch.messages import ToolCall


def write(path: str, text: str = "") -> str:
    """Write a file."""
    return path


def made(function: Callable[..., Any] = write, **options: Any) -> Any:
    return tool(approve=True, **options)(function)


def call(**arguments: Any) -> ToolCall:
    return ToolCall(id="1", name="write", arguments=arguments)


def test_a_rule_holds_for_its_tool_in_its_folder(tmp_path: Path) -> None:
    """ "Always for this tool, here" applies in this folder only, and also in the next program."""
    file, here = tmp_path / "config" / "rules.json", tmp_path / "here"
    rules = ApprovalRules(file, here)
    assert not rules.allows(call(path="a"), made())
    rule = rules.add(made())
    assert rules.add(made()) == rule
    assert rules.allows(call(path="a"), made())
    assert ApprovalRules(file, here / ".." / "here").allows(call(path="b"), made())
    assert not ApprovalRules(file, tmp_path).allows(call(path="a"), made())
    assert ApprovalRules(file, tmp_path).list() == [rule]
    assert str(rule) == f"write, in {here.resolve()}"

    assert rules.revoke(rule)
    assert not rules.revoke(rule)
    assert not rules.allows(call(path="a"), made())


def test_a_rule_may_hold_for_the_same_arguments_only(tmp_path: Path) -> None:
    """The order of the arguments does not matter."""
    rules = ApprovalRules(tmp_path / "rules.json", tmp_path)
    rules.add(made(), {"path": "a", "text": "\ud800"})
    assert rules.allows(call(text="\ud800", path="a"), made())
    assert not rules.allows(call(path="a"), made())
    assert not rules.allows(call(path="a", text="x"), made())


def test_another_tool_of_the_same_name_has_no_rule(tmp_path: Path) -> None:
    """Neither a tool with another schema nor one from another module is allowed."""
    rules = ApprovalRules(tmp_path / "rules.json", tmp_path)
    rules.add(made())

    def other(path: str, text: str = "") -> str:
        """Write a file."""
        return path

    def wider(path: str, text: str = "", mode: int = 0) -> str:
        """Write a file."""
        return path

    wider.__qualname__ = wider.__name__ = "write"
    elsewhere = made()
    elsewhere.source = "mcp: another server"
    for each in (made(other, name="write"), made(wider), elsewhere, made(name="append")):
        assert not rules.allows(call(path="a"), each)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of another kind there")
def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    """The file is replaced atomically, and no other file stays in the folder."""
    file = tmp_path / "anabranch" / "rules.json"
    rules = ApprovalRules(file, tmp_path)
    rules.add(made())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [each.name for each in file.parent.iterdir()] == ["rules.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 3, "rules": []}',
        '{"rules": [{}]}',
        '{"rules": [{"tool": 1}]}',
        "\0",
        "[" * 9999,
    ],
)
def test_a_file_that_is_none_lets_nothing_run(tmp_path: Path, text: str) -> None:
    """The error is reported, and the file is not overwritten."""
    file = tmp_path / "rules.json"
    file.write_text(text)
    rules = ApprovalRules(file, tmp_path)
    for act in (rules.list, lambda: rules.allows(call(), made()), lambda: rules.add(made())):
        with pytest.raises(ConfigurationError, match="is not a rules file"):
            act()
    assert file.read_text() == text


def test_fields_of_other_types_are_no_rules(tmp_path: Path) -> None:
    """A rule with a field that is not text makes the file invalid."""
    file = tmp_path / "rules.json"
    rule = {"tool": "write", "definition": 3, "folder": "/", "arguments": None}
    file.write_text(json.dumps({"rules": [rule]}))
    with pytest.raises(ConfigurationError):
        ApprovalRules(file, tmp_path).list()


def test_rules_of_an_earlier_version_do_not_hold(tmp_path: Path) -> None:
    """Rules with digests of an earlier version are removed."""
    file = tmp_path / "rules.json"
    rules = ApprovalRules(file, tmp_path)
    rules.add(made())
    old = [
        {name: value for name, value in rule.items() if name != "source"}
        for rule in json.loads(file.read_text())["rules"]
    ]
    file.write_text(json.dumps({"rules": old}))

    assert rules.list() == []
    assert not rules.allows(call(path="a"), made())
    assert [rules.drop_old(), rules.drop_old()] == [True, False]
    rules.add(made())
    assert not rules.drop_old()
    assert rules.allows(call(path="a"), made())
