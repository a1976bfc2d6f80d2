# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Texts without what changes from run to run, and the shapes of JSON, XML and files."""

import base64
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from cryptography import x509

fullmatch = re.fullmatch

_CHANGING: Final = (
    (r"/[^\s\"]*/(?=(policies|threat_models)/)", "<shipped>/"),
    (r"(127\.0\.0\.1|localhost):\d+", r"\1:<port>"),
    (r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", r"<\1>"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?", "<time>"),
    (r"\d{4}-\d\d-\d\d", "<date>"),
    (r"st1_[\w=-]+", "<token>"),
    (r"(?<![\w/+=-])(?=[\w/+-]*[A-Z])(?=[\w/+-]*\d)[A-Za-z0-9/+_-]{40,}={0,2}", "<base64>"),
    (r"\b\d+(\.\d+)? ?(ms|s|seconds?|minutes?|hours?)\b", r"<n> \2"),
    (r"(?<![0-9A-Za-z])(?<!step-)[0-9a-f]{8,}(?![0-9A-Za-z])", "<hex>"),
    (r"\d+\.(\d{4,}|<hex>)", "<float>"),
    (r"pid \d+", "pid <n>"),
    (r"(:\d+) in ", ":<line> in "),
    (r"[\w/]+\.py:\d+", "<source>"),
    (r"[ \t]+", " "),
    (r"[-=\u2500\u2501]{4,}", "----"),
)
"""Pattern, what it becomes; in this order."""
_KEPT: Final = ("_type", "predicateType", "payloadType", "schema", "apiVersion", "version", "kind")
"""Keys whose value says which format it is."""


def settled(text: str, folder: Path) -> str:
    """`text` as every run of one tree prints it."""
    text = text.replace(str(folder.resolve()), "<folder>").replace(str(folder), "<folder>")
    for pattern, becomes in _CHANGING:
        text = re.sub(pattern, becomes, text, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in text.splitlines())


def plain(value: Any) -> Any:
    """A default or a parameter of a type as JSON that does not change from run to run."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [plain(one) for one in value]
        case dict():
            return {str(key): plain(one) for key, one in value.items()}
        case Path():
            return str(value)
        case _:
            return re.sub(r" at 0x[0-9a-f]+|securetrain[\w.]*\.", "", repr(value))


def json_shape(value: Any) -> dict[str, list[str]]:
    """Path -> the types found there; for the keys that name a format, their values."""
    found: dict[str, set[str]] = {}
    for path, kind in _leaves(value, ""):
        found.setdefault(path, set()).add(kind)
    return {path: sorted(kind) for path, kind in sorted(found.items())}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            yield path, "object"
            for key, below in value.items():
                name = settled(key, Path("/nowhere"))
                if key in _KEPT and isinstance(below, str | int):
                    yield f"{path}.{name}", f"{type(below).__name__} {below}"
                else:
                    yield from _leaves(below, f"{path}.{name}")
        case list():
            yield path, "array"
            for below in value:
                yield from _leaves(below, f"{path}[]")
        case float():
            yield path, "int"  # JSON has one kind of number
        case None:
            yield path, "null"
        case _:
            yield path, type(value).__name__


def xml_shape(text: str) -> dict[str, list[str]]:
    """Path of tags -> the attributes found there."""
    found: dict[str, set[str]] = {}

    def walk(element: ET.Element, path: str) -> None:
        here = f"{path}/{element.tag}"
        found.setdefault(here, set()).update(element.attrib)
        for below in element:
            walk(below, here)

    walk(ET.fromstring(text), "")  # noqa: S314 - it was written by ourselves just now
    return {path: sorted(names) for path, names in sorted(found.items())}


def output_shape(text: str) -> dict[str, list[str]] | None:
    """The shape of output that is JSON or XML."""
    try:
        return json_shape(json.loads(text))
    except ValueError:
        pass
    try:
        return xml_shape(text) if text.lstrip().startswith("<?xml") else None
    except ET.ParseError:
        return None


def folder(root: Path) -> dict[str, Any]:
    """Name -> shape, of every file below `root`."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[_name(path, root)] = "link"
        elif path.is_file() and path.relative_to(root).parts[0] != "home":
            found[_name(path, root)] = _file(path.read_bytes())
    return dict(sorted(found.items()))


def _name(path: Path, root: Path) -> str:
    return settled(path.relative_to(root).as_posix(), root)


def _file(data: bytes) -> Any:
    if data.startswith(b"SQLite format 3"):
        return _tables(data)
    try:
        value = json.loads(data)
    except (ValueError, UnicodeDecodeError):
        return _lines(data)
    return json_shape(_opened(value))


def _lines(data: bytes) -> Any:
    """Of what is not one JSON value: JSON a line, PEM, text or bytes."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        return f"bytes, starts with {data[:4].hex()}" if data[:4].isalnum() else "bytes"
    try:
        values = [_opened(json.loads(line)) for line in lines]
    except ValueError:
        labels = [line for line in lines if line.startswith("-----BEGIN")]
        if "-----BEGIN CERTIFICATE-----" in labels:
            return [_certificate(one) for one in x509.load_pem_x509_certificates(data)]
        return labels or _token(data.decode().strip()) or "text"
    events: dict[str, list[Any]] = {}
    for value in values:
        events.setdefault(_event(value), []).append(value)
    return {name: json_shape(same) for name, same in sorted(events.items())}


def _tables(data: bytes) -> list[str]:
    with closing(sqlite3.connect(":memory:")) as database:
        # A copy alone has no write-ahead log, whatever its header says.
        database.deserialize(data[:18] + b"\x01\x01" + data[20:])
        rows = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY sql")
        return [" ".join(sql.split()) for (sql,) in rows]


def _certificate(one: x509.Certificate) -> dict[str, Any]:
    """What it may be used for, without names and keys."""
    extensions = {}
    for extension in one.extensions:
        match extension.value:
            case x509.ExtendedKeyUsage() as usages:
                said = ", ".join(sorted(usage.dotted_string for usage in usages))
            case x509.BasicConstraints() | x509.KeyUsage() as value:
                said = str(value)
            case _:
                said = ""
        critical = " critical" if extension.critical else ""
        extensions[extension.oid.dotted_string + critical] = said
    return {"version": one.version.name, "extensions": extensions}


def _token(text: str) -> dict[str, list[str]] | None:
    """The header and the claims of a JWT."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        decoded = [base64.urlsafe_b64decode(part + "==") for part in parts[:2]]
        return json_shape([json.loads(one) for one in decoded])
    except ValueError:
        return None


def _event(line: Any) -> str:
    """Which event an entry of a ledger is; other lines are of one kind."""
    body = line.get("body") if isinstance(line, dict) else None
    event = body.get("event") if isinstance(body, dict) else None
    if not isinstance(event, dict):
        return "lines"
    return " ".join(str(event.get(key)) for key in ("boundary", "event", "decision"))


def _opened(value: Any) -> Any:
    """A DSSE envelope with its payload in the clear; the keys of an index without their values."""
    if isinstance(value, dict):
        payload = value.get("payload")
        if isinstance(payload, str) and "payloadType" in value:
            try:
                return {**value, "payload": json.loads(base64.b64decode(payload))}
            except ValueError:
                return value
        return {key: _opened(below) for key, below in value.items()}
    return [_opened(one) for one in value] if isinstance(value, list) else value
