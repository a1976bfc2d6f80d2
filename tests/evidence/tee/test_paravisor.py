# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The paravisor's report and runtime data: real ones, and everything that they are not."""

import base64
import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tee.paravisor import (
    HCL_LIMIT,
    RUNTIME_LIMIT,
    ParavisorReference,
    judge_vm,
    parse_hcl_report,
    parse_runtime_data,
    vouched_data,
)
from securetrain.evidence.tee.snp import verify_snp
from securetrain.evidence.tee.snp_report import Product, parse_report
from securetrain.evidence.tee.snp_rules import SnpReference, Tcb, permissions_of
from securetrain.evidence.tee.tdx import authenticate
from securetrain.evidence.tpm.constants import Algorithm, Hash
from securetrain.evidence.tpm.quote import verify_quote
from securetrain.evidence.tpm.structures import number, tpm2b
from tests import vocabulary
from tests.evidence.tee import forge_azure as azure
from tests.evidence.tpm import forge
from tests.evidence.vectors import ROOT, vector
from tests.tables import forgeries

WHEN = datetime(2026, 6, 1, tzinfo=UTC)
VM = azure.Vm()
RUNTIME = VM.runtime()
AZURE = "confidential-containers__trustee/deps/verifier/test_data"
REAL = sorted(ROOT.glob(f"{AZURE}/az-*/evidence-v[12].json"))


def refused(code, call, *args, **kwargs):
    return vocabulary.refused(AttestationError, code, call, *args, **kwargs)


def test_a_report_as_it_lies_in_the_tpm():
    snp = azure.AMD.report()
    found = parse_hcl_report(azure.hcl(RUNTIME, snp))
    assert (found.kind, found.report, found.runtime_data) == ("sev-snp", snp, RUNTIME)
    assert parse_hcl_report(azure.hcl(RUNTIME, bytes(1024), kind=4)).kind == "tdx"
    assert len(vouched_data(RUNTIME)) == 64
    runtime = parse_runtime_data(RUNTIME)
    assert runtime.vm == azure.VM
    assert runtime.ak.unique == VM.tpm.ak.public.unique
    assert (runtime.tpm, runtime.secure_boot, runtime.console) == (True, True, False)


@pytest.mark.vectors
@pytest.mark.skipif(not REAL, reason=f"NO REAL AZURE EVIDENCE WAS CHECKED: none below {ROOT}")
@pytest.mark.parametrize("path", REAL, ids=[path.parent.name + path.stem for path in REAL])
def test_real_evidence(path):
    """From the maker's root over REPORT_DATA to the quote."""
    found = json.loads(vector(path.relative_to(ROOT).as_posix()))

    def decoded(text):
        return base64.urlsafe_b64decode(text + "==")

    report = parse_hcl_report(decoded(found["hcl_report"]))
    wanted = vouched_data(report.runtime_data)
    if report.kind == "tdx":
        td = authenticate(decoded(found["td_quote"]), now=WHEN).quote
        assert td.report.report_data == wanted
    else:
        parsed = parse_report(report.report)
        state = verify_snp(
            report.report,
            [decoded(found["vcek"])],
            reference=SnpReference(
                min_tcb={Product.MILAN: Tcb()},
                measurements=(parsed.measurement.hex(),),
                any_chip=True,
                id_key_digests=(parsed.id_key_digest.hex(),),
                author_key_digests=(parsed.author_key_digest.hex(),),
                permissions=permissions_of(parsed),
                min_version=2,
                require_crl=False,
            ),
            report_data=wanted,
            now=WHEN,
            vendor_chain=[vector("google__go-sev-guest/verify/trust/ask_ark_milan.pem")],
            crl=None,
        )
        assert state.product is Product.MILAN
    runtime = parse_runtime_data(report.runtime_data)
    said = found["tpm_quote"]
    quote, signature = bytes.fromhex(said["message"]), bytes.fromhex(said["signature"])
    judged = verify_quote(
        quote,
        number(Algorithm.RSASSA, 2) + number(Hash.SHA256, 2) + tpm2b(signature),
        ak=runtime.ak,
        ek=None,
        extra_data=quote[44 : 44 + int.from_bytes(quote[42:44], "big")],
        pcrs=dict(enumerate(map(bytes.fromhex, said["pcrs"]))),
        required=range(16),
    )
    assert len(judged.pcrs) == 24


# Forgeries.


@forgeries(
    "data",
    b"",
    b"HCLA",
    bytes(HCL_LIMIT + 1),
    azure.hcl(RUNTIME)[:1200],
    b"HCLB" + azure.hcl(RUNTIME)[4:],
    azure.hcl(RUNTIME, version=3),
    azure.hcl(RUNTIME, version=0),
    azure.hcl(RUNTIME, size=2600),
    azure.hcl(RUNTIME, size=0),
    azure.hcl(RUNTIME, data_size=0),
    azure.hcl(RUNTIME, data_size=0xFFFFFFFF),
    azure.hcl(RUNTIME, data_size=len(RUNTIME) + 21, size=1237 + len(RUNTIME)),
    azure.hcl(RUNTIME, data_version=2),
    azure.hcl(RUNTIME, kind=0),
    azure.hcl(RUNTIME, kind=3),
    azure.hcl(RUNTIME, digest=2),
    azure.hcl(RUNTIME, runtime_size=len(RUNTIME) - 1),
    azure.hcl(RUNTIME, runtime_size=0xFFFFFFFF),
    azure.hcl(RUNTIME) + b"\1",
    azure.hcl(RUNTIME, runtime_size=9000, data_size=9020, size=32 + 1184 + 9020),
)
def test_malformed_reports(data):
    refused("ST-ATTS-440", parse_hcl_report, data)


