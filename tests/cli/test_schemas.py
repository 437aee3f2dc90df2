"""The contract of the command line: help, and the schemas of the JSON. What tests deliver is checked by a fixture of conftest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from onnx_vulkan.cli import app
from typer.testing import CliRunner

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


COMMANDS = list(_commands(typer.main.get_command(app)))


@cache
def _schema_in_help(command: tuple[str, ...]) -> tuple[str, str]:
    text = " ".join(CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout.split())
    found = re.search(r"JSON of the schema onnx-vulkan/([a-z-]+)/(\d+)", text)
    assert found, f"{' '.join(command)} --help says no schema; give the command contract(...) as its epilog"
    for word in ("Reads:", "Writes:", "stdout:", "stderr:", "Exit status: 0 "):
        assert word in text
    return found[1], found[2]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_states_the_contract(command: tuple[str, ...]) -> None:
    name, version = _schema_in_help(command)
    assert (SCHEMAS / f"{name}-{version}.json").is_file()


def test_schemas_are_those_of_the_commands() -> None:
    named = {f"{name}-{version}.json" for name, version in map(_schema_in_help, COMMANDS)}
    assert {p.name for p in SCHEMAS.iterdir()} == named


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda p: p.stem)
def test_schema_is_one(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    name, version = path.stem.rsplit("-", 1)
    assert schema["$id"] == schema["properties"]["schema"]["const"] == f"onnx-vulkan/{name}/{version}"
    assert "schema" in schema["required"]


def test_the_check_of_deliveries_finds_what_is_wrong() -> None:
    from onnx_vulkan.cli import report

    device = {"usable": True, "checks": []}
    report.deliver("doctor/1", device, lambda: None)
    for wrong in ({**device, "news": 1}, {"usable": True}, {**device, "checks": [{"name": "x"}]}):
        with pytest.raises(jsonschema.ValidationError):
            report.deliver("doctor/1", wrong, lambda: None)
    with pytest.raises(ValueError, match="NaN is no JSON"):
        report.deliver("doctor/1", {**device, "usable": float("nan")}, lambda: None)
