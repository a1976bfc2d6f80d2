# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Record what the command line does, and compare two records: before and after a change.

``python tools/surface record OUT.json`` (with the Python of the tree that is to be recorded)
``python tools/surface compare A.json B.json [--words]``

A record holds:

* every command of click's tree: its options, their kinds and defaults, and its help text;
* real invocations (`artifacts.py`, `nodes.py`): exit code, refusal codes, output, shape of JSON;
* the formats on disk: the shape of every file that those invocations left behind, every wire struct
  that forbids unknown fields, and every schema string in the source.

Commands are found through click, structs and strings by walking the package: a module may move. A
struct is known by its name and fields, and one that is only renamed is no difference. Times, paths,
keys and digests are replaced by words, so that two records of one tree are equal.

`compare` exits 1 when anything differs; with ``--words``, when anything but help and output texts
does.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import securetrain  # first, so that it is the one that this Python has installed

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.surface.compare import compare, report
from tools.surface.record import record


def main(argv: Sequence[str] | None = None) -> int:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("record", help="the securetrain that this Python has installed")
    one.add_argument("out", type=Path)
    one = verbs.add_parser("compare", help="two records")
    one.add_argument("before", type=Path)
    one.add_argument("after", type=Path)
    one.add_argument("--words", action="store_true", help="texts for people may differ")
    options = parser.parse_args(argv)
    if options.verb == "compare":
        before, after = (json.loads(p.read_text()) for p in (options.before, options.after))
        return report(compare(before, after), words=options.words)
    made = record()
    options.out.write_text(json.dumps(made, indent=1) + "\n")
    sizes = ", ".join(f"{len(value)} {part}" for part, value in made.items())
    print(f"{securetrain.__file__}: {sizes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
