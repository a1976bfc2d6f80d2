# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Contracts of import-linter that it does not bring: faces of rooms, and no cycle of modules.

pyproject.toml names them under ``contract_types``; ``lint-imports`` loads them when it is run in
the root of the repository. What an import cannot show, `tools/gates` looks for.
"""

import ast
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

MAX_DOORS: Final = 5
"""So many modules of a room, besides its face, may be imported from outside."""


class FaceContract(Contract):
    """Whoever is outside a room imports its face, or one of a few modules that are named here.

    ``rooms`` has a line for each room: its package, and after a colon the modules that may be
    entered besides the package itself (`securetrain.policy: load, schema`). A named package is
    entered through its own face: what is inside must be named as well. A name that nobody outside
    imports is a fault, so that the list stays what is true. Other top-level packages (tests,
    benchmarks) are not looked at.

    A face may name a module as a namespace (``from . import authority`` in its stub); what takes it
    from the face by ``from securetrain.report import authority`` imports the face.
    """

    type_name = "face"

    rooms = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - its signature
        """Every import from outside into each of the rooms."""
        del verbose
        faults = []
        for line in _strings(self.rooms):
            room, doors = room_and_doors(line)
            imports = _imports(graph)
            for face in (room, *doors):
                _through_the_face(graph, imports, face, namespaces(face))
            faults += face_faults(imports, room, doors)
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """One line for each fault."""
        for fault in check.metadata["faults"]:
            output.print_error(fault)


class NoCyclesContract(Contract):
    """No module imports itself by way of others: of its own package's face, too.

    import-linter's own `acyclic_siblings` looks at the children of a package, never at a package
    and what is inside it.
    """

    type_name = "no_cycles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: FBT001 - its signature
        """The first cycle that is found, if there is one."""
        del verbose
        cycle = first_cycle(_imports(graph))
        return ContractCheck(kept=not cycle, metadata={"cycle": cycle})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """The modules of the cycle, one a line."""
        output.print_error("A cycle of imports:")
        for module in check.metadata["cycle"]:
            output.print_error(f"- {module}")


def _imports(graph: ImportGraph) -> dict[str, set[str]]:
    return {
        module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules
    }


def namespaces(face: str) -> frozenset[str]:
    """The modules that the stub of a package names as namespaces, by their full names."""
    stub = Path(*face.split("."), "__init__.pyi")
    if not stub.is_file():
        return frozenset()
    tree = ast.parse(stub.read_text("utf-8"))
    return frozenset(
        f"{face}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module is None
        for alias in node.names
    )


def _through_the_face(
    graph: ImportGraph, imports: Mapping[str, set[str]], face: str, names: Iterable[str]
) -> None:
    """Count ``from face import module`` as an import of the face, where the face names it."""
    for module in names:
        for importer in graph.find_modules_that_directly_import(module):
            details = graph.get_import_details(importer=importer, imported=module)
            if all(line["line_contents"].startswith(f"from {face} import ") for line in details):
                imports[importer].discard(module)
                imports[importer].add(face)


def _strings(value: Any) -> list[str]:
    """What import-linter has put in place of the field's declaration."""
    return [str(one) for one in value]


def room_and_doors(line: str) -> tuple[str, list[str]]:
    """A room's package and the full names of the modules that may be entered.

    Raises:
        ValueError: the line names no package, or more doors than a room may have.
    """
    room, _, names = line.partition(":")
    room = room.strip()
    doors = [f"{room}.{name.strip()}" for name in names.split(",") if name.strip()]
    if not room:
        raise ValueError(f"{line!r} names no package")
    if len(doors) > MAX_DOORS:
        raise ValueError(f"{room}: {len(doors)} modules, a room has at most {MAX_DOORS}")
    return room, doors


def face_faults(imports: Mapping[str, Iterable[str]], room: str, doors: Iterable[str]) -> list[str]:
    """Imports from outside that go past a room's face, and doors that are not there or not used.

    Args:
        imports: module -> what it imports.
        room: The room's package.
        doors: Full names of the modules besides it that may be imported.
    """
    doors = list(doors)
    root = room.partition(".")[0]
    if room not in imports:
        return [f"there is no package {room}"]
    faults = [f"there is no module {door}" for door in doors if door not in imports]
    entered = set()
    for importer, found in sorted(imports.items()):
        if _within(importer, room) or not _within(importer, root):
            continue
        for imported in sorted(found):
            if imported in doors:
                entered.add(imported)
            elif imported != room and _within(imported, room):
                faults.append(f"{importer} imports {imported}, which is not on the face of {room}")
    faults += [
        f"nobody outside imports {door}: take it off the list"
        for door in doors
        if door in imports and door not in entered
    ]
    return faults


def first_cycle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """The modules of one cycle, from importer to imported; empty when there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]  # it gives each before what depends on it
    return []


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
