# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes what people read before they vouch for a node: bundles, whole or with one broken part.

`describe` refuses nothing: whatever a bundle holds must become words, and JSON.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from securetrain.attest.fleet.bundle import (
    Bundle,
    make_question,
    read_bundle,
    read_question,
    read_secret,
)
from securetrain.attest.fleet.cache_files import read_item
from securetrain.attest.fleet.description import describe
from securetrain.attest.fleet.named_files import ima_reference, read_pem
from securetrain.core import canonical
from securetrain.evidence.collateral import CollateralKind
from securetrain.evidence.node_evidence import parse_node
from securetrain.testing.machine import runtime_policy
from tests.attest.worlds import (
    MAKER_CA,
    Machine,
    World,
    bundle_of,
    replaced,
    together,
    with_devices,
    with_keys,
    with_snp,
    with_tdx,
    with_tokens,
)
from tests.evidence.gpu.forge import Device
from tests.evidence.gpu.test_ocsp import respond
from tests.evidence.issuers import token
from tests.evidence.tee import forge_intel as intel
from tests.evidence.tee.forge import pem
from tests.evidence.tee.forge_amd import AmdWorld
from tests.evidence.tpm import bootlogs
from tests.evidence.tpm.forge import NOW
from tools.fuzz.engine import Parser

_PARTS: Final[Mapping[str, tuple[Callable[[Any], bytes], Callable[[Any, bytes], Any]]]] = {
    "quote": (lambda said: said.tpm.quote, lambda said, data: _tpm(said, quote=data)),
    "signature": (lambda said: said.tpm.signature, lambda said, data: _tpm(said, signature=data)),
    "event-log": (lambda said: said.tpm.event_log, lambda said, data: _tpm(said, event_log=data)),
    "ima": (
        lambda said: said.tpm.ima.entries,
        lambda said, data: _tpm(said, ima=replace(said.tpm.ima, entries=data)),
    ),
    "cpu-report": (lambda said: said.tee.report, lambda said, data: _tee(said, report=data)),
    "cpu-certificate": (
        lambda said: said.tee.certificates[0],
        lambda said, data: _tee(said, certificates=(data,)),
    ),
    "cpu-log": (lambda said: said.tee.event_log, lambda said, data: _tee(said, event_log=data)),
    "device-report": (
        lambda said: said.devices[0].report,
        lambda said, data: replace(said, devices=(replace(said.devices[0], report=data),)),
    ),
    "device-root": (
        lambda said: said.devices[0].certificates[-1],
        lambda said, data: replace(
            said,
            devices=(
                replace(said.devices[0], certificates=(*said.devices[0].certificates[:-1], data)),
            ),
        ),
    ),
    "token": (
        lambda said: said.tokens[0].encode(),
        lambda said, data: replace(said, tokens=(data.decode("utf-8", "replace"),)),
    ),
}
"""How one part is read from evidence, and put back altered."""
_CPU: Final = ("cpu-report", "cpu-log")
_DEVICES: Final = ("device-report", "device-root", "token")


def bundles(folder: Path) -> list[Parser]:
    """The parsers.

    Args:
        folder: A directory for those that read files; it is made.
    """
    folder.mkdir()
    machine = Machine()
    world = World(machine)
    more = together(with_devices(Device()), with_tokens(token({"iss": "i"})))
    log = bootlogs.encode(bootlogs.good_guest(), (bootlogs.SHA384,))
    whole = [bundle_of(machine, together(cpu, more)) for cpu in (with_snp(), with_tdx(log))]
    amd, intel_guest = (bundle_of(machine, cpu, tpm=False) for cpu in (with_snp(), with_tdx(log)))
    secret = make_question(whole[0], world.appraiser, NOW)
    path = folder / "file"

    def write(data: bytes) -> Path:
        path.write_bytes(data)
        return path

    return [
        Parser(
            "bundle",
            lambda: [canonical.encode(one) for one in whole],
            lambda data: _show(read_bundle(write(data))),
        ),
        Parser(
            "bundle-body",
            lambda: [one.body for one in whole],
            lambda data: _show(replaced(whole[0], body=data)),
        ),
        *(_part(name, bundle_of(machine)) for name in ("quote", "signature", "event-log", "ima")),
        *(_part(name, amd) for name in (*_CPU, "cpu-certificate")),
        *(_part(name, intel_guest, "guest-") for name in _CPU),
        *(_part(name, bundle_of(machine, more, tpm=False)) for name in _DEVICES),
        *(_key(name, bundle_of(machine)) for name in ("ek_public", "ek_certificate", "ak_public")),
        Parser(
            "bundle-question",
            lambda: [canonical.encode(secret.question)],
            lambda data: read_question(write(data)),
        ),
        Parser(
            "bundle-secret",
            lambda: [canonical.encode(secret)],
            lambda data: read_secret(write(data)),
        ),
        Parser("pem-file", lambda: [MAKER_CA.pem.encode()], lambda data: read_pem(write(data))),
        Parser(
            "runtime-policy-file",
            lambda: [json.dumps(runtime_policy({"/bin/true": b"true"})).encode()],
            lambda data: ima_reference(write(data), ""),
        ),
        *(_document(kind, name, seed, write) for kind, name, seed in _documents()),
    ]


def _show(bundle: Bundle) -> None:
    json.dumps([section.to_dict() for section in describe(bundle)])


def _part(name: str, bundle: Bundle, prefix: str = "") -> Parser:
    """One part of the evidence, with everything around it as it was."""
    get, put = _PARTS[name]
    said = parse_node(bundle.body)

    def parse(data: bytes) -> None:
        _show(replaced(bundle, body=put(said, data).encode()))

    return Parser(f"bundle-{prefix}{name}", lambda: [get(said)], parse)


def _key(name: str, bundle: Bundle) -> Parser:
    """One key or certificate of the TPM."""
    return Parser(
        f"bundle-{name}",
        lambda: [getattr(bundle.keys, name)],
        lambda data: _show(with_keys(bundle, **{name: data})),
    )


def _document(
    kind: CollateralKind, name: str, seed: bytes, write: Callable[[bytes], Path]
) -> Parser:
    return Parser(
        f"cache-file-{kind}", lambda: [seed], lambda data: read_item(kind, name, write(data), NOW)
    )


def _documents() -> list[tuple[CollateralKind, str, bytes]]:
    made, amd, digest = intel.good_collateral(), AmdWorld(), "ab" * 32
    return [
        (CollateralKind.OCSP, digest, respond()),  # type: ignore[no-untyped-call]
        (CollateralKind.CRL, "amd-Milan-VCEK", amd.crl()),
        (CollateralKind.TCB_INFO, intel.tcb_info()["fmspc"].lower(), made.tcb_info),
        (CollateralKind.QE_IDENTITY, "tdx", made.qe_identity),
        (CollateralKind.ISSUER_CHAIN, "tcb-info", made.tcb_info_chain),
        (CollateralKind.AMD_CHAIN, "Milan-VCEK", pem(amd.ask(), amd.ark())),
    ]


def _tpm(said: Any, **changes: Any) -> Any:
    return replace(said, tpm=replace(said.tpm, **changes))


def _tee(said: Any, **changes: Any) -> Any:
    return replace(said, tee=replace(said.tee, **changes))
