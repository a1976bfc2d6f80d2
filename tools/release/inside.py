# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Import what extras bring: ``python inside.py EXTRA[,EXTRA ...]``, by their own environment.

No module of this repository is imported, and none of its folders is on the path. Prints the
version of torch, if that is there, and nothing otherwise.
"""

import contextlib
import importlib
import importlib.metadata
import io
import sys
import warnings

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "securetrain"
NO_MODULE = {"types-pyyaml"}
"""Distributions that bring files for a type checker alone."""


def wanted(extras: str) -> set[str]:
    """The distributions that extras name, with commas between them; those of ``base`` need none.

    The metadata has what an extra takes from others in their place: the build writes it so.
    """
    named = extras.split(",")
    there = {"base", *(importlib.metadata.metadata(OURS).get_all("Provides-Extra") or [])}
    if missing := sorted(set(named) - there):
        raise SystemExit(f"{OURS} has no extra {missing[0]}")
    lines = [Requirement(line) for line in importlib.metadata.requires(OURS) or []]
    return {
        canonicalize_name(one.name)
        for extra in named
        for one in lines
        if (one.marker.evaluate({"extra": extra}) if one.marker else extra == "base")
    }


def main(extras: str) -> None:
    """Import every module that stands at the top of what was asked for."""
    modules = importlib.metadata.packages_distributions()
    for name in sorted(wanted(extras) - NO_MODULE):
        tops = [
            top
            for top, owners in modules.items()
            if name in {canonicalize_name(owner) for owner in owners}
            and top.isidentifier()
            and not top.startswith("_")
        ]
        if not tops:
            raise SystemExit(f"{name} has no module that can be imported")
        for top in tops:
            # What they print at their import is theirs.
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(top)
    importlib.import_module(OURS)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        print(importlib.metadata.version("torch"))


if __name__ == "__main__":
    main(sys.argv[1])
