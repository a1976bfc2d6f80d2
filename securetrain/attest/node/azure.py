# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence of an Azure confidential VM: its paravisor's report and its TPM's quote.

The report lies in an NV index of the virtual TPM, the key that it vouches for at a persistent
handle. Rules:

1. a machine without the NV index is no such VM; one whose report cannot be read is an error;
2. the quote is by the paravisor's key, over the binding of this exchange;
3. what the platform's metadata service answers (AMD's certificates, Intel's quote) is bounded and
   asked for in the clear, as it is link-local. It is no evidence before a maker's root has
   vouched for it, so that nothing depends on who answers. For AMD's certificates it may be silent:
   the verifier's cache can have them.

Sources: Microsoft, "Azure confidential VMs guest attestation design" (NV index 0x01400001, handle
0x81000003, /acc/tdquote); "THIM", /metadata/THIM/amd/certification.
"""

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from securetrain.core.errors import AttestationError
from securetrain.evidence import ParavisorEvidence, TeeEvidence, TeeKind, TpmEvidence
from securetrain.evidence.tee import AMD, HclReport, load_certificates

KEY_HANDLE: Final = 0x81000003
IMDS: Final = "169.254.169.254"
TIMEOUT: Final = 10.0
_ANSWER_LIMIT: Final = 64 << 10
_TD_REPORT_SIZE: Final = 1024
_AMD_PATH: Final = "/metadata/THIM/amd/certification"
_TDX_PATH: Final = "/acc/tdquote"
_SILENT: Final = "ST-ATTS-961"


@dataclass(frozen=True, slots=True)
class Service:
    """The platform's metadata service."""

    host: str = IMDS
    port: int = 80
    timeout: float = TIMEOUT

    def amd_certificates(self) -> tuple[bytes, ...]:
        """The chip's certificate and those above it, DER.

        Raises:
            AttestationError: ST-ATTS-961, ST-ATTS-402.
        """
        answer = self._ask("GET", _AMD_PATH, b"")
        texts = [answer.get("vcekCert"), answer.get("certificateChain")]
        if not all(isinstance(text, str) for text in texts):
            raise self._silent(_AMD_PATH, "no certificates in the answer")
        pem = "\n".join(str(text).strip() for text in texts).encode() + b"\n"
        loaded = load_certificates(pem, AMD, "the metadata service's certificates")
        return tuple(one.public_bytes(Encoding.DER) for one in loaded)

    def td_quote(self, td_report: bytes) -> bytes:
        """The quote of a TD report.

        Raises:
            AttestationError: ST-ATTS-961.
        """
        asked = {"report": base64.urlsafe_b64encode(td_report).decode().rstrip("=")}
        quote = self._ask("POST", _TDX_PATH, json.dumps(asked).encode()).get("quote")
        if not isinstance(quote, str):
            raise self._silent(_TDX_PATH, "no quote in the answer")
        try:
            return base64.b64decode(quote + "=" * (-len(quote) % 4), altchars=b"-_", validate=True)
        except ValueError as error:
            raise self._silent(_TDX_PATH, f"the quote is no base64url: {error}") from error

    def _ask(self, method: str, path: str, body: bytes) -> dict[str, object]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        headers = {"Metadata": "true", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body=body, headers=headers)
            with connection.getresponse() as response:
                status, data = response.status, response.read(_ANSWER_LIMIT + 1)
            if status != http.HTTPStatus.OK:
                raise self._silent(path, f"status {status}")
            if len(data) > _ANSWER_LIMIT:
                raise self._silent(path, f"more than {_ANSWER_LIMIT} bytes")
            answer = json.loads(data)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise self._silent(path, str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if not isinstance(answer, dict):
            raise self._silent(path, "the answer is no JSON object")
        return answer

    def _silent(self, path: str, what: str) -> AttestationError:
        return AttestationError(_SILENT, what, f"http://{self.host}:{self.port}{path}")


def collect(
    report: HclReport, vtpm: TpmEvidence, notes: list[str], service: Service
) -> TeeEvidence:
    """Put the evidence together.

    Args:
        report: the paravisor's.
        vtpm: the quote by its key, with the logs.
        notes: for people: what could not be had.
        service: the platform's.

    Raises:
        AttestationError: ST-ATTS-961 when a TDX guest gets no quote.
    """
    paravisor = ParavisorEvidence(runtime_data=report.runtime_data, vtpm=vtpm)
    if report.kind == TeeKind.TDX.value:
        quote = service.td_quote(report.report[:_TD_REPORT_SIZE])
        return TeeEvidence(kind=TeeKind.TDX, report=quote, paravisor=paravisor)
    certificates: tuple[bytes, ...] = ()
    try:
        certificates = service.amd_certificates()
    except AttestationError as error:
        notes.append(f"AMD's certificates are left to the verifier's cache: {error.what}")
    return TeeEvidence(
        kind=TeeKind.SEV_SNP,
        report=report.report,
        certificates=certificates,
        paravisor=paravisor,
    )
