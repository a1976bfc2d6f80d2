# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what is read of other people's models and datasets: pickles, archives, bundles, tables."""

import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts.dataset import samples
from securetrain.artifacts.model import bundle, manifest
from securetrain.artifacts.model.manifest import Resource
from securetrain.artifacts.model.signers import KeySigner, TrustedKey
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.artifacts.statement.dataset_predicate import DataFormat
from securetrain.core.errors import IntegrityError
from tools.fuzz.engine import Parser
from tools.scan_corpus import crafted

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def artifacts(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: A directory for those that read files; it is made.
    """
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    payload = manifest.write("m", [Resource(name="a", digest="0" * 64)], [])
    trust = TrustedKey(key=key.public_key())

    def opened(data: bytes) -> None:
        found = bundle.parse(data, "bundle")
        trust.unwrap(found, _NOW, "bundle")
        manifest.read(found.payload, "bundle")

    return [
        Parser("model-bundle", lambda: [KeySigner(key=key).wrap(payload)], opened),
        Parser("model-manifest", lambda: [payload], lambda data: manifest.read(data, "m")),
        Parser(
            "dataset-sample",
            lambda: [b'{"digest":"%b","file":"a","id":"1","length":2,"offset":0}' % (b"0" * 64)],
            lambda data: samples.parse(data, "table"),
        ),
        _scanned(folder / "scan.pt", "scan-pickle", _pickles()),
        _scanned(folder / "scan.zip", "scan-zip", [_zip()]),
        _scanned(folder / "scan.tar", "scan-tar", [_tar()]),
        _scanned(folder / "scan.npy", "scan-numpy", [_numpy()]),
        *_judged(folder),
        _found(folder / "mds" / "shard.mds", DataFormat.MDS, "dataset-mds", _mds()),
        _found(
            folder / "webdataset" / "a.tar", DataFormat.WEBDATASET, "dataset-webdataset", _tar()
        ),
    ]


_KINDS = (
    *("config.json", "config.yaml", "chat_template.jinja", "m.gguf", "m.onnx", "m.h5", "m.pt"),
    *("model.joblib", "a.ipynb", "m.skops"),
)


def _judged(folder: Path) -> list[Parser]:
    """A parser for every kind of file that has a judge of its own; the seeds are crafted ones.

    Whatever it says of them is right here: only what else comes out is a defect.
    """
    seeds = {name: [one.data for one in crafted.cases() if one.file == name] for name in _KINDS}
    return [
        _looked_at(folder / name, f"judge-{name}", lambda name=name: seeds[name])  # type: ignore[misc]
        for name in _KINDS
    ]


def _looked_at(path: Path, name: str, seeds: Callable[[], list[bytes]]) -> Parser:
    def parse(data: bytes) -> object:
        path.write_bytes(data)
        return scan_path(path).exit_code

    return Parser(name, seeds, parse, 0.3)


def _scanned(path: Path, name: str, seeds: list[bytes]) -> Parser:
    """The scanner never raises about content; that it found something counts as a refusal."""

    def scan(data: bytes) -> None:
        path.write_bytes(data)
        result = scan_path(path)
        if result.findings:
            raise IntegrityError(result.findings[0].code, result.findings[0].what)

    return Parser(name, lambda: seeds, scan, share=0.2)


def _found(path: Path, data_format: DataFormat, name: str, seed: bytes) -> Parser:
    """The samples of one file in a format."""
    path.parent.mkdir()
    index = b'{"shards":[{"raw_data":{"basename":"%b"},"samples":2,"zip_data":null}]}'
    listed = path.with_name("index.json")
    listed.write_bytes(index % path.name.encode())
    names = [listed.name if data_format is DataFormat.MDS else path.name]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for _ in samples.find(data_format, names, lambda one: (path.parent / one).open("rb")):
            pass

    return Parser(name, lambda: [seed], read, share=0.2)


def _pickles() -> list[bytes]:
    value = {"a": [1, 2.5, None, b"x" * 40, "text"], "t": (1, (2, 3), {4, 5})}
    return [pickle.dumps(value, protocol) for protocol in range(6)]


def _zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps({"a": 1}, 2), zipfile.ZIP_DEFLATED)
        archive.writestr("m/data/0", bytes(64))
        archive.writestr("m/version", b"3\n")
    return out.getvalue()


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("1.txt", "1.pyd", "2.txt"):
            data = pickle.dumps(name)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _numpy() -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + pickle.dumps([1])


def _mds() -> bytes:
    return struct.pack("<IIII", 2, 16, 19, 21) + b"onetw"
