# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The composite attester of a node: everything on this machine that can speak for it.

The lead attester collects the self-report (the manifest of RFC 9711's terms), computes the binding
over it and has every other attesting environment sign that binding:

=================  ==========================================================
TPM                extraData of the quote, key of the activation proof
SEV-SNP, TDX       REPORT_DATA, the binding under a label (64 bytes)
GPUs, switches     the nonce of their SPDM reports, the binding under a label
node identity key  the body, with the binding
=================  ==========================================================

Tokens of other issuers come from files that the operator names; they carry what their issuer bound
them to.

Rules:

1. what the operator requires and cannot be had is an error here, before a verifier says so; what is
   taken where it is there is left out, with a note for people;
2. without a TPM, a TEE, devices and tokens the node only speaks about itself, and says so by the
   media type;
3. where a paravisor speaks for the TPM (an Azure confidential VM), the TPM's part is in the CPU's:
   it announces no keys of its own, and is quoted by the paravisor's. So it is where Google speaks
   for it, by a certificate;
4. nothing here says how good the evidence is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from securetrain.attest.node.attester import sign_evidence
from securetrain.attest.node.software import collect_software
from securetrain.attest.node.tpm.agent import TpmAgent
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.files import read_file
from securetrain.evidence import (
    BODY_LIMIT,
    NODE_TYPE,
    SELF_ASSERTED_TYPE,
    Ask,
    AttestationKeys,
    Binding,
    DeviceEvidence,
    Evidence,
    NodeEvidence,
    TeeEvidence,
    TpmEvidence,
    device_nonce,
    report_data,
)
from securetrain.evidence.tee import parse_hcl_report
from securetrain.identity.keys import PrivateKey

PARAVISOR_REPORT: Final = 0x01400001
"""The NV index in which a paravisor leaves its report."""
MAX_TOKENS: Final = 4
TOKEN_LIMIT: Final = 64 << 10

T = TypeVar("T")


class Part(StrEnum):
    """Tell whether a part of the evidence is collected."""

    OFF = "off"
    IF_PRESENT = "if-present"
    REQUIRED = "required"


@dataclass(slots=True, kw_only=True)
class NodeAttester:
    """An `attester.Attester` of everything that the operator lets speak."""

    key: PrivateKey
    """The node's identity key, the one of its TLS certificate."""
    executable: Path
    """The Python interpreter, usually `sys.executable`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    tpm: TpmAgent | None = None
    tee: Part = Part.IF_PRESENT
    """The CPU's confidential-computing environment."""
    gpus: Part = Part.IF_PRESENT
    """NVIDIA GPUs in confidential-computing mode."""
    tokens: tuple[Path, ...] = ()
    """Files with one attestation token each, read anew for every evidence."""
    imds: tuple[str, int] = ("169.254.169.254", 80)
    """The cloud's metadata service, which confidential VMs ask for what is public."""
    reports: tuple[Path, ...] = ()
    """Where the kernel is asked for the CPU's report, and its event log; empty for their places."""
    notes: tuple[str, ...] = field(default=(), init=False)
    """What the latest evidence lacks, and why: for people."""

    def keys(self) -> AttestationKeys | None:
        """The TPM's keys, for Hello; None without a TPM.

        Raises:
            AttestationError: ST-ATTS-150 to 155 and 157, as `TpmAgent.keys`.
        """
        return self.tpm.keys() if self.tpm and not self._is_vouched() else None

    def collect(self, binding: Binding, ask: Ask) -> Evidence:
        """Collect anew, bind and sign.

        Raises:
            AttestationError: ST-ATTS-150 to 158 about the TPM, the codes of `tee.configfs` and
                `gpu.nvml` about what is required, ST-ATTS-901 when all is over the limit,
                ST-ATTS-902 when a token cannot be used.
        """
        manifest = canonical.encode(
            collect_software(
                job=binding.job,
                executable=self.executable,
                environ=self.environ,
                root=self.root,
            )
        )
        value = binding.value(manifest)
        notes: list[str] = []
        evidence = NodeEvidence(
            manifest=manifest,
            tpm=self._tpm(value, ask, notes),
            tee=_part(self.tee, lambda: self._cpu(value, ask, notes), notes),
            devices=_part(self.gpus, lambda: _gpus(value), notes) or (),
            tokens=_tokens(self.tokens),
        )
        self.notes = tuple(notes)
        if not (evidence.tpm or evidence.tee or evidence.devices or evidence.tokens):
            return sign_evidence(SELF_ASSERTED_TYPE, manifest, value, self.key)
        signed = sign_evidence(NODE_TYPE, _bounded(evidence), value, self.key)
        return replace(signed, parts=self.tpm.parts) if self.tpm is not None else signed

    def _tpm(self, value: bytes, ask: Ask, notes: list[str]) -> TpmEvidence | None:
        if self.tpm is None or self._is_vouched():
            return None
        evidence = self.tpm.evidence(
            value,
            credential=ask.credential,
            ima_first=ask.ima_first,
            in_parts=ask.parts,
            full=ask.full,
        )
        notes += self.tpm.notes
        return evidence

    def _has_paravisor(self) -> bool:
        """Tell whether a paravisor's report lies in the TPM, and the CPU may speak."""
        if self.tpm is None or self.tee is Part.OFF:
            return False
        return self.tpm.has_index(PARAVISOR_REPORT)

    def _is_vouched(self) -> bool:
        """Tell whether a cloud speaks for the TPM, by a paravisor's report or a certificate."""
        return self._has_paravisor() or self._google_key() is not None

    def _google_key(self) -> int | None:
        """The place of Google's certificate of the TPM's key; None on other machines."""
        if self.tpm is None or self.tee is Part.OFF:
            return None
        from securetrain.attest.node import google  # noqa: PLC0415 - as in _tee

        return google.key_index(self.tpm, google.Places(*self.reports))

    def _cpu(self, value: bytes, ask: Ask, notes: list[str]) -> TeeEvidence:
        if self.tpm is None or not self._is_vouched():
            return _tee(value)
        index = None if self._has_paravisor() else self._google_key()
        if index is not None:
            from securetrain.attest.node import google  # noqa: PLC0415 - as in _tee

            places = google.Places(*self.reports)
            said = google.collect(self.tpm, index, value, places, in_parts=ask.parts)
            notes += self.tpm.notes
            return said
        from securetrain.attest.node import azure  # noqa: PLC0415 - as in _tee

        report, vtpm = self.tpm.vouched(
            value, index=PARAVISOR_REPORT, handle=azure.KEY_HANDLE, in_parts=ask.parts
        )
        notes += self.tpm.notes
        return azure.collect(parse_hcl_report(report), vtpm, notes, azure.Service(*self.imds))


def _part(wanted: Part, collect: Callable[[], T], notes: list[str]) -> T | None:
    """Collect a part; None when it is off, or absent and not required."""
    if wanted is Part.OFF:
        return None
    try:
        return collect()
    except AttestationError as error:
        if wanted is Part.REQUIRED:
            raise
        notes.append(f"{error.where}: {error.what}")
        return None


def _tee(value: bytes) -> TeeEvidence:
    # Most nodes have none: what collects it is loaded when it is wanted.
    from securetrain.attest.node import configfs  # noqa: PLC0415

    return configfs.collect(report_data(value))


def _gpus(value: bytes) -> tuple[DeviceEvidence, ...]:
    from securetrain.attest.node import nvml  # noqa: PLC0415 - as above

    return nvml.collect(device_nonce(value))


def _tokens(paths: tuple[Path, ...]) -> tuple[str, ...]:
    if len(paths) > MAX_TOKENS:
        raise _bad_token(f"{len(paths)} files, evidence has room for {MAX_TOKENS}", "tokens")
    return tuple(map(_token, paths))


def _token(path: Path) -> str:
    try:
        token = read_file(path, TOKEN_LIMIT).decode("ascii").strip()
    except UsageError as error:
        raise _bad_token(error.what, str(path)) from error
    except UnicodeDecodeError as error:
        raise _bad_token("not text", str(path)) from error
    if not token:
        raise _bad_token("the file is empty", str(path))
    return token


def _bad_token(what: str, where: str) -> AttestationError:
    fix = "let the program that fetches the token write it anew, or do not name the file"
    return AttestationError("ST-ATTS-902", what, where, fix)


def _bounded(evidence: NodeEvidence) -> bytes:
    body = evidence.encode()
    if len(body) > BODY_LIMIT:
        raise AttestationError(
            "ST-ATTS-901",
            f"the evidence has {len(body)} bytes, the limit is {BODY_LIMIT}",
            "evidence",
        )
    return body
