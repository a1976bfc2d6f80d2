# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Draw docs/assets/house.svg, the picture of docs/architecture.md, from the code.

``python tools/house.py`` writes it; ``--check`` exits with 1 when it is out of date. The floors are
the layers of import-linter's contract in pyproject.toml, the rooms are the packages that exist, the
text in a room is the first sentence of its docstring, and a room is green when the contract
"Rooms that start without torch" names it as a whole.
"""

import ast
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs" / "assets" / "house.svg"
PACKAGE: Final = "securetrain"

WIDTH: Final = 600
LEFT: Final = 44
INNER: Final = WIDTH - LEFT - 20
GAP: Final = 6
LINE: Final = 17
CHARACTER: Final = 6.5
"""The width of an average character of a description, in pixels, with room to spare."""

STYLE: Final = (
    ".p{fill:#fff;stroke:#d5dce3}.b{fill:#f3f5f8}.r{fill:#e6ecf3;stroke:#8aa0b4}"
    ".t{fill:#d9efe2;stroke:#5b9b73}.n{font-weight:600;font-size:15px;fill:#17202a}"
    ".d{font-size:13px;fill:#3c4a58}.s{font-size:12px;fill:#5a6a79;font-style:italic}"
    ".a{stroke:#5a6a79;stroke-width:2;fill:none}"
    "@media(prefers-color-scheme:dark){.p{fill:#1b2026;stroke:#39434e}.b{fill:#232a32}"
    ".r{fill:#2b3642;stroke:#5f7488}.t{fill:#1f3a2c;stroke:#4f8a67}.n{fill:#eef2f6}"
    ".d{fill:#c3ced9}.s{fill:#9aa9b8}.a{stroke:#9aa9b8}}"
)


@dataclass(frozen=True, kw_only=True)
class Room:
    """One package of the house, or one module where a room is a single file."""

    name: str
    says: str
    """The first sentence of its docstring; empty where there is none."""
    rooms: tuple[str, ...]
    """The packages inside it."""
    without_torch: bool

    def lines(self, width: int) -> list[str]:
        """The description, wrapped for a box of `width` pixels."""
        return textwrap.wrap(self.says, int((width - 24) / CHARACTER))

    def inner_lines(self, width: int) -> list[str]:
        """The names of the packages inside, wrapped for a box of `width` pixels."""
        return textwrap.wrap(", ".join(self.rooms), int((width - 24) / CHARACTER))

    def height(self, width: int) -> int:
        """The height of its box."""
        return 32 + LINE * (len(self.lines(width)) + len(self.inner_lines(width)))


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line and without markup."""
    doc = ast.get_docstring(ast.parse(path.read_bytes(), str(path))) or ""
    text = " ".join(doc.partition("\n\n")[0].split()).replace("`", "")
    sentence = text.partition(". ")[0]
    return sentence.removesuffix(".").replace("->", "\N{RIGHTWARDS ARROW}")


def _contracts(kind: str) -> Iterator[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == kind:
            yield contract


def _room(name: str, without_torch: set[str]) -> Room | None:
    folder = ROOT / PACKAGE / name
    inside: tuple[str, ...] = ()
    if (folder / "__init__.py").is_file():
        source = folder / "__init__.py"
        inside = tuple(
            child.parent.name
            for child in sorted(folder.glob("*/__init__.py"))
            if not child.parent.name.startswith("_")
        )
    elif folder.with_suffix(".py").is_file():
        source = folder.with_suffix(".py")
    else:
        return None
    return Room(
        name=name,
        says=first_sentence(source),
        rooms=inside,
        without_torch=f"{PACKAGE}.{name}" in without_torch,
    )


def floors() -> list[list[Room]]:
    """The rooms of every layer, top floor first."""
    layers = next(c for c in _contracts("layers") if f"{PACKAGE}.core" in c["layers"])["layers"]
    without_torch = {
        module
        for contract in _contracts("forbidden")
        if "torch" in contract["forbidden_modules"]
        for module in contract["source_modules"]
    }
    found = []
    for layer in layers:
        names = [name.strip(" ()") for name in layer.replace(":", "|").split("|")]
        rooms = [_room(name.removeprefix(f"{PACKAGE}."), without_torch) for name in names]
        found.append([room for room in rooms if room is not None])
    return [floor for floor in found if floor]


def _box(room: Room, x: int, y: int, width: int, height: int) -> Iterator[str]:
    style = "t" if room.without_torch else "r"
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" class="{style}"/>'
    yield f'<text x="{x + 12}" y="{y + 21}" class="n">{room.name}</text>'
    line = y + 21
    for style, texts in (("d", room.lines(width)), ("s", room.inner_lines(width))):
        for text in texts:
            line += LINE
            yield f'<text x="{x + 12}" y="{line}" class="{style}">{escape(text)}</text>'


def _floor(rooms: list[Room], top: int) -> tuple[list[str], int]:
    """The boxes of one layer, two in a row, and where the next layer begins."""
    if len(rooms) == 1:
        height = rooms[0].height(INNER)
        return list(_box(rooms[0], LEFT, top, INNER, height)), top + height + GAP
    width = (INNER - 3 * GAP) // 2
    boxes: list[str] = []
    y = top + GAP
    for row in (rooms[n : n + 2] for n in range(0, len(rooms), 2)):
        height = max(room.height(width) for room in row)
        for column, room in enumerate(row):
            boxes += _box(room, LEFT + GAP + column * (width + GAP), y, width, height)
        y += height + GAP
    band = f'<rect x="{LEFT}" y="{top}" width="{INNER}" height="{y - top}" rx="7" class="b"/>'
    return [band, *boxes], y + GAP


def picture() -> str:
    """The whole picture, as SVG that follows the reader's colour scheme."""
    roof = 74
    body: list[str] = []
    y = roof
    for floor in floors():
        boxes, y = _floor(floor, y)
        body += boxes
    middle = LEFT + INNER // 2
    height = y + 52
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="system-ui,sans-serif" role="img" '
        'aria-label="The rooms from top to bottom; imports go down only">'
    )
    head = [
        opening,
        "<!-- Made by tools/house.py; edit the code, not this picture. -->",
        f"<style>{STYLE}</style>",
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="p"/>',
        f'<path d="M{LEFT} {roof - GAP} L{middle} 16 L{LEFT + INNER} {roof - GAP} Z" class="r"/>',
        f'<text x="{middle}" y="{roof - 18}" text-anchor="middle" class="n">{PACKAGE}</text>',
        f'<path class="a" d="M24 {roof} V{y - GAP} m-6 -10 l6 10 l6 -10"/>',
    ]
    foot = [
        f'<text x="{middle}" y="{y + 18 + LINE * n}" text-anchor="middle" class="d">{text}</text>'
        for n, text in enumerate(
            (
                "Imports go down only; rooms on one floor do not import each other.",
                "A green room never imports torch.",
            )
        )
    ]
    return "\n".join([*head, *body, *foot, "</svg>"]) + "\n"


def main(arguments: list[str]) -> int:
    """Write the picture, or compare it with ``--check``."""
    made = picture()
    if arguments == ["--check"]:
        if PICTURE.read_text("utf-8") == made:
            return 0
        print(f"{PICTURE.relative_to(ROOT)} is out of date: run python tools/house.py")
        return 1
    PICTURE.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
