# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Feed mutated inputs to every parser; only a refusal may come out.

``python -m tools.fuzz [PARSER ...] [--inputs N] [--seed N] [--save DIR]``; N defaults to
``FUZZ_INPUTS`` or 2000 inputs for each parser. An input that makes a defect (`engine.py` says what
is one) is printed and, with --save, kept.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.fuzz.engine import run
from tools.fuzz.registry import parsers

DEFAULT_INPUTS: Final = 2000


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz the parsers, print what came out; exit code 1 when there is a defect."""
    options_parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options_parser.add_argument("names", nargs="*", help="parsers whose name contains this")
    default = int(os.environ.get("FUZZ_INPUTS", DEFAULT_INPUTS))
    options_parser.add_argument("--inputs", type=int, default=default, help="for each parser")
    options_parser.add_argument("--seed", type=int, default=0)
    options_parser.add_argument("--save", type=Path, help="keep the inputs of defects here")
    options = options_parser.parse_args(argv)
    num_defects = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        chosen = [
            parser
            for parser in parsers(Path(folder))
            if not options.names or any(name in parser.name for name in options.names)
        ]
        if not chosen:
            options_parser.error(f"no parser is called {' or '.join(options.names)}")
        for parser in chosen:
            started = time.monotonic()
            tally = run(parser, options.inputs, random.Random(options.seed))  # noqa: S311
            seconds = time.monotonic() - started
            print(
                f"{parser.name:24} {tally.accepted:7} accepted {tally.refused:7} refused"
                f" {len(tally.defects):4} defects  {seconds:6.1f} s",
                flush=True,
            )
            for number, defect in enumerate(tally.defects):
                print(defect)
                if options.save:
                    options.save.mkdir(parents=True, exist_ok=True)
                    (options.save / f"{parser.name}-{number}.bin").write_bytes(defect.data)
            num_defects += len(tally.defects)
    return 1 if num_defects else 0


if __name__ == "__main__":
    sys.exit(main())
