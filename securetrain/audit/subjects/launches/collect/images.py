# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Scripts inside files that are no scripts: recipes of images, Terraform, environments of Ray.

Rules:

1. a Dockerfile and a definition of Apptainer give two scripts: what builds the image, and what
   starts in it, with the variables that the image sets;
2. every character has its place in the file;
3. a variable that ``ARG`` sets is open: whoever builds may set another;
4. a stage begins with the variables of the one that it is made from, else with none;
5. of Terraform, here-documents that begin as a shell's script are read;
6. a runtime environment of Ray (``runtimeEnvYAML``) is the commands that Ray makes of it, each in
   its line: ``pip install`` when the job starts, and exports.

Formats: the Dockerfile reference, the Apptainer user guide and the HCL native syntax, as of
2026-11.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from securetrain.audit.parser.files import bare
from securetrain.audit.shell.syntax import MAX_TEXT
from securetrain.audit.shell.values import Place, Places
from securetrain.audit.subjects.launches.facts import Form

_INSTRUCTION: Final = re.compile(
    r"[ \t]*(?:ONBUILD[ \t]+)?(FROM|ENV|ARG|RUN|CMD|ENTRYPOINT|ADD|HEALTHCHECK)\b[ \t]*",
    re.IGNORECASE,
)
_FLAG: Final = re.compile(r"--[a-z][\w-]*(?:=\S*)?[ \t]+")
_HERE: Final = re.compile(r"<<-?[ \t]*([\"']?)([A-Za-z_]\w*)\1")
_PAIRS: Final = re.compile(r"[A-Za-z_]\w*=")
_OLD_ENV: Final = re.compile(r"([A-Za-z_]\w*)[ \t]+")
_FROM: Final = re.compile(r"(\S+)(?:[ \t]+AS[ \t]+(\S+))?", re.IGNORECASE)
_SECTION: Final = re.compile(r"^%([a-z]+)[^\n]*\n?", re.MULTILINE)
_BUILDS: Final = frozenset({"setup", "post", "test"})
_STARTS: Final = frozenset({"environment", "runscript", "startscript"})
_BEGINS: Final = re.compile(r"([\w-]{0,80})[\"]?[ \t]*[=(][^\n]{0,200}?<<-?[ \t]*(\w+)[ \t]*\r?\n")
"""A here-document of HCL, with the attribute before it."""
_SHEBANG: Final = re.compile(r"\s*#!\s*\S*sh\b|\s*#!\s*/usr/bin/env\s+\S*sh\b")
_CLOUD: Final = re.compile(r"\s*#cloud-config\b|\s*#cloud-boothook|Content-Type: multipart")
_URL: Final = re.compile(r"https?://\S+")


@dataclass(frozen=True, slots=True)
class Script:
    """A script inside a file."""

    name: str
    form: Form
    text: str
    place: Place
    unread: str = ""
    """Why its commands are not known."""


def scripts(path: str, text: str) -> Iterator[Script]:
    """Yield the scripts of a file of such a name."""
    name = PurePosixPath(bare(PurePosixPath(path).name))
    if len(text) > MAX_TEXT:
        yield Script(
            "text", Form.SCRIPT, "", Places(path, text).at, f"longer than {MAX_TEXT} characters"
        )
    elif name.suffix in {".tf", ".hcl"}:
        yield from _terraform(path, text)
    elif name.suffix == ".def":
        yield from _definition(path, text)
    else:
        yield from _ImageFile(path, text).scripts()


@dataclass(slots=True)
class _Text:
    """A script in the making, with the offset of each character in the file."""

    path: str
    file: str
    parts: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)

    def add(self, start: int, end: int) -> None:
        """Add a part of the file."""
        self.parts.append(self.file[start:end])
        self.at.extend(range(start, end))

    def say(self, text: str, at: int) -> None:
        """Add what does not stand there."""
        self.parts.append(text)
        self.at.extend([at] * len(text))

    def script(self, name: str, form: Form) -> Iterator[Script]:
        """Yield it, unless nothing is in it."""
        text = "".join(self.parts)
        if text.strip():
            places = Places(self.path, self.file)
            yield Script(name, form, text, places.through(self.at, places.at(0)))


