# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Shell commands as they would be run: words filled in, wrappers opened, files followed.

Rules:

1. nothing is run: what may run counts, whether its branch is taken or not;
2. a variable has the values that this text gives it, at most `MAX_VALUES`; one that may have
   several makes a call of each. What anybody else decides is a hole, and hides nothing beside it;
3. a shell, a wrapper, ``eval``, a function and a file of the folder are followed into what they
   run; the shell of another machine or container knows no variable of this one;
4. what cannot be followed is in `Commands.open`, with its place;
5. work is bounded (`MAX_STEPS`, `MAX_NESTED`, `MAX_CHARACTERS`), and so is what variables hold.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Final, TypeAlias

from securetrain.audit.facts import Location
from securetrain.audit.parser.files import is_script
from securetrain.audit.shell.programs import SHELLS, WRAPPERS, inner, program_of
from securetrain.audit.shell.syntax import SETTERS, Assignment, Node, Part, Word, parse
from securetrain.audit.shell.values import HOLE, Arg, Segment, always, arg_of, hole, joined

MAX_VALUES: Final = 8
MAX_TURNS: Final = 32
MAX_NESTED: Final = 12
MAX_STEPS: Final = 20_000
MAX_VALUE: Final = 32 << 10
MAX_ELEMENTS: Final = 1000
MAX_CHARACTERS: Final = 16 << 20
"""Characters that variables may add to one text."""

_SURE: Final = frozenset({":", "true", "cd", "mkdir", "echo", "set", "source", ".", *SETTERS})
_NAME: Final = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_FOREIGN: Final = re.compile(
    r"(?:.*/)?(?:activate|\.?(?:bash)?rc|\.?(?:bash_)?profile|conda\.sh|setvars\.sh|modules?\.sh"
    r"|(?:init/|profile\.d/|lmod).*)\Z|/etc/(?:profile|os-release)\Z"
)
"""Files that set up a tool and are no part of a launch."""

Value: TypeAlias = tuple[tuple[Segment, ...], ...]
"""The elements of an array, or the one of a plain variable; none of one that is not set."""
Folder: TypeAlias = Callable[[str], Arg | str]
"""The text of a file by its name, or the reason why there is none."""


@dataclass(slots=True)
class Call:
    """A program with its words."""

    program: str
    args: tuple[Arg, ...]
    """Without the program itself."""
    at: Location
    pipeline: int = 0
    fed_by: int = 0
    """The pipeline of the process substitution that it reads."""
    within: tuple["Call", ...] = ()
    """The programs that run it, the outermost first."""
    targets: tuple[str, ...] = ()
    """Files that its output goes to."""
    opened: bool = False
    """Whether what it runs is among the calls too."""
    environment: Mapping[str, tuple[Arg, ...]] = field(default_factory=dict)
    """The variables that this text exports to it."""


@dataclass(frozen=True, slots=True)
class Open:
    """Something that could not be followed."""

    at: Location
    why: str
    is_foreign: bool = False
    """Whether it is known to be no part of a launch."""
    bears_on: tuple[str, ...] = ()
    """The evidence that it could answer; any, where this is empty."""


@dataclass(slots=True)
class Commands:
    """All of a text: its calls, assignments and here-documents."""

    calls: list[Call] = field(default_factory=list)
    settings: list[tuple[str, Arg]] = field(default_factory=list)
    bodies: list[tuple[Call, Arg]] = field(default_factory=list)
    open: list[Open] = field(default_factory=list)
    exported: Mapping[str, tuple[Arg, ...]] = field(default_factory=dict)
    """The variables that are exported when all is done."""


@dataclass(slots=True)
class _State:
    """The knowledge of one shell."""

    variables: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Node, Arg]] = field(default_factory=dict)
    arguments: Value | None = None
    """None where the caller decides them."""

    def copy(self) -> "_State":
        return _State({**self.variables}, {*self.exported}, {**self.functions}, self.arguments)

    def values(self, name: str) -> tuple[Value, ...]:
        return self.variables.get(name) or (_unknown(name),)

    def join(self, other: "_State") -> "_State":
        """The knowledge after one of two ways."""
        for name in self.variables.keys() | other.variables.keys():
            if self.variables.get(name) != other.variables.get(name):
                both = tuple(dict.fromkeys((*self.values(name), *other.values(name))))
                self.variables[name] = both if len(both) <= MAX_VALUES else (_unknown(name),)
        self.exported |= other.exported
        self.functions |= other.functions
        self.arguments = self.arguments if self.arguments == other.arguments else None
        return self

    def restore(self, names: Mapping[str, tuple[Value, ...] | None]) -> None:
        """Put variables back."""
        for name, values in names.items():
            self.variables.pop(name, None)
            if values is not None:
                self.variables[name] = values


