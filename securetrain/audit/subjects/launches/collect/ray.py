# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A runtime environment of Ray (``runtimeEnvYAML``) as the commands that Ray makes of it.

Each line stays where it is, so that a finding has the line of the environment: packages are what
``pip install`` gets when the job starts, variables are exported.
"""

import re
from collections.abc import Iterator
from typing import Final

_KEY: Final = re.compile(r"([A-Za-z_]\w*)[ ]*:[ ]*(.*)")
_TOOLS: Final = {"pip": "pip install", "uv": "uv pip install", "conda": "conda install"}


def commands_of_runtime(text: str) -> str:
    """The environment as a script of as many lines."""
    return "\n".join(_lines(text))


def _lines(text: str) -> Iterator[str]:
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