# --- Dockerfile ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _ImageFile:
    """Reads a Dockerfile instruction by instruction."""

    path: str
    text: str
    building: _Text = field(init=False)
    stage: _Text = field(init=False)
    stages: dict[str, _Text] = field(default_factory=dict)
    commands: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.building, self.stage = _Text(self.path, self.text), _Text(self.path, self.text)

    def scripts(self) -> Iterator[Script]:
        """Yield what builds the image, and what starts in it."""
        for start, end in _instructions(self.text):
            found = _INSTRUCTION.match(self.text, start, end)
            if found is not None:
                begin = found.end()
                while flag := _FLAG.match(self.text, begin, end):
                    begin = flag.end()
                self._take(found[1].upper(), begin, end)
        entry, command = self.commands.get("ENTRYPOINT"), self.commands.get("CMD")
        for one in (entry, command):
            if one is not None:
                _command(self.stage, *one, newline=one is command or command is None)
        yield from self.building.script("build", Form.BUILD)
        yield from self.stage.script("start", Form.CONTAINER)

    def _take(self, word: str, begin: int, end: int) -> None:
        match word:
            case "FROM":
                self._from(_FROM.match(self.text, begin, end))
            case "ENV":
                _variables(self.stage, begin, end, "export ")
                _variables(self.building, begin, end, "")
            case "ARG":
                _argument(self.building, begin, end)
            case "RUN":
                _command(self.building, begin, end)
            case "CMD" | "ENTRYPOINT":
                self.commands[word] = (begin, end)
            case "HEALTHCHECK" if self.text[begin:end].upper().startswith("CMD"):
                _command(self.stage, begin + 3, end)
            case "ADD" if url := _URL.search(self.text, begin, end):
                self.building.say("curl ", url.start())
                self.building.add(url.start(), url.end())
                self.building.say("\n", end - 1)
            case _:
                pass

    def _from(self, found: re.Match[str] | None) -> None:
        """Begin a stage."""
        base, name = found.groups() if found else ("", None)
        before = self.stages.get(base.lower(), _Text(self.path, self.text))
        self.stage = _Text(self.path, self.text, [*before.parts], [*before.at])
        self.stages[(name or str(len(self.stages))).lower()] = self.stage
        self.commands = {}


