# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Write the files that the actions install from: exact versions with the hashes of their files.

``python tools/action_requirements.py`` needs pip-tools and an index. The versions are those of
constraints.txt; a test says when one of the two has moved on without the other.
"""

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "actions"
EXTRAS: Final = ("", "sigstore", "report")
"""The extras that actions install; the first is none."""
_HEADER: Final = """\
# Written by tools/action_requirements.py from pyproject.toml and constraints.txt: do not edit.
"""


def wanted(extra: str) -> list[str]:
    """The packages that an installation needs, and those that build it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    return needed + (project["project"]["optional-dependencies"][extra] if extra else [])


def target(extra: str) -> Path:
    """The file for an extra."""
    return FOLDER / f"requirements{'-' if extra else ''}{extra}.txt"


def main() -> int:
    """Write all of them."""
    for extra in EXTRAS:
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder) / "in.txt", Path(folder) / "out.txt"
            source.write_text("\n".join(wanted(extra)) + "\n")
            subprocess.run(
                [
                    *(sys.executable, "-m", "piptools", "compile", "--quiet", "--no-header"),
                    *("--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-annotate"),
                    *("--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"),
                    *("--constraint", str(ROOT / "constraints.txt")),
                    *("--output-file", str(made), str(source)),
                ],
                check=True,
                cwd=folder,
            )
            text = "".join(
                line + "\n"
                for line in made.read_text().splitlines()
                if line and not line.startswith(("#", "-"))
            )
            target(extra).write_text(_HEADER + text)
        print(f"wrote {target(extra).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
