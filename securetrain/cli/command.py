# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A verb is a function whose parameters are its options, and which returns its page.

Rules, in order:

1. a parameter with an `Option` in its annotation is an option, one whose type is a dataclass a
   group of options (`options`), and any other an argument. The annotated type says the rest:
   ``bool`` is a flag, a tuple may be repeated, a ``Literal`` is a choice, and what is neither
   optional nor has a default is required. The help of a group's option is the string below its
   field;
2. the docstring is the help: all before its first example is the description, the rest stands below
   the options. A verb without examples of its own shows those of its module, or of its noun;
3. a verb that returns a `Document` gets ``--json``, ``--quiet`` and ``--verbose``; the document is
   printed here, and its exit code is the verb's. One that goes on after its page prints that itself
   (`Output.emit`), and returns the code (`Printed`). What prints while it works returns a number.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

import click

from securetrain.cli.kinds import FILE
from securetrain.core import field_notes
from securetrain.report import Document, emit


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An argument: all that its type does not say."""

    metavar: str | None = None
    type: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its flags, its help, and what its type does not say."""

    flags: str
    help: str = ""
    type: Any = None
    metavar: str | None = None
    env: str | None = None
    value: str | None = None
    """The value that the flag stands for, where several flags are one option."""
    required: bool = False
    hidden: bool = False

    def told(self, help: str = "", **changes: Any) -> "Option":  # noqa: A002 - click's word
        """The same option, as a verb tells of it."""
        return replace(self, help=help or self.help, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The form in which a verb answers."""

    format: str = "text"
    quiet: bool = False
    verbose: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Output":
        """The form that the options ask for."""
        form = "json" if given.get("as_json") else given.get("format_name", "text")
        quiet, verbose = given.get("quiet", False), given.get("verbose", False)
        return cls(format=form, quiet=quiet, verbose=verbose)

    def emit(self, document: Document) -> "Printed":
        """Print a document; its exit code."""
        return Printed(emit(document, self.format, quiet=self.quiet, verbose=self.verbose))


class Printed(int):
    """The exit code of a document that was printed."""


def verb(
    name: str = "",
    *,
    formats: Sequence[str] = (),
    text: str | None = None,
    json: str = "Print JSON.",
    cls: type[click.Command] = click.Command,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function.

    Args:
        name: Its name; by default, the function's.
        formats: Formats besides text and JSON.
        text: The help of ``--format``.
        json: The help of ``--json``; empty where there is none.
        cls: The kind of command.
    """

    def made(function: Callable[..., Any]) -> click.Command:
        signature = inspect.signature(function)
        wanted = [(one.name, one.annotation) for one in signature.parameters.values()]
        params: list[click.Parameter] = []
        for one in signature.parameters.values():
            params += _parameters(one.name, one.annotation, one.default)
        pages = signature.return_annotation in (Document, Printed)
        params += _output_options(formats, text, json, pages=pages)

        def call(**given: Any) -> Any:
            output = Output.of(given)
            built = {n: output if kind is Output else _built(n, kind, given) for n, kind in wanted}
            answer = function(**built)
            return output.emit(answer) if isinstance(answer, Document) else answer

        described, below = _help(function.__doc__)
        return cls(
            name or function.__name__.rstrip("_").replace("_", "-"),
            params=params,
            callback=call,
            help=described,
            epilog=below or None,
        )

    return made


class VerbGroup(click.Group):
    """Verbs about one thing, each loaded when it is used; listed in the order of their use."""

    def __init__(
        self,
        package: str,
        description: str | None,
        verbs: Mapping[str, Sequence[str]],
        *,
        name: str = "",
    ) -> None:
        """Find the `verbs` in the modules of `package` that they are listed by."""
        described, below = _help(description)
        name = name or package.rpartition(".")[2]
        super().__init__(name, help=described, epilog=below or None)
        self.verbs = {
            one: f"{package}.{file}".rstrip(".") for file, names in verbs.items() for one in names
        }

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of their use."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one verb."""
        if cmd_name not in self.verbs:
            return None
        module = importlib.import_module(self.verbs[cmd_name])
        name = cmd_name.replace("-", "_")
        found: click.Command = getattr(module, name, None) or getattr(module, f"{name}_")
        found.epilog = found.epilog or _help(module.__doc__)[1] or self.epilog
        return found


class _Option(click.Option):
    """An option whose help stands below its field: what most calls never read, is read late."""

    group: type[Any] | None = None

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """With the help of its group's field."""
        kinds = () if self.group is None else self.group.__mro__
        for kind in (one for one in kinds if is_dataclass(one)):
            if note := field_notes(kind).get(self.name or ""):
                self.help = note
                break
        return super().get_help_record(ctx)


def _built(name: str, annotation: Any, given: Mapping[str, Any]) -> Any:
    """The value of a parameter: of a group, from those of its fields."""
    if _is_group(annotation):
        own = {one.name: _built(one.name, one.type, given) for one in fields(annotation)}
        return annotation(**own)
    return given[name]


def _is_group(annotation: Any) -> TypeGuard[type[Any]]:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _parameters(
    name: str, annotation: Any, default: Any, group: type[Any] | None = None
) -> list[click.Parameter]:
    """The parameters of the command line for one of a function: rule 1."""
    if annotation is Output:
        return []
    if _is_group(annotation):
        return [
            one
            for field in fields(annotation)
            for one in _parameters(
                field.name,
                field.type,
                inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation,
            )
        ]
    marks: tuple[Any, ...] = ()
    optional = many = False
    while (origin := get_origin(annotation)) is Annotated or origin in (Union, types.UnionType):
        if origin is Annotated:
            marks, annotation = annotation.__metadata__, annotation.__origin__
        else:
            optional |= types.NoneType in get_args(annotation)
            annotation = next(one for one in get_args(annotation) if one is not types.NoneType)
    if origin is tuple and get_args(annotation)[-1] is Ellipsis:
        many, annotation = True, get_args(annotation)[0]
    given = default is not inspect.Parameter.empty
    settings: dict[str, Any] = {"type": _kind(annotation)}
    if given and default is not None and default != ():
        settings["default"] = default
    if annotation is bool and optional:
        settings["default"] = None
    required = not (optional or many or given or annotation is bool)
    found: list[click.Parameter] = []
    for mark in marks or (Argument(),):
        if isinstance(mark, Argument):
            found.append(_argument(name, mark, settings, many=many, required=required))
        else:
            option = _option(name, mark, settings, many=many, required=required)
            option.group = group
            found.append(option)
    return found


def _kind(annotation: Any) -> Any:
    if annotation is Path:
        return FILE
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    return annotation


def _argument(
    name: str, mark: Argument, settings: Mapping[str, Any], *, many: bool, required: bool
) -> click.Argument:
    kind = settings["type"] if mark.type is None else mark.type
    own = {"type": kind, "metavar": mark.metavar, "nargs": -1 if many else 1}
    return click.Argument([name], **{**settings, **own}, required=required or mark.required)


def _option(
    name: str, mark: Option, settings: Mapping[str, Any], *, many: bool, required: bool
) -> _Option:
    own: dict[str, Any] = {
        **settings,
        "help": mark.help,
        "metavar": mark.metavar,
        "envvar": mark.env,
        "show_envvar": mark.env is not None,
        "hidden": mark.hidden,
        "multiple": many,
        "required": required or mark.required,
    }
    if mark.type is not None:
        own["type"] = mark.type
    if mark.value is not None:
        own |= {"flag_value": mark.value, "type": None}
    elif own["type"] is bool:
        own |= {"type": None, "is_flag": True} if "/" not in mark.flags else {}
    default = settings.get("default")
    own["show_default"] = not isinstance(default, bool) and default not in {None, ""}
    return _Option([*mark.flags.split(), name], **own)


def _output_options(
    formats: Sequence[str], text: str | None, json: str, *, pages: bool
) -> Iterator[click.Option]:
    """Rule 3."""
    if formats:
        kinds = click.Choice(["text", "json", *formats])
        words = ["--format", "format_name"]
        yield click.Option(words, type=kinds, default="text", show_default=True, help=text)
        json = "The same as --format json."
    if json:
        yield click.Option(["--json", "as_json"], is_flag=True, help=json)
    if json and pages:
        yield click.Option(["-q", "--quiet"], is_flag=True, help="Print the verdict alone.")
        yield click.Option(["-v", "--verbose"], is_flag=True, help="Leave nothing out.")


def _help(text: str | None) -> tuple[str, str]:
    """Rule 2. Paragraphs with an indented line are shown as they stand."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    starts = ["\n " in one or one.startswith("Exit codes:") for one in paragraphs]
    first = starts.index(True) if True in starts else len(paragraphs)
    below = [f"\b\n{one}" if "\n " in one else one for one in paragraphs[first:]]
    return "\n\n".join(paragraphs[:first]), "\n\n".join(below)