def _lines(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the lines of a part of a text."""
    while begin < end:
        stop = text.find("\n", begin, end) + 1 or end
        yield begin, stop
        begin = stop


def _instructions(text: str) -> Iterator[tuple[int, int]]:
    """Yield each instruction, with the lines and here-documents that belong to it."""
    start, ends, goes_on = 0, list[str](), False
    for begin, stop in _lines(text, 0, len(text)):
        line = text[begin:stop].strip()
        if ends and not goes_on:
            ends = ends[line == ends[0] :]
        elif not goes_on or not line.startswith("#"):
            ends.extend(found[2] for found in _HERE.finditer(line))
            goes_on = line.endswith("\\")
        if not goes_on and not ends:
            yield start, stop
            start = stop
    if start < len(text):
        yield start, len(text)


def _commands(text: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the lines of an instruction without the comments between them."""
    for start, stop in _lines(text, begin, end):
        if start == begin or not text[start:stop].lstrip().startswith("#"):
            yield start, stop


def _variables(script: _Text, begin: int, end: int, export: str) -> None:
    text = script.file
    script.say(export, begin)
    if _PAIRS.match(text, begin, end) is None and (old := _OLD_ENV.match(text, begin, end)):
        script.add(old.start(1), old.end(1))
        script.say('="', old.end())
        script.add(old.end(), end - 1 if text[end - 1] == "\n" else end)
        script.say('"', end - 1)
    else:
        for start, stop in _commands(text, begin, end):
            script.add(start, stop)
    script.say("\n", end - 1)


def _argument(script: _Text, begin: int, end: int) -> None:
    name, equals, _ = script.file[begin:end].strip().partition("=")
    if equals and _PAIRS.match(f"{name}="):
        script.say(f"{name}=${{{name}:-}}\n", begin)


def _command(script: _Text, begin: int, end: int, *, newline: bool = True) -> None:
    text = script.file
    if text.startswith("[", begin):
        try:
            words = json.loads(text[begin:end].replace("\\\n", ""))
        except ValueError:
            words = None
        if isinstance(words, list) and all(isinstance(one, str) for one in words):
            i = begin
            for word in words:
                i = max(i, text.find(json.dumps(word)[1:-1][:20], i, end))
                script.say("'" + word.replace("'", "'\\''") + "' ", i)
            script.say("\n" if newline else " ", end - 1)
            return
    here = _HERE.match(text, begin, end)
    if here is not None:
        script.say("sh ", begin)
    whole = [(begin, end)] if _HERE.search(text, begin, end) else _commands(text, begin, end)
    for start, stop in whole:
        script.add(start, stop)
    script.say("\n" if newline else " ", end - 1)


# --- others --------------------------------------------------------------------------------------


def _definition(path: str, text: str) -> Iterator[Script]:
    """Yield the scripts of a definition of Apptainer."""
    building, starting = _Text(path, text), _Text(path, text)
    marks = [*_SECTION.finditer(text)]
    stops = [*(one.start() for one in marks[1:]), len(text)]
    sections = sorted(zip(marks, stops, strict=False), key=lambda one: one[0][1] != "environment")
    for mark, stop in sections:
        for names, script in ((_BUILDS, building), (_STARTS, starting)):
            if mark[1] in names:
                script.add(mark.end(), stop)
                script.say("\n", stop - 1)
    yield from building.script("build", Form.BUILD)
    yield from starting.script("start", Form.CONTAINER)


def _terraform(path: str, text: str) -> Iterator[Script]:
    """Yield here-documents that a machine runs when it starts."""
    for found in _BEGINS.finditer(text):
        end = re.compile(rf"^[ \t]*{found[2]}[ \t]*$", re.MULTILINE).search(text, found.end())
        stop = end.start() if end else len(text)
        script = _Text(path, text)
        script.add(found.end(), stop)
        for one in script.script(found[1] or "here-document", Form.SCRIPT):
            if _SHEBANG.match(one.text):
                yield one
            elif _CLOUD.match(one.text):
                why = "a configuration of cloud-init, which may hold commands"
                yield replace(one, text="", unread=why)


# --- Ray -----------------------------------------------------------------------------------------

_KEY: Final = re.compile(r"([A-Za-z_]\w*)[ ]*:[ ]*(.*)")
_TOOLS: Final = {"pip": "pip install", "uv": "uv pip install", "conda": "conda install"}


def commands_of_runtime(text: str) -> str:
    """The environment as a script of as many lines."""
    return "\n".join(_of_runtime(text))


def _of_runtime(text: str) -> Iterator[str]:
    block, base = "", 0
    for line in text.split("\n"):
        bare = line.strip()
        depth = len(line) - len(line.lstrip())
        found = _KEY.match(bare)
        if found and (not block or depth <= base):
            block, base = found[1], depth
            packages = found[2].strip("[]{} ")
            yield _install(block, packages) if block in _TOOLS else _fetched(block, packages)
        elif block == "env_vars" and found:
            yield f"export {found[1]}={_quoted(found[2])}"
        else:
            yield ""


def _install(tool: str, packages: str) -> str:
    return f"{_TOOLS[tool]} {_quoted(packages or 'packages')}"


def _fetched(key: str, value: str) -> str:
    """``working_dir`` and ``py_modules`` bring code when they name a URL."""
    place = value.strip("\"' ")
    if key == "working_dir" and place.startswith(("https://", "http://")):
        return f"curl -O {_quoted(place)}/working_dir.py"
    return ""


def _quoted(text: str) -> str:
    bare = text.strip().strip("\"'")
    return "'" + bare.replace("'", "") + "'"