class _TooMuch(Exception):  # noqa: N818 - it never leaves this module
    """The work is bounded."""


def evaluate(text: Arg, folder: Folder | None = None, within: tuple[Call, ...] = ()) -> Commands:
    """The commands of a script.

    Args:
        text: The script.
        folder: Reads the files that it runs.
        within: The programs that run it.
    """
    return _Evaluator({}, folder, within).bounded(text, lambda one: one.script(text))


def evaluate_words(words: Sequence[Arg], variables: Mapping[str, Arg]) -> Commands:
    """The commands of a container: `words` are its command and args, which no shell reads."""
    if not words:
        return Commands()
    return _Evaluator(variables, None, ()).bounded(words[0], lambda one: one.run(list(words)))


class _Evaluator:
    def __init__(
        self, variables: Mapping[str, Arg], folder: Folder | None, within: tuple[Call, ...]
    ) -> None:
        known: dict[str, tuple[Value, ...]] = {
            name: ((value.segments,),) for name, value in variables.items()
        }
        self.found = Commands()
        self.state = _State(known, set(known))
        self.folder = folder
        self.within = within
        self.source = arg_of((), Location(path=""))
        self.left = ""
        """How a block was left early: ``loop``, ``function``."""
        self.nested = self.steps = self.characters = self.pipelines = self.pipeline = 0
        self.fed_by = self.branching = 0
        self.called: set[str] = set()
        self.reading: tuple[str, ...] = ()
        self.locals: dict[str, tuple[Value, ...] | None] = {}

    def bounded(self, text: Arg, work: "Callable[[_Evaluator], None]") -> Commands:
        """Do the work, and say so if it was too much."""
        try:
            work(self)
        except _TooMuch as error:
            self.open(text.at, str(error))
        self.found.exported = self.exported(text.at)
        return self.found

    def open(self, at: Location, why: str, *, is_foreign: bool = False) -> None:
        """Note what is not followed."""
        self.found.open.append(Open(at, why, is_foreign))

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise _TooMuch(f"more than {MAX_STEPS} commands would run")

    @contextmanager
    def placed(self, **values: object) -> Iterator[None]:
        """Be in another place for a while."""
        before = {name: getattr(self, name) for name in values}
        for name, value in values.items():
            setattr(self, name, value)
        yield
        for name, value in before.items():
            setattr(self, name, value)

    def _child(self, *, far: bool = False, arguments: Value | None = ()) -> _State:
        """A shell of its own, which knows what is exported to it."""
        names = set() if far else self.state.exported & self.state.variables.keys()
        known = {name: one for name, one in self.state.variables.items() if name in names}
        return _State(known, names, arguments=arguments)

    # --- commands --------------------------------------------------------------------------------

    def script(self, text: Arg) -> None:
        """Follow a text that a shell reads."""
        if self.nested >= MAX_NESTED:
            self.open(text.at, f"commands nested deeper than {MAX_NESTED}")
            return
        read = parse(text.text)
        for problem in read.problems:
            self.open(text.place(problem.start), problem.why)
        with self.placed(source=text, pipeline=0, nested=self.nested + 1):
            self.block(read.block)
            if self.nested == 1:
                for name in sorted(self.state.functions.keys() - self.called):
                    self.one_of([partial(self.function, name, None), _nothing])

    def block(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if self.left:
                self.one_of([partial(self.node, node), _nothing])
            else:
                self.node(node)

    def one_of(self, works: Sequence[Callable[[], None]]) -> None:
        """Do what is one of several."""
        before, after = self.state, []
        self.branching += len(works) > 1
        for work in works:
            self.state = before.copy()
            work()
            after.append(self.state)
        self.state = reduce(_State.join, after)
        self.branching -= len(works) > 1

    def node(self, node: Node) -> None:  # noqa: C901 - an arm for each kind
        """Follow one command."""
        self.step()
        match node.kind:
            case "simple":
                self.each(node, partial(self.simple, node))
            case "test":
                self.args(node.words, split=False)
            case "pipeline" | "subshell":
                self.pipelines += 1
                number = self.pipelines if node.kind == "pipeline" else self.pipeline
                for block in node.blocks:
                    with self.placed(state=self.state.copy(), left=self.left, pipeline=number):
                        self.block(block)
            case "and" | "or":
                left, right = node.blocks
                self.block(left)
                sure = node.kind == "and" and _is_sure(left[-1])
                self.one_of([partial(self.block, right), *([] if sure else [_nothing])])
            case "if" | "choice":
                self.block(node.blocks[0])
                works = [partial(self.block, block) for block in node.blocks[1:]]
                self.one_of([*works, *([_nothing] if node.kind == "if" else [])])
            case "for":
                self.each(node, lambda: self.loop(node, self.args(node.words)))
            case "loop":
                self.loop(node, None)
            case "group":
                self.block(node.blocks[0])
            case "function":
                self.state.functions[node.name] = (node.blocks[0][0], self.source)
            case _:
                raise AssertionError(node.kind)
        if node.kind != "simple":
            self.args([word for _, word in node.redirections], split=False)

    def loop(self, node: Node, turns: list[Arg] | None) -> None:
        """A loop over known words takes its turns; of any other one may be left out."""
        before = self.left

        def turn(value: Value | None) -> None:
            if value is not None:
                self.state.variables[node.name] = (value,)
            self.block(node.blocks[0])

        value = tuple(one.segments for one in turns or ())
        if turns is None or len(turns) > MAX_TURNS or _uncertain(value):
            for name in {*_assigned(node.blocks[0]), node.name} - {""}:
                more = (*self.state.values(name), _unknown(name))
                self.state.variables[name] = more[-MAX_VALUES:]
            self.one_of([lambda: turn(_unknown(node.name) if node.name else None), _nothing])
        else:
            for one in value:
                self.one_of([partial(turn, (one,)), *([_nothing] if self.left else [])])
        self.left = before if self.left == "loop" else self.left

    def function(self, name: str, arguments: Value | None) -> None:
        """Follow a function with these arguments."""
        self.called.add(name)
        node, source = self.state.functions[name]
        if self.nested >= MAX_NESTED:
            why = f"the function {name[:40]} calls itself, or more than {MAX_NESTED} others"
            self.open(source.place(node.start), why)
            return
        before, self.state.arguments = self.state.arguments, arguments
        with self.placed(source=source, left="", nested=self.nested + 1, locals={}, branching=0):
            self.node(node)
            self.state.restore(self.locals)
        self.state.arguments = before

    def each(self, node: Node, work: Callable[[], None]) -> None:
        """Do it once for each of the values of the variables in a command."""
        names = {name for word in _words_of(node) for name in _names(word.parts)}
        known = {name: self.state.variables.get(name, ()) for name in sorted(names)}
        several = {name: values for name, values in known.items() if len(values) > 1}
        while prod(len(values) for values in several.values()) > MAX_VALUES:
            name = max(several, key=lambda one: len(several[one]))
            several[name] = (_unknown(name),)

        def with_values(values: tuple[Value, ...]) -> None:
            chosen = {name: (value,) for name, value in zip(several, values, strict=True)}
            self.state.variables |= chosen
            work()
            for name in chosen.keys() - {one.name for one in node.assignments}:
                if self.state.variables.get(name) == chosen[name]:
                    self.state.variables[name] = known[name]

        works = [partial(with_values, values) for values in product(*several.values())]
        self.one_of(works) if several else work()

    def simple(self, node: Node) -> None:
        """Follow a simple command."""
        words = self.args(node.words)
        program = words[0].text if words else ""
        before = {one.name: self.state.variables.get(one.name) for one in node.assignments}
        exported = set(self.state.exported)
        exports = program not in {*SETTERS, ""} - {"export"}
        exports = exports or any(re.match(r"-\w*x", one.text) for one in words)
        for one in node.assignments:
            if program == "local":
                self._localize(one.name)
            self.assign(one, exports=exports)
        outputs = [word for sign, word in node.redirections if ">" in sign and "&" not in sign]
        bodies = [word for sign, word in node.redirections if sign in {"<<", "<<<"}]
        names = tuple(one.text for one in self.args(outputs, split=False))
        feeds = self.args(bodies, split=False)
        self.args([w for _, w in node.redirections if w not in outputs + bodies], split=False)
        if program in SETTERS:
            self._declare(program, [one.text for one in words[1:]], exports=exports)
        elif words:
            self.run(words, names, feeds)
            self.fed_by = 0
            self.state.restore(before)
            if before:
                self.state.exported &= exported

    def _declare(self, program: str, texts: list[str], *, exports: bool) -> None:
        for name in filter(_NAME.match, texts):
            if exports:
                self.state.exported.add(name)
            if program == "local":
                self._localize(name)
                self.state.variables[name] = ((),)

    def _localize(self, name: str) -> None:
        """Let the function give a variable back; in a branch, nobody knows which one it was."""
        before = (_unknown(name),) if self.branching else self.state.variables.get(name)
        self.locals.setdefault(name, before)

    def assign(self, one: Assignment, *, exports: bool) -> None:
        """Give a variable its value."""
        args = self.args(one.words, split=one.is_array)
        args = args or [] if one.is_array else args or [arg_of((), self.source.place(one.start))]
        if args:
            self.found.settings.append((one.name, joined(args)))
        value = tuple(arg.segments for arg in args)
        old = self.state.values(one.name)
        if one.append and len(old) == 1 and one.is_array:
            value = old[0] + value
        elif one.append and len(old) == 1:
            value = ((*(old[0] or ((),))[0], *value[0]), *old[0][1:])
        elif one.append or one.index:
            value = _unknown(one.name)
        if len(value) > MAX_ELEMENTS or _length(value) > MAX_VALUE:
            value = _unknown(one.name)
        before = self.state.variables.get(one.name, ()) if self.source.branches else ()
        values = tuple(dict.fromkeys((*before, value)))
        known = values if len(values) <= MAX_VALUES else (_unknown(one.name),)
        self.state.variables[one.name] = known
        if exports or "allexport" in self.state.exported:
            self.state.exported.add(one.name)

    # --- what is run -----------------------------------------------------------------------------

    def run(
        self, words: list[Arg], targets: tuple[str, ...] = (), bodies: list[Arg] | None = None
    ) -> None:
        """Follow a program with its words."""
        self.step()
        first, bodies = words[0], bodies or []
        if first.text in self.state.functions:
            self.function(first.text, tuple(one.segments for one in words[1:]))
            return
        self.pipelines += not self.pipeline
        call = Call(
            program_of(first),
            tuple(words[1:]),
            first.at,
            self.pipeline or self.pipelines,
            self.fed_by,
            self.within,
            targets,
            environment=self.exported(first.at),
        )
        self.found.calls.append(call)
        self.found.bodies.extend((call, one) for one in bodies)
        if HOLE in call.program:
            self.open(first.at, f"{_shown(first)} decides what is run")
        elif built_in := _BUILT_IN.get(call.program):
            built_in(self, call, bodies)
        elif len(self.within) >= MAX_NESTED:
            self.open(first.at, f"commands nested deeper than {MAX_NESTED}")
        elif call.program in SHELLS:
            self._shell(call, bodies)
        elif call.program in WRAPPERS:
            self._wrapper(call, bodies)
        elif "/" in first.text:
            self._file(call, first, call.args)

    def exported(self, at: Location) -> dict[str, tuple[Arg, ...]]:
        """The variables that a program started now gets, each with the values that it may have."""
        known = self.state.variables
        names = sorted(self.state.exported & known.keys())
        return {name: tuple(arg_of(one[0], at) for one in known[name] if one) for name in names}

    def _inner(self, call: Call, texts: Iterable[Arg], state: _State, file: str = "") -> None:
        """Follow texts that a program hands to a shell."""
        reading = (*self.reading, *([file] if file else []))
        for text in texts:
            call.opened = True
            with self.placed(within=(*self.within, call), state=state, reading=reading):
                self.script(text)

    def _shell(self, call: Call, bodies: list[Arg]) -> None:
        i = 0
        while call.args[i:] and re.match(r"[-+]\w|--\w", call.args[i].text):
            if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", call.args[i].text) and call.args[i + 1 :]:
                arguments = tuple(one.segments for one in call.args[i + 3 :])
                self._inner(call, [call.args[i + 1]], self._child(arguments=arguments))
                return
            i += 2 if call.args[i].text in {"-o", "+o", "-O", "--rcfile", "--init-file"} else 1
        i += any(one.text in {"-", "--"} for one in call.args[i : i + 1])
        if call.args[i:]:
            self._file(call, call.args[i], call.args[i + 1 :])
        elif self.pipeline and not bodies:
            self.open(call.at, f"{call.program} runs what it reads from a pipe")
        self._inner(call, bodies, self._child())

    def _wrapper(self, call: Call, bodies: list[Arg]) -> None:
        wrapper = WRAPPERS[call.program]
        first = inner(call.program, call.args)
        rest = list(call.args[first:])
        if call.program in {"xargs", "parallel"}:
            rest.append(arg_of([hole(f"the input of {call.program}", always(call.at))], call.at))
        state = self._child(far=wrapper.far, arguments=None)
        option = {"option": "-c", "words": "--wrap"}.get(wrapper.runs)
        pairs = zip(call.args, call.args[1:], strict=False)
        texts = [text for before, text in pairs if before.text == option]
        texts += [one.part(7) for one in call.args if one.text.startswith("--wrap=")]
        if wrapper.runs in {"text", "first"} and rest:
            texts = [joined(rest[:1] if wrapper.runs == "first" else rest)]
        if texts:
            self._inner(call, texts, state)
        elif rest and wrapper.runs == "words":
            call.opened = True
            with self.placed(within=(*self.within, call), state=state, pipeline=call.pipeline):
                self._set_by(call.args[:first])
                self.run(rest, call.targets, bodies)
            return
        elif unknown := next((one for one in call.args if one.rest), None):
            self.open(unknown.at, f"{_shown(unknown)} may be what {call.program} runs")
        if not wrapper.verbs:
            self._inner(call, bodies, state)

    def _set_by(self, args: Iterable[Arg]) -> None:
        """``env NAME=VALUE``, ``mpirun -x NAME=VALUE``."""
        for one in args:
            if found := re.match(r"([A-Za-z_]\w*)=", one.text):
                value = one.part(found.end())
                self.found.settings.append((found[1], value))
                self.state.variables[found[1]] = ((value.segments,),)
                self.state.exported.add(found[1])

    def _file(self, call: Call, name: Arg, args: Iterable[Arg]) -> None:
        """Follow a script of the folder; by its first line, whatever it is called."""
        is_named = call.program in SHELLS or is_script(name.text, "")
        if text := self.text_of(name) if is_named else self._unnamed(name):
            arguments = tuple(one.segments for one in args)
            self._inner(call, [text], self._child(arguments=arguments), name.text)

    def _unnamed(self, name: Arg) -> Arg | None:
        """The text of a program of the folder that begins as a script."""
        if self.folder is None or name.opens or "/" not in name.text:
            return None
        text = self.folder(name.text)
        if not isinstance(text, Arg) or not is_script("", text.text[:80]):
            return None
        return self.text_of(name) if name.text in self.reading else text

    def text_of(self, name: Arg) -> Arg | None:
        """A file's text; what is not there is open, unless it is known to be none of ours."""
        why = f"{_shown(name)} {'decides which file is run' if name.opens else 'is not read'}"
        if name.text in self.reading:
            why = f"{name.text[:60]} runs itself"
        elif not name.opens and self.folder is not None:
            text = self.folder(name.text)
            if isinstance(text, Arg):
                return text
            why = f"{name.text[:60]}: {text}"
        self.open(name.at, why, is_foreign=bool(_FOREIGN.match(name.text)))
        return None

    # --- words -----------------------------------------------------------------------------------

    def args(self, words: Iterable[Word], *, split: bool = True) -> list[Arg]:
        """The words as a program gets them."""
        return [arg for word in words for arg in self.fields(word.parts, word.start, split=split)]

    def fields(self, parts: Iterable[Part], start: int, *, split: bool) -> list[Arg]:  # noqa: C901
        """Parts as the fields that bash makes of them."""
        found: list[Arg] = []
        current: list[Segment] = []
        there, quotes, void = not split, False, False
        """Whether a word is one without text; quotes stand in it; these hold an empty ``"$@"``."""

        def end() -> None:
            nonlocal current, there, quotes, void
            if current or there or (quotes and not void):
                at = current[0].at() if current else self.source.place(start)
                found.append(arg_of(current, at))
            current, there, quotes, void = [], False, False, False

        for part in parts:
            splits = split and not part.quoted
            if part.quoted and (not quotes or not part.text):
                there, quotes, void = there or (quotes and not void), True, False
            value, are = self.part(part, splits=splits)
            void = void or (are == "words" and not value and part.quoted)
            for number, element in enumerate(value):
                if number and are and split:
                    end()
                elif number and not _uncertain((element[:1], value[number - 1][-1:])):
                    current.append(Segment(" ", always(self.source.place(start))))
                if are == "fields" or not splits:
                    there = there or bool(are)
                    current += element if are else [one.splitting(False) for one in element]
                    continue
                for one in element:
                    for token in re.finditer(r"\s+|\S+", one.text):
                        if token[0].isspace():
                            end()
                        else:
                            current.append(one.part(*token.span()).splitting(bool(one.name)))
        end()
        return found

    def part(self, part: Part, *, splits: bool) -> tuple[Value, str]:
        """The value of a part; its elements are ``words`` of their own, or ``fields``, split."""
        here = always(self.source.place(part.start))
        match part.kind:
            case "text" if self.source.text.startswith(part.text, part.start):
                return (self.source.part(part.start, part.start + len(part.text)).segments,), ""
            case "text":
                return ((Segment(part.text, here),),), ""
            case "parameter":
                value, are = self.parameter(part, splits=splits)
                if part.quoted and any("\n" in one.text for element in value for one in element):
                    return value, are  # a script in a variable stands where it is written
                return tuple(tuple(one.moved(here, part.name) for one in e) for e in value), are
            case "commands" | "file":
                return (self.output(part),), ""
            case _:
                return ((hole(part.text[:60], here),),), ""

    def parameter(self, part: Part, *, splits: bool) -> tuple[Value, str]:
        """The value of a variable or argument."""
        every = {part.name, part.index} & {"@", "*"}
        are = "words" if "@" in every or (every and not part.quoted) else ""
        known = self.state.variables.get(part.name, ())
        index = part.index
        if part.name in {"@", "*"} or part.name.isdigit():
            known = () if self.state.arguments is None else (self.state.arguments,)
            index = "" if every else str((_number(part.name) or 0) - 1)
        value = known[0] if len(known) == 1 else _unknown(part.name)
        if not every:
            number = _number(index or "0")
            if number is None or (index and _uncertain(value[: number + 1])):
                value = _unknown(part.name)
            else:
                value = value[number : number + 1]
        self.characters += _length(value)
        if self.characters > MAX_CHARACTERS:
            raise _TooMuch(f"variables fill in more than {MAX_CHARACTERS} characters")
        return self._operated(part, value, are, splits=splits)

    def _operated(self, part: Part, value: Value, are: str, *, splits: bool) -> tuple[Value, str]:
        """The value behind an operator such as ``:-``."""
        sign = part.operator[-1:]
        if part.operator == "other":
            return _unknown(part.text[2:-1][:60]), are
        known = any(not one.name for element in value for one in element)
        if sign not in {"-", "=", "+"}:
            return value, are
        word = self.fields(part.word, part.start, split=splits)
        if not known and any(one.name for element in value for one in element):
            return _unknown(part.name), are
        is_set = known or (bool(value) and ":" not in part.operator)
        if (sign == "+") != is_set:
            return ((),) if sign == "+" else value, are
        if sign != "=" and splits:
            return tuple(one.segments for one in word), "fields"
        value = (joined(word).segments,) if word else ((),)
        if sign == "=":
            self.state.variables[part.name] = (value,)
        return value, are

    def output(self, part: Part) -> tuple[Segment, ...]:
        """The output of commands, where a here-document says it; else a hole."""
        first = len(self.found.calls)
        self.pipelines += 1
        number = self.pipelines if part.kind == "file" else 0
        with self.placed(state=self.state.copy(), left=self.left, pipeline=number, fed_by=0):
            self.block(part.body)
        self.fed_by = number or self.fed_by
        calls = self.found.calls[first:]
        for call, body in self.found.bodies[-1:]:
            if calls == [call] and call.program == "cat" and not call.args and not number:
                return body.part(0, len(body.text.rstrip("\n"))).segments
        return (hole(part.text[:60], always(self.source.place(part.start))),)


# --- built in ------------------------------------------------------------------------------------


def _eval(shell: _Evaluator, call: Call, _: list[Arg]) -> None:
    if call.args:
        call.opened = True
        with shell.placed(within=(*shell.within, call)):
            shell.script(joined(call.args))


def _source(shell: _Evaluator, call: Call, _: list[Arg]) -> None:
    text = shell.text_of(call.args[0]) if call.args else None
    if text is not None:
        before = shell.state.arguments
        if call.args[1:]:
            shell.state.arguments = tuple(one.segments for one in call.args[1:])
        with shell.placed(reading=(*shell.reading, call.args[0].text)):
            shell.script(text)
        shell.state.arguments = before


def _set(shell: _Evaluator, call: Call, _: list[Arg]) -> None:
    texts = [one.text for one in call.args]
    first = 0
    while texts[first:] and (found := re.match(r"([-+])(\w+)", texts[first])):
        first += 1 + ("o" in found[2])
        if "a" in found[2] or texts[first - 1 : first] == ["allexport"]:
            exported = shell.state.exported
            (exported.add if found[1] == "-" else exported.discard)("allexport")
    if texts[first:] not in ([], ["-"]):
        operands = call.args[first + (texts[first] in {"-", "--"}) :]
        shell.state.arguments = tuple(one.segments for one in operands)


def _shift(shell: _Evaluator, call: Call, _: list[Arg]) -> None:
    given, count = shell.state.arguments, _number(call.args[0].text if call.args else "1")
    if given is None or count is None or _uncertain(given):
        shell.state.arguments = None
    elif count <= len(given):
        shell.state.arguments = given[count:]


def _unset(shell: _Evaluator, call: Call, _: list[Arg]) -> None:
    for one in call.args:
        shell.state.variables[one.text] = ((),)
        shell.state.functions.pop(one.text, None)


def _read(shell: _Evaluator, call: Call, bodies: list[Arg]) -> None:
    names = [one.text for one in call.args if _NAME.match(one.text)]
    shell.state.variables |= {name: (_unknown(name),) for name in names}
    if names and bodies and any(not one.text for one in call.args):
        body = bodies[-1].part(0, len(bodies[-1].text.rstrip("\n")))
        shell.state.variables[names[-1]] = ((body.segments,),)


def _leave(shell: _Evaluator, call: Call, _: list[Arg]) -> None:
    shell.left = "function" if call.program == "return" else shell.left or "loop"


_BUILT_IN: Final[Mapping[str, Callable[[_Evaluator, Call, list[Arg]], None]]] = {
    "eval": _eval,
    **dict.fromkeys(("source", "."), _source),
    "set": _set,
    "shift": _shift,
    "unset": _unset,
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), _read),
    **dict.fromkeys(("return", "break", "continue"), _leave),
}


