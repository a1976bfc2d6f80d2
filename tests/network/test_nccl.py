# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""NCCL's TLS, with libraries that the tests compile; each is loaded in a process of its own."""

import ctypes
import json
import os
import sys

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securetrain.core.errors import NetworkError
from securetrain.network.nccl import (
    KEY_VARIABLE,
    group_key,
    loaded,
    obstacle,
    read_inherited_key,
    tls_problem,
)
from securetrain.network.wireguard import decode_key
from tests.network.fake_nccl import OLD, REFUSES, TLS, WITHOUT, compile_nccl
from tests.tables import each, items
from tests.vocabulary import ran, refused

SECRET = bytes(range(1, 33))
KEY = group_key(SECRET)

# argv: libraries to load first. Prints what securetrain makes of them.
JUDGE = """
import ctypes, json, sys
from securetrain.core.errors import NetworkError
from securetrain.network import nccl
handles = [ctypes.CDLL(path) for path in sys.argv[2:]]
said = {"loaded": [path.name for path in nccl.loaded()], "code": "", "what": ""}
said["obstacle"] = nccl.obstacle(nccl.loaded())
try:
    for library in nccl.loaded():
        nccl.set_encryption_key(library, sys.argv[1])
except NetworkError as error:
    said["code"], said["what"] = error.code, error.what
keys = []
for handle in handles:
    if hasattr(handle, "fake_key"):
        handle.fake_key.restype = ctypes.c_char_p
        keys.append(handle.fake_key().decode())
print(json.dumps({**said, "keys": keys}))
"""


@pytest.fixture
def judge(tmp_path):
    def start(*kinds, key=KEY, names=()):
        libraries = []
        for number, kind in enumerate(kinds):
            folder = tmp_path / str(number)
            folder.mkdir()
            name = names[number] if number < len(names) else "libnccl.so.2"
            libraries.append(str(compile_nccl(folder, kind, name)))
        done = ran([sys.executable, "-c", JUDGE, key, *libraries])
        return json.loads(done.stdout)

    return start


def test_a_library_with_tls_gets_the_key(judge):
    said = judge(TLS)
    assert said["loaded"] == ["libnccl.so.2"]
    assert (said["obstacle"], said["code"]) == ("", "")
    assert said["keys"] == [KEY]


@items(
    "id, kind, word",
    ("the wheel on PyPI", WITHOUT, "built without TLS"),
    ("an old one", OLD, "older than 2.32"),
    ("names no OpenSSL", ("nothing of the kind", "0"), "built without TLS"),
    (
        "names OpenSSL and says that it has none",
        ("libssl.so.3 NCCL was built without TLS support", "0"),
        "built without TLS",
    ),
)
def test_a_library_without_tls_is_refused_though_it_takes_the_key(judge, kind, word):
    said = judge(kind)
    assert word in said["obstacle"]
    assert said["code"] == "ST-NETW-030"
    assert said["keys"] == [""]


def test_a_key_that_is_not_taken_is_a_refusal(judge):
    said = judge(REFUSES)
    assert said["obstacle"] == ""
    assert (said["code"], said["what"]) == ("ST-NETW-030", "ncclSetEncryption returned 5")


def test_nccl_inside_torchs_own_library_counts(judge):
    said = judge(WITHOUT, names=["libtorch_cuda.so"])
    assert said["loaded"] == ["libtorch_cuda.so"]
    assert said["code"] == "ST-NETW-030"


def test_one_of_two_without_tls_is_one_too_many(judge):
    said = judge(TLS, OLD, names=["libnccl.so.2", "libnccl-other.so"])
    assert said["loaded"] == ["libnccl.so.2", "libnccl-other.so"]
    assert "older than 2.32" in said["obstacle"]


def test_another_librarys_name_does_not_count(judge):
    assert judge(OLD, names=["libother.so"])["loaded"] == []


def test_without_any_there_is_nothing_to_encrypt_with():
    assert "has no NCCL" in obstacle(())


def test_openssl_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr("securetrain.network.nccl.LIBSSL", "libssl-of-nobody.so.9")
    library = compile_nccl(tmp_path, ("libssl-of-nobody.so.9", "0"), "libssltest.so")

    ctypes.CDLL(str(library))
    assert "needs OpenSSL 3" in tls_problem(library)


@items(
    "id, text",
    ("replaced", "00-10 r-xp 00 00:00 7 /lib/libnccl.so.2 (deleted)\n"),
    ("unreadable", None),
    ("too large", "x" * 200),
)
def test_not_knowing_which_library_is_no_pass(tmp_path, monkeypatch, text):
    monkeypatch.setattr("securetrain.network.nccl._MAPS_LIMIT", 100)
    maps = tmp_path / "maps"
    if text is not None:
        maps.write_text(text)
    refused(NetworkError, "ST-NETW-030", loaded, maps)


def test_a_file_that_is_only_mapped_as_data_is_no_library(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text("00-10 r--p 00 00:00 7 /no/such/libnccl.so.2\n7f-80 rw-p 00 00:00 0 [heap]\n")
    assert loaded(maps) == ()


def test_the_key_is_derived_from_the_epochs_secret():
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"nccl")
    assert decode_key(KEY) == hkdf.derive(SECRET)
    assert len(KEY) >= 32, "what NCCL asks for"
    with pytest.raises(NetworkError):
        group_key(bytes(32))


def inherited(data):
    descriptor = os.memfd_create("test")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def test_the_key_is_read_once():
    descriptor = inherited(KEY.encode())
    assert read_inherited_key({KEY_VARIABLE: str(descriptor)}) == KEY
    with pytest.raises(OSError):  # noqa: PT011 - the descriptor is closed
        os.fstat(descriptor)


@each("data", b"", b"x" * 44, KEY.encode() + b"=", b"\xff" * 44, b"A" * 43 + b"=")
def test_what_is_no_key_is_refused(data):
    with pytest.raises(NetworkError) as caught:
        read_inherited_key({KEY_VARIABLE: str(inherited(data))})
    assert caught.value.code == "ST-NETW-031"
    assert KEY not in str(caught.value)


def test_a_worker_that_was_handed_nothing_is_refused():
    for environ in ({}, {KEY_VARIABLE: "x"}, {KEY_VARIABLE: "987654"}):
        refused(NetworkError, "ST-NETW-031", read_inherited_key, environ)