@pytest.mark.forgery
def test_a_limit_is_asked_before_anything_is_read():
    """Of the report, and of the runtime data in it: otherwise well-formed ones."""
    error = refused("ST-ATTS-440", parse_hcl_report, azure.hcl(RUNTIME) + bytes(HCL_LIMIT))
    assert str(HCL_LIMIT) in error.what
    long = RUNTIME + b" " * (RUNTIME_LIMIT + 1 - len(RUNTIME))
    refused("ST-ATTS-440", parse_hcl_report, azure.hcl(long), says=f"{RUNTIME_LIMIT}")


KEY = azure.jwk(VM.tpm.ak)


def keys(*found):
    return VM.runtime(list(found))


def other(**changes):
    return keys({**KEY, **changes})


@forgeries(
    "data",
    b"",
    b"{}",
    b"[]",
    b"[" * 5000,
    b" " * (RUNTIME_LIMIT + 1),
    RUNTIME[:-1],
    RUNTIME + b"x",
    RUNTIME.replace(b"{", b"\xff", 1),
    keys(),
    keys(KEY, KEY),
    keys(*[{**KEY, "kid": "x"}] * 9),
    other(kid="HCLEkPub"),
    other(kid="hclakpub"),
    other(kty="EC"),
    other(kty=1),
    other(n=""),
    other(n="AAAA"),
    other(n=KEY["n"] + "A"),
    other(n=KEY["n"] + "=="),
    other(n=KEY["n"].replace(KEY["n"][0], "+", 1)),
    other(n=azure.base64url(bytes(256))),
    other(n=azure.base64url(b"\x7f" + bytes(255))),
    other(n=azure.base64url(b"\xff" * 128)),
    other(n=azure.base64url(b"\xff" * 1024)),
    other(e=""),
    other(e="Aw"),
    other(e="AAEAAQ"),
    VM.runtime(vmUniqueId=""),
    VM.runtime(vmUniqueId="../../../etc"),
    VM.runtime(vmUniqueId=7),
    VM.runtime(None, **{"console-enabled": "false"}),
    VM.runtime(None, **{"secure-boot": 1}),
    VM.runtime(None, **{"tpm-enabled": None}),
    RUNTIME.replace(b'"secure-boot":true', b'"secure-boot":false,"secure-boot":true'),
    RUNTIME.replace(b'"keys":', b'"keys":[],"keys":'),
    RUNTIME.replace(b'"vm-configuration":', b'"vm":'),
)
def test_malformed_runtime_data(data):
    refused("ST-ATTS-440", parse_runtime_data, data)


@forgeries(
    "changes, code, where",
    ({"tpm-enabled": False}, "ST-ATTS-441", "tpm-enabled"),
    ({"secure-boot": False}, "ST-ATTS-441", "secure-boot"),
    ({"console-enabled": True}, "ST-ATTS-441", "console-enabled"),
    ({"vmUniqueId": azure.VM.replace("7", "8")}, "ST-ATTS-012", "vm"),
)
def test_a_vm_that_is_configured_otherwise(changes, code, where):
    runtime = parse_runtime_data(VM.runtime(**changes))
    strict = ParavisorReference(measurements=("ab" * 48,))
    rules: Any = {"enrolled": (azure.VM,), "secure_boot": True, "node": "node-0"}
    judge_vm(parse_runtime_data(RUNTIME), strict, **rules)
    assert where in refused(code, judge_vm, runtime, strict, **rules).where
    if where == "console-enabled":
        allowed = ParavisorReference(measurements=("ab" * 48,), allow_console=True)
        judge_vm(runtime, allowed, **rules)


@pytest.mark.forgery
def test_a_vm_that_is_not_enrolled():
    runtime = parse_runtime_data(RUNTIME)
    rules: Any = {"enrolled": (), "secure_boot": True, "node": "node-0"}
    refused("ST-ATTS-012", judge_vm, runtime, ParavisorReference(), **rules)
    judge_vm(runtime, ParavisorReference(any_vm=True), **rules)


@forgeries("seed", *range(60))
def test_a_byte_that_was_changed_anywhere_breaks_the_chain(seed):
    """Whatever is changed in the report's data, REPORT_DATA is no longer their hash."""
    source = random.Random(seed)
    whole = azure.hcl(RUNTIME, azure.AMD.report(report_data=vouched_data(RUNTIME)))
    at = source.randrange(32 + 1184, 32 + 1184 + 20 + len(RUNTIME))
    changed = whole[:at] + bytes([whole[at] ^ (1 << source.randrange(8))]) + whole[at + 1 :]
    try:
        found = parse_hcl_report(changed)
    except AttestationError:
        refused("ST-ATTS-440", parse_hcl_report, changed)
        return
    assert parse_report(found.report).report_data != vouched_data(found.runtime_data)


def test_the_key_of_another_tpm():
    other_vm = azure.Vm(tpm=forge.Tpm(ak=VM.tpm.ak.public, key=3))
    assert parse_runtime_data(other_vm.runtime()).ak_name != parse_runtime_data(RUNTIME).ak_name
