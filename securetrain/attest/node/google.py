# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence of a confidential VM of Google Cloud: the CPU's report and the TPM's quote.

Google keeps the template of the virtual TPM's attestation key and its certificate in NV indices.
Rules:

1. a machine without these indices, or without the kernel's interface to the CPU, is no such VM; one
   of whose indices cannot be read is an error;
2. the key is made from the template, which gives the same key each time, and is the one that the
   certificate is for, or nothing is sent;
3. the report is asked for over the binding and that key, the quote over the binding.

Source: google/go-tpm-tools, client/handles.go and client/keys.go.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.node import configfs
from securetrain.attest.node.tpm.agent import TpmAgent
from securetrain.core.errors import AttestationError
from securetrain.evidence import GoogleEvidence, TeeEvidence, report_data
from securetrain.evidence.tee import certified_key

RSA_KEY: Final = 0x01C10000
ECC_KEY: Final = 0x01C10002
"""NV index of a certificate; the key's template is in the next one. P-256 is preferred: it signs
faster."""


@dataclass(frozen=True, slots=True)
class Places:
    """The places where the kernel shows the CPU's environment."""

    reports: Path = configfs.REPORTS
    event_log: Path = configfs.EVENT_LOG


def key_index(tpm: TpmAgent, places: Places) -> int | None:
    """The NV index of the key's certificate; None on a machine that is no such VM.

    Raises:
        AttestationError: ST-ATTS-150 to 155 about the TPM.
    """
    if not places.reports.is_dir():
        return None
    return next((n for n in (ECC_KEY, RSA_KEY) if tpm.has_index(n) and tpm.has_index(n + 1)), None)


def collect(
    tpm: TpmAgent, index: int, binding: bytes, places: Places, *, in_parts: bool = False
) -> TeeEvidence:
    """Put the evidence together.

    Args:
        tpm: the VM's.
        index: of the key's certificate.
        binding: of this exchange.
        places: of the CPU's environment.
        in_parts: as for `TpmAgent.evidence`.

    Raises:
        AttestationError: ST-ATTS-150 to 156 about the TPM, ST-ATTS-444 about the certificate,
            ST-ATTS-950 to 955 about the report.
    """
    certificate, public, vtpm = tpm.certified(
        binding, certificate=index, template=index + 1, in_parts=in_parts
    )
    key, digest = certified_key(certificate)
    if key.unique != public.unique:
        raise AttestationError(
            "ST-ATTS-444",
            "the TPM makes another key from the template than the certificate is for",
            f"NV index {index:#x}",
            "have the instance's TPM provisioned again: stop and start it",
        )
    cpu = configfs.collect(
        report_data(binding, digest), root=places.reports, event_log=places.event_log
    )
    google = GoogleEvidence(ak_certificate=certificate, vtpm=vtpm)
    return msgspec.structs.replace(cpu, google=google)
