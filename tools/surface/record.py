# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that users and other programs see of the installed securetrain."""

import ast
import hashlib
import importlib
import json
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import inspect as kinds

from tools.surface import artifacts, nodes, shapes, shared
from tools.surface.story import Story

SCHEMA_STRING: Final = (
    r"https://\S+/v\d\S*|application/\S+|[\w.-]*securetrain[\w.-]*(/\S+)?/v?\d+\S*"
)
CHAPTERS: Final = (
    nodes.usage,
    shared.usage,
    artifacts.keys_and_trust,
    artifacts.datasets,
    artifacts.checkpoints,
    artifacts.models,
    artifacts.waivers,
    artifacts.log,
    nodes.ca,
    nodes.policies,
    nodes.audit,
    nodes.attest,
    nodes.machine,
    nodes.scan,
    nodes.rest,
    shared.values,
    shared.fleet,
    shared.catalogue,
    artifacts.training,
    shared.packs,
)


def record() -> dict[str, Any]:
    """Everything that users and other programs see of the installed securetrain."""
    main = importlib.import_module("securetrain.cli.main")
    commands = {" ".join(path): command for path, command in _commands(main.cli)}
    with tempfile.TemporaryDirectory(prefix="surface-") as folder:
        story = Story(Path(folder), main.main)
        with story.inside():
            for chapter in CHAPTERS:
                chapter(story)
            left = shapes.folder(Path(folder))
    package = importlib.import_module("securetrain")
    assert package.__file__ is not None
    return {
        "commands": {name: _options(command) for name, command in commands.items()},
        "help": {name: _help(command, name) for name, command in commands.items()},
        **story.record(),
        "files": left,
        "structs": structs(_classes()),
        "schemas": _schemas(Path(package.__file__).parent),
    }


def _commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name="securetrain")
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, (*path, name))


def _options(command: click.Command) -> dict[str, str]:
    found = {}
    for one in command.params:
        said = one.to_info_dict()
        kept = ("required", "nargs", "multiple", "is_flag", "flag_value", "count", "envvar")
        facts = {name: said.get(name) for name in kept}
        facts["default"] = shapes.plain(said.get("default"))
        facts["type"] = {k: shapes.plain(v) for k, v in said["type"].items() if k != "name"}
        found[" ".join([*one.opts, *one.secondary_opts])] = json.dumps(
            facts, sort_keys=True, default=str
        )
    return found


def _help(command: click.Command, name: str) -> str:
    context = click.Context(
        command, info_name=f"securetrain {name}".strip(), terminal_width=100, max_content_width=100
    )
    return command.get_help(context)


def _classes() -> list[type[msgspec.Struct]]:
    """Every struct of the package that forbids unknown fields; modules that need more are left."""
    package = importlib.import_module("securetrain")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(
            package.__path__, "securetrain.", onerror=lambda _: None
        ):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except Exception as error:  # noqa: BLE001 - an extra, or a program of the launcher
                    print(f"{module.name} is not looked at: {error}", file=sys.stderr)
    return [one for one in _below(msgspec.Struct) if one.__module__.startswith("securetrain")]


def _below(base: type[Any]) -> list[type[Any]]:
    direct = base.__subclasses__()
    return list(dict.fromkeys([*direct, *(one for below in direct for one in _below(below))]))


def structs(classes: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    """Name -> the definitions under that name, each with its fields and a digest of all below."""
    found: dict[str, Any] = {}
    for one in classes:
        if not one.__struct_config__.forbid_unknown_fields:
            continue
        told = kinds.type_info(one)
        assert isinstance(told, kinds.StructType)
        deep = json.dumps(_kind(told, ()), sort_keys=True, default=str)
        definition = {
            "tag": f"{told.tag_field}={told.tag}" if told.tag is not None else "",
            "fields": {field.encode_name: _field(field) for field in told.fields},
            "deep": hashlib.sha256(deep.encode()).hexdigest(),
        }
        found.setdefault(one.__name__, []).append(definition)
    for definitions in found.values():
        definitions.sort(key=lambda definition: str(definition["deep"]))
    return dict(sorted(found.items()))


def _field(field: kinds.Field) -> str:
    """A field in one line: its type by name, and what it is when it is left out."""
    told = json.dumps(_kind(field.type, None), sort_keys=True, default=str)
    return told if field.required else f"{told} = {_default(field)}"


def _default(field: kinds.Field) -> str:
    if field.default is not msgspec.NODEFAULT:
        value = field.default
    elif field.default_factory in (list, dict, set, tuple):
        value = field.default_factory()
    else:
        return "" if field.required else "(made)"
    try:
        return msgspec.json.encode(value, order="sorted").decode()
    except TypeError:
        return str(shapes.plain(value))


def _kind(told: Any, above: tuple[type[Any], ...] | None) -> Any:
    """A type as data; what is below a struct only when `above` says which structs contain it."""
    match told:
        case kinds.StructType(cls=cls):
            if above is None:
                return cls.__name__
            if cls in above:
                return f"(the struct {len(above) - above.index(cls)} above)"
            fields = [_kind(field, (*above, cls)) for field in told.fields]
            return ["struct", told.tag, told.tag_field, told.forbid_unknown_fields, fields]
        case kinds.Field():
            return [told.encode_name, told.required, _kind(told.type, above), _default(told)]
        case kinds.EnumType(cls=cls):
            values = sorted(str(member.value) for member in cls)
            return cls.__name__ if above is None else ["enum", values]
        case kinds.Type():
            parts = {
                name: _kind(getattr(told, name), above)
                for name in told.__struct_fields__
                if getattr(told, name) not in (None, ())
            }
            return [type(told).__name__, parts]
        case tuple():
            return [_kind(one, above) for one in told]
        case type():
            return told.__name__
        case Enum():
            return str(told.value)
        case _:
            return told


def _schemas(package: Path) -> list[str]:
    """Every string constant of the source that names a format and its version."""
    found = set()
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if shapes.fullmatch(SCHEMA_STRING, text.strip()):
                    found.add(text.strip())
    return sorted(found)
