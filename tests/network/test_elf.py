# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import random
import sys
from pathlib import Path

import pytest

from securetrain.network.elf import ElfError, constants
from tests.network.fake_nccl import TLS, WITHOUT, compile_nccl
from tests.tables import items
from tests.vocabulary import refused


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_nccl(tmp_path_factory.mktemp("elf"), WITHOUT)


def test_constants_of_a_library(library, tmp_path):
    assert b"NCCL was built without TLS support" in constants(library)
    assert b"libssl.so.3" not in constants(library)
    assert b"libssl.so.3" in constants(compile_nccl(tmp_path, TLS))


def test_constants_of_pythons_own_program():
    program = Path(sys.executable).resolve()
    assert 0 < len(constants(program)) < program.stat().st_size


@items(
    "id, at, value",
    ("another magic", 0, b"\x7fELG"),
    ("ELF-32", 4, b"\x01"),
    ("byte order", 5, b"\x02" if sys.byteorder == "little" else b"\x01"),
    ("the section table is outside", 40, b"\xff" * 8),
    ("sections of another size", 58, b"\x00\x00"),
    ("no sections", 60, b"\x00\x00"),
    ("too many sections", 60, b"\xff\xff"),
    ("no names", 62, b"\xff\xff"),
)
def test_what_is_malformed_cannot_be_judged(library, tmp_path, at, value):
    data = bytearray(library.read_bytes())
    data[at : at + len(value)] = value
    path = tmp_path / "x.so"
    path.write_bytes(data)
    with pytest.raises(ElfError):
        constants(path)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 5000])
def test_what_is_cut_off_cannot_be_judged(library, tmp_path, length):
    path = tmp_path / "x.so"
    path.write_bytes(library.read_bytes()[:length])
    with pytest.raises(ElfError):
        constants(path)


def test_too_much_is_not_read(library, monkeypatch):
    monkeypatch.setattr("securetrain.network.elf._DATA_LIMIT", 4)
    refused(ElfError, "more constant data", constants, library)


def test_a_table_of_more_sections_than_are_read_is_none(library, monkeypatch):
    monkeypatch.setattr("securetrain.network.elf._MAX_SECTIONS", 4)
    refused(ElfError, "no section table", constants, library)


def test_a_library_without_constants_cannot_be_judged(library, tmp_path):
    """Whatever else there is in it that could be read."""
    path = tmp_path / "x.so"
    path.write_bytes(library.read_bytes().replace(b".rodata", b".nodata"))
    refused(ElfError, "no constant data", constants, path)


def test_only_what_the_file_holds_is_a_constant(library, tmp_path):
    """A section that is made of zeros when it is loaded has the name, and an offset of anything."""
    data = bytearray(library.read_bytes())
    table = int.from_bytes(data[40:48], sys.byteorder)
    count = int.from_bytes(data[60:62], sys.byteorder)
    for at in range(table, table + count * 64, 64):
        if int.from_bytes(data[at + 4 : at + 8], sys.byteorder) == 1:
            data[at + 4 : at + 8] = (8).to_bytes(4, sys.byteorder)
    path = tmp_path / "x.so"
    path.write_bytes(data)
    refused(ElfError, "no constant data", constants, path)


def test_a_file_that_shrinks_while_it_is_read_cannot_be_judged(library, monkeypatch):
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda *where: read(*where)[:-1])
    refused(ElfError, "while it was read", constants, library)


def test_mutated_headers_never_do_worse_than_refuse(library, tmp_path):
    whole, path, source = library.read_bytes(), tmp_path / "x.so", random.Random(1)
    table = int.from_bytes(whole[40:48], sys.byteorder)
    places = [*range(64), *range(table, len(whole))]
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(3):
            data[source.choice(places)] = source.randrange(256)
        path.write_bytes(data)
        with contextlib.suppress(ElfError):
            constants(path)
