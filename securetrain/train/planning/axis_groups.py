# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The groups of ranks along each axis, and the nodes that they span. Free of torch."""

from dataclasses import dataclass

from securetrain.parallel import RANKED, Axis, Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of one axis."""

    axis: Axis
    degree: int
    stride: int
    """Distance between neighbours in a group."""
    count: int
    """How many groups there are."""
    nodes: int
    """How many nodes a group reaches over."""

    @property
    def first(self) -> tuple[int, ...]:
        """The group of rank 0."""
        return tuple(range(0, self.degree * self.stride, self.stride))


def groups_of(degrees: Degrees, per_node: int) -> tuple[Groups, ...]:
    """The groups of every axis with more than one rank, outermost first.

    Args:
        degrees: The mesh.
        per_node: Ranks of one node; neighbours in rank share one.
    """
    found, stride = [], degrees.world
    for axis in RANKED:
        stride //= degrees.degree(axis)
        found.append(group_of(axis, degrees.degree(axis), stride, degrees.world, per_node))
    # Experts take the innermost ranks.
    found.append(group_of(Axis.EP, degrees.ep, 1, degrees.world, per_node))
    return tuple(groups for groups in found if groups.degree > 1)


def group_of(axis: Axis, degree: int, stride: int, world: int, per_node: int) -> Groups:
    """The groups of `degree` ranks that are `stride` apart."""
    spanned = len({rank // per_node for rank in range(0, degree * stride, stride)})
    return Groups(axis=axis, degree=degree, stride=stride, count=world // degree, nodes=spanned)