def _nothing() -> None:
    """Leave it out."""


def _unknown(name: str) -> Value:
    return ((hole(name, always(Location(path=""))),),)


def _number(text: str) -> int | None:
    """A number as bash reads it, if it is one that can matter."""
    return int(text) if re.fullmatch(r"0|[1-9][0-9]{0,3}", text) else None


def _uncertain(value: Value) -> bool:
    """Return whether the number of elements is not known."""
    return any(one.splits for element in value for one in element)


def _length(value: Value) -> int:
    return sum(len(one.text) for element in value for one in element)


def _shown(arg: Arg) -> str:
    return next((one.shown for one in arg.segments if one.name), arg.text)[:60]


def _is_sure(node: Node) -> bool:
    """Return whether a command hardly fails, so that what follows ``&&`` runs."""
    if node.kind == "and":
        return _is_sure(node.blocks[1][-1])
    return node.kind == "simple" and (not node.words or node.words[0].parts[0].text in _SURE)


def _words_of(node: Node) -> Iterator[Word]:
    yield from node.words
    yield from (word for one in node.assignments for word in one.words)
    yield from (word for _, word in node.redirections)


def _names(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if part.kind == "parameter":
            yield part.name
            yield from _names(part.word)


def _assigned(nodes: Iterable[Node]) -> Iterator[str]:
    """The variables that commands set."""
    for node in nodes:
        yield from (one.name for one in node.assignments)
        yield node.name if node.kind == "for" else ""
        if node.words and node.words[0].parts[0].text == "read":
            yield from ("".join(part.text for part in word.parts) for word in node.words[1:])
        for block in node.blocks:
            yield from _assigned(block)
