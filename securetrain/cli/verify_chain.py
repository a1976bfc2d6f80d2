# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain verify PATH --walk``: the chain of a checkpoint, as a tree."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.tree import Tree

    from securetrain.artifacts.lineage.walk import Link
    from securetrain.artifacts.verify import VerifyResult
    from securetrain.identity.trust import TrustRoot


def follow(
    result: "VerifyResult", trust: "TrustRoot", places: Sequence[Path]
) -> "tuple[VerifyResult, Link | None]":
    """The result with where the chain breaks, and the chain; none without a statement."""
    from dataclasses import replace

    from securetrain.artifacts.lineage.walk import problems, walk

    opened = result.opened
    if opened is None:
        return result, None
    near = list(places)
    if not near:
        folder = Path(result.path).absolute().parent
        near = [folder, folder.parent]
    chain = walk(result.path, opened, trust, near)
    return replace(result, problems=(*result.problems, *problems(chain))), chain


def print_chain(chain: "Link") -> None:
    """Print it."""
    from rich.console import Console

    Console(highlight=False).print(_tree(chain))


def _tree(link: "Link") -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    from securetrain.core.text import printable

    where = printable(str(link.path), keep="") if link.path is not None else ""
    head = Text.assemble((link.role, "bold"), f" {link.digest[:16]} ", (where, "dim"))
    if link.problem:
        head.append(f"  BROKEN: {printable(link.problem, keep='')}", "red")
    tree = Tree(head)
    for fact in link.facts:
        tree.add(Text(printable(fact, keep="")))
    for below in link.links:
        tree.add(_tree(below))
    return tree
