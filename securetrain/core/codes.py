# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every code that a refusal can carry, with the exit code that a command ends with.

A code is stable for ever: it stands in ledgers, SARIF files and other people's CI. Refusals have
families of four letters (``ST-CKPT-130``); audit checks have groups of three (``ST-RDZ-001``), so
that the two can never be confused. In the artifact families the first two digits are the exit code.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What every command ends with; documented in docs/reference/exit-codes.md."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    INCOMPLETE = 3
    INTEGRITY = 4
    UNSIGNED = 10
    BAD_SIGNATURE = 11
    POLICY = 12
    CONTENT = 13
    FILES = 14
    STALE = 15
    REVOKED = 16
    LINEAGE = 17
    LOG_PROOF = 18
    UNSAFE_CONTENT = 19
    IO = 20
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Code:
    """One refusal code: its family, what it means in a sentence, and the exit code."""

    id: str
    title: str
    exit: ExitCode

    @property
    def family(self) -> str:
        """The four letters between the dashes."""
        return self.id[3:7]


def _table(*rows: tuple[str, str, ExitCode]) -> dict[str, Code]:
    codes = [Code(*row) for row in rows]
    table = {code.id: code for code in codes}
    assert len(table) == len(codes), "a code is defined twice"
    return table


_X = ExitCode

CODES: Final[dict[str, Code]] = _table(
    # usage: what a person typed, or what the machine could not give
    ("ST-USAG-001", "bad command line or argument", _X.USAGE),
    ("ST-USAG-002", "a file or directory cannot be read or written", _X.IO),
    ("ST-USAG-003", "an address or port is already in use", _X.USAGE),
    ("ST-USAG-004", "a needed package or extra is not installed", _X.USAGE),
    ("ST-USAG-005", "the output already exists and is never overwritten", _X.USAGE),
    ("ST-USAG-006", "no space left on the device", _X.IO),
    ("ST-USAG-007", "a job file has a bad or unknown field", _X.USAGE),
    ("ST-USAG-008", "a document is not valid canonical JSON of its schema", _X.USAGE),
    ("ST-USAG-009", "the installed torch is older than the policy or package allows", _X.USAGE),
    ("ST-USAG-010", "an internal error; nothing that was checked counts as passed", _X.FAILURE),
    ("ST-USAG-011", "there is too little text to train on", _X.USAGE),
    ("ST-USAG-012", "the state dict does not fit the checkpoint", _X.USAGE),
    ("ST-USAG-013", "a value has no place in the native checkpoint format", _X.USAGE),
    # policy
    ("ST-PLCY-001", "the policy is not valid YAML of the safe subset", _X.USAGE),
    ("ST-PLCY-002", "the policy has an unknown key or a value of the wrong type", _X.USAGE),
    ("ST-PLCY-003", "the policy extends a policy that cannot be found or that loops", _X.USAGE),
    ("ST-PLCY-004", "the policy contradicts itself", _X.USAGE),
    ("ST-PLCY-005", "the run directory was made under another policy", _X.USAGE),
    # identity
    ("ST-IDEN-001", "a key cannot be loaded", _X.USAGE),
    ("ST-IDEN-002", "a signature does not verify", _X.BAD_SIGNATURE),
    ("ST-IDEN-003", "a signature is by a key that the trust root does not name", _X.POLICY),
    ("ST-IDEN-004", "an envelope is malformed or of the wrong type", _X.UNSIGNED),
    ("ST-IDEN-005", "a certificate is not valid for its use", _X.POLICY),
    ("ST-IDEN-006", "a certificate does not carry exactly one SPIFFE id of this job", _X.POLICY),
    ("ST-IDEN-007", "no trust root was given", _X.USAGE),
    (
        "ST-IDEN-008",
        "the trust root is malformed, expired or not signed by its own root keys",
        _X.POLICY,
    ),
    ("ST-IDEN-009", "fewer valid signatures than the threshold", _X.POLICY),
    ("ST-IDEN-010", "a private key is readable by others", _X.USAGE),
    ("ST-IDEN-011", "a node or a certificate has been revoked", _X.REVOKED),
    ("ST-IDEN-012", "the revocation list is missing, malformed, not signed or older", _X.POLICY),
    ("ST-IDEN-013", "the folder of a cluster CA is incomplete or cannot be used", _X.USAGE),
    ("ST-IDEN-014", "an enrolment token is malformed", _X.USAGE),
    ("ST-IDEN-015", "signed by a key that was revoked", _X.REVOKED),
    ("ST-IDEN-016", "a new trust root does not follow from the trusted one", _X.POLICY),
    ("ST-IDEN-017", "something is older than what was seen before", _X.STALE),
    ("ST-IDEN-018", "what this machine remembers of a trust root cannot be used", _X.USAGE),
    ("ST-IDEN-019", "a PKCS#11 token or key cannot be used", _X.USAGE),
    # identity, 4x: the transparency log
    ("ST-IDEN-040", "a log's checkpoint is malformed or not signed by the log", _X.LOG_PROOF),
    ("ST-IDEN-041", "a proof of being logged is malformed, or does not hold", _X.LOG_PROOF),
    ("ST-IDEN-042", "the log shrank", _X.LOG_PROOF),
    ("ST-IDEN-043", "a log is not shown to have one history", _X.LOG_PROOF),
    ("ST-IDEN-044", "too few witnesses cosigned the log's checkpoint", _X.LOG_PROOF),
    ("ST-IDEN-045", "the files of a log are damaged or incomplete", _X.LOG_PROOF),
    ("ST-IDEN-046", "a log or a witness's state cannot be written", _X.IO),
    ("ST-IDEN-047", "the log's checkpoint was not cosigned in time", _X.STALE),
    # attestation
    ("ST-ATTS-001", "the evidence is malformed", _X.FAILURE),
    ("ST-ATTS-002", "the nonce is unknown, used or expired", _X.FAILURE),
    ("ST-ATTS-003", "the evidence is not bound to this connection, job and key", _X.FAILURE),
    ("ST-ATTS-004", "the node's tier is below what the policy asks for", _X.FAILURE),
    ("ST-ATTS-005", "self-asserted evidence is not allowed by the policy", _X.FAILURE),
    ("ST-ATTS-006", "the kind of evidence is not known to this verifier", _X.FAILURE),
    ("ST-ATTS-007", "the lease has expired", _X.FAILURE),
    ("ST-ATTS-008", "the evidence contradicts a reference value", _X.FAILURE),
    ("ST-ATTS-009", "the signed reference values are missing, malformed or expired", _X.FAILURE),
    ("ST-ATTS-010", "the node or its TPM has been revoked", _X.FAILURE),
    ("ST-ATTS-011", "another node holds a lease with this TPM or device", _X.FAILURE),
    ("ST-ATTS-012", "the TPM's endorsement key is not enrolled for this node", _X.FAILURE),
    ("ST-ATTS-013", "evidence that the policy asks for is missing", _X.FAILURE),
    (
        "ST-ATTS-014",
        "an attestation result is malformed, expired or not signed as it must",
        _X.FAILURE,
    ),
    ("ST-ATTS-015", "the verifier's state cannot be read or written", _X.FAILURE),
    ("ST-ATTS-016", "the TPM does not hold the attestation key that it claims", _X.FAILURE),
    # attestation, 1xx: TPM keys, certificates, quotes
    ("ST-ATTS-101", "a TPM structure is malformed", _X.FAILURE),
    ("ST-ATTS-102", "a TPM structure uses what this verifier does not support", _X.FAILURE),
    ("ST-ATTS-103", "the endorsement key is not of an accepted template", _X.FAILURE),
    ("ST-ATTS-104", "the attestation key is not one that can vouch for a node", _X.FAILURE),
    (
        "ST-ATTS-105",
        "the endorsement key certificate is malformed or misses its profile",
        _X.FAILURE,
    ),
    ("ST-ATTS-106", "the endorsement key certificate is for another key", _X.FAILURE),
    ("ST-ATTS-107", "the endorsement key certificate leads to no pinned root", _X.FAILURE),
    (
        "ST-ATTS-108",
        "a certificate of the endorsement key has expired or is not yet valid",
        _X.FAILURE,
    ),
    ("ST-ATTS-109", "the endorsement key is revoked", _X.FAILURE),
    ("ST-ATTS-110", "the endorsement key has no certificate and is not listed", _X.FAILURE),
    ("ST-ATTS-111", "a TPM signature does not verify", _X.FAILURE),
    ("ST-ATTS-112", "not a structure of the expected kind that a TPM generated", _X.FAILURE),
    ("ST-ATTS-113", "the TPM signed other qualifying data", _X.FAILURE),
    ("ST-ATTS-114", "the signer is not the attestation key below the endorsement key", _X.FAILURE),
    ("ST-ATTS-115", "the quote does not select the registers that are asked for", _X.FAILURE),
    ("ST-ATTS-116", "the PCR values are not those of the quote", _X.FAILURE),
    ("ST-ATTS-117", "the TPM's clock went back or stood still", _X.FAILURE),
    ("ST-ATTS-118", "the node was rebooted or resumed", _X.FAILURE),
    ("ST-ATTS-119", "the TPM's firmware changed", _X.FAILURE),
    ("ST-ATTS-120", "the TPM certified another key", _X.FAILURE),
    # attestation, 15x: the TPM of this machine
    ("ST-ATTS-150", "there is no TPM, or it may not be used", _X.FAILURE),
    ("ST-ATTS-151", "the TPM does not answer", _X.FAILURE),
    ("ST-ATTS-152", "a response of the TPM is malformed", _X.FAILURE),
    ("ST-ATTS-153", "the TPM refused a command", _X.FAILURE),
    ("ST-ATTS-154", "the TPM is locked out", _X.FAILURE),
    ("ST-ATTS-155", "the TPM cannot do what attestation needs", _X.FAILURE),
    ("ST-ATTS-156", "the PCRs kept changing while they were quoted", _X.FAILURE),
    ("ST-ATTS-157", "the stored attestation key cannot be used with this TPM", _X.FAILURE),
    ("ST-ATTS-158", "the credential is not for this TPM and its key", _X.FAILURE),
    # attestation, 2xx: event logs and boot state
    ("ST-ATTS-201", "the event log is malformed", _X.FAILURE),
    ("ST-ATTS-202", "the event log has the SHA-1 format, which proves nothing", _X.FAILURE),
    ("ST-ATTS-203", "the event log has no digests of the needed algorithm", _X.FAILURE),
    ("ST-ATTS-204", "the event log does not replay to the signed registers", _X.FAILURE),
    ("ST-ATTS-205", "a register that the boot is judged by was not signed", _X.FAILURE),
    ("ST-ATTS-206", "the data of an event is not what was measured", _X.FAILURE),
    (
        "ST-ATTS-207",
        "the events of Secure Boot are not in the order of the firmware profile",
        _X.FAILURE,
    ),
    ("ST-ATTS-208", "Secure Boot is off", _X.FAILURE),
    ("ST-ATTS-209", "a register's separator is missing, repeated or reports an error", _X.FAILURE),
    ("ST-ATTS-210", "an event follows the separator of a register of the firmware", _X.FAILURE),
    ("ST-ATTS-211", "a Secure Boot variable is not among the reference values", _X.FAILURE),
    ("ST-ATTS-212", "a Secure Boot authority is not among the reference values", _X.FAILURE),
    ("ST-ATTS-213", "a boot application is not among the reference values", _X.FAILURE),
    (
        "ST-ATTS-214",
        "a command of the boot loader or kernel is not among the reference values",
        _X.FAILURE,
    ),
    (
        "ST-ATTS-215",
        "a file that the boot loader read is not among the reference values",
        _X.FAILURE,
    ),
    ("ST-ATTS-216", "the value of a boot register is not among the reference values", _X.FAILURE),
    ("ST-ATTS-217", "a measurement of the firmware is not among the reference values", _X.FAILURE),
    ("ST-ATTS-218", "a list of machine owner keys is not among the reference values", _X.FAILURE),
    ("ST-ATTS-219", "the firmware was open to a debugger or to devices' memory access", _X.FAILURE),
    # attestation, 3xx: IMA
    ("ST-ATTS-301", "the IMA list is malformed", _X.FAILURE),
    ("ST-ATTS-302", "the IMA list is larger than allowed", _X.FAILURE),
    ("ST-ATTS-303", "an IMA entry's digest is not that of its data", _X.FAILURE),
    ("ST-ATTS-304", "an IMA entry belongs to another PCR than 10", _X.FAILURE),
    ("ST-ATTS-305", "an IMA entry has an unknown template", _X.FAILURE),
    ("ST-ATTS-306", "the IMA list does not lead to the quoted PCR 10", _X.FAILURE),
    ("ST-ATTS-307", "a file changed while the kernel measured it", _X.FAILURE),
    ("ST-ATTS-308", "the IMA list's boot_aggregate is not that of the quoted boot", _X.FAILURE),
    ("ST-ATTS-309", "a measured file is not in the runtime policy", _X.FAILURE),
    ("ST-ATTS-310", "a measured file has another digest than the runtime policy", _X.FAILURE),
    ("ST-ATTS-311", "the IMA list does not go on where the last one ended", _X.FAILURE),
    ("ST-ATTS-320", "the runtime policy is malformed", _X.FAILURE),
    ("ST-ATTS-321", "the runtime policy is missing or not the one that is named", _X.FAILURE),
    ("ST-ATTS-322", "the runtime policy asks for something that is not enforced", _X.FAILURE),
    ("ST-ATTS-323", "the runtime policy has a pattern that is not safe to match", _X.FAILURE),
    ("ST-ATTS-324", "the runtime policy is not signed by a pinned key", _X.FAILURE),
    # attestation, 4xx: AMD SEV-SNP
    ("ST-ATTS-401", "the SEV-SNP report is malformed", _X.FAILURE),
    ("ST-ATTS-402", "the certificate of a SEV-SNP key is missing or malformed", _X.FAILURE),
    ("ST-ATTS-403", "the SEV-SNP report's signature does not verify", _X.FAILURE),
    ("ST-ATTS-404", "the SEV-SNP key is not certified by AMD for this use", _X.FAILURE),
    ("ST-ATTS-405", "a certificate or list of AMD's is not in date", _X.FAILURE),
    ("ST-ATTS-406", "a certificate of AMD's was revoked", _X.FAILURE),
    ("ST-ATTS-407", "AMD's revocation list is missing or not valid", _X.FAILURE),
    ("ST-ATTS-408", "the SEV-SNP report and its key's certificate contradict", _X.FAILURE),
    ("ST-ATTS-409", "the SEV-SNP guest can be debugged by its host", _X.FAILURE),
    ("ST-ATTS-410", "the SEV-SNP report is not bound to this connection", _X.FAILURE),
    ("ST-ATTS-411", "the SEV-SNP guest is not what the reference values say", _X.FAILURE),
    ("ST-ATTS-412", "the SEV-SNP platform's firmware is too old", _X.FAILURE),
    ("ST-ATTS-413", "the SEV-SNP guest's policy is too weak", _X.FAILURE),
    # attestation, 5xx: Intel TDX
    ("ST-ATTS-501", "the TDX quote is malformed", _X.FAILURE),
    ("ST-ATTS-502", "a certificate of the TDX quote or collateral is malformed", _X.FAILURE),
    ("ST-ATTS-503", "the TDX quote's signature does not verify", _X.FAILURE),
    ("ST-ATTS-504", "a certificate of the TDX quote or collateral is not Intel's", _X.FAILURE),
    ("ST-ATTS-505", "a certificate or revocation list of Intel's is not in date", _X.FAILURE),
    ("ST-ATTS-506", "a certificate of Intel's was revoked", _X.FAILURE),
    ("ST-ATTS-507", "a revocation list of Intel's is missing or not valid", _X.FAILURE),
    ("ST-ATTS-508", "the TDX collateral is malformed", _X.FAILURE),
    ("ST-ATTS-509", "the TDX collateral is not signed by Intel", _X.FAILURE),
    ("ST-ATTS-510", "the TDX collateral is not in date", _X.FAILURE),
    ("ST-ATTS-511", "the TDX collateral is for another platform", _X.FAILURE),
    ("ST-ATTS-512", "the quoting enclave is not Intel's", _X.FAILURE),
    ("ST-ATTS-513", "the TDX module is not Intel's", _X.FAILURE),
    ("ST-ATTS-514", "the TDX platform's TCB status is not accepted", _X.FAILURE),
    ("ST-ATTS-515", "the TDX platform's TCB is older than all that Intel supports", _X.FAILURE),
    ("ST-ATTS-516", "the TDX guest can be debugged or profiled by its host", _X.FAILURE),
    ("ST-ATTS-517", "the TDX quote is not bound to this connection", _X.FAILURE),
    ("ST-ATTS-518", "the TDX guest is not what the reference values say", _X.FAILURE),
    ("ST-ATTS-519", "the TDX guest's attributes are not what the reference allows", _X.FAILURE),
    # attestation, 6xx: NVIDIA GPUs and switches
    ("ST-ATTS-601", "a device's SPDM report is malformed", _X.FAILURE),
    ("ST-ATTS-602", "the opaque data of a device's report is malformed", _X.FAILURE),
    ("ST-ATTS-603", "the signature of a device's report does not verify", _X.FAILURE),
    ("ST-ATTS-604", "a device's report answers another nonce", _X.FAILURE),
    ("ST-ATTS-605", "a device's certificate is malformed", _X.FAILURE),
    ("ST-ATTS-606", "a device's certificates break a rule of the path", _X.FAILURE),
    ("ST-ATTS-607", "a device's certificate has expired", _X.FAILURE),
    ("ST-ATTS-608", "a device's certificate is not valid yet", _X.FAILURE),
    ("ST-ATTS-609", "a device's certificates do not lead to a pinned root", _X.FAILURE),
    ("ST-ATTS-610", "a device's certificate is revoked", _X.FAILURE),
    ("ST-ATTS-611", "a device's certificate is on hold", _X.FAILURE),
    ("ST-ATTS-612", "the status of a device's certificate is not known", _X.FAILURE),
    ("ST-ATTS-613", "a device's report and certificate name different firmware", _X.FAILURE),
    ("ST-ATTS-614", "the identity in a device's certificate is missing or malformed", _X.FAILURE),
    ("ST-ATTS-615", "a device is of another kind than its evidence says", _X.FAILURE),
    ("ST-ATTS-616", "a device's architecture is unknown or contradicts itself", _X.FAILURE),
    ("ST-ATTS-617", "a device is not in an accepted mode", _X.FAILURE),
    ("ST-ATTS-618", "a device runs in debug, recovery or another insecure mode", _X.FAILURE),
    ("ST-ATTS-619", "a device's report and certificate name different devices", _X.FAILURE),
    ("ST-ATTS-620", "there are no usable golden measurements for a device", _X.FAILURE),
    ("ST-ATTS-621", "two RIMs claim the same measurement of a device", _X.FAILURE),
    ("ST-ATTS-622", "a device's measurement is not a golden one", _X.FAILURE),
    ("ST-ATTS-623", "a device did not report a measurement that has golden values", _X.FAILURE),
    ("ST-ATTS-624", "a device reported another number of measurements", _X.FAILURE),
    ("ST-ATTS-625", "a device is not in the inventory", _X.FAILURE),
    ("ST-ATTS-626", "a device or its certificate is banned by the reference values", _X.FAILURE),
    ("ST-ATTS-627", "a device's driver is too old", _X.FAILURE),
    ("ST-ATTS-628", "a device's VBIOS is too old", _X.FAILURE),
    ("ST-ATTS-631", "one device appears twice", _X.FAILURE),
    ("ST-ATTS-632", "the node has another number of devices", _X.FAILURE),
    ("ST-ATTS-633", "a GPU is linked to other switches than the attested ones", _X.FAILURE),
    ("ST-ATTS-634", "a switch is linked to other GPUs than the attested ones", _X.FAILURE),
    ("ST-ATTS-635", "the devices of one node answer different nonces", _X.FAILURE),
    ("ST-ATTS-636", "the devices of one node are in different modes", _X.FAILURE),
    ("ST-ATTS-637", "a switch's configuration is not locked", _X.FAILURE),
    # attestation, 7xx: RIMs, OCSP and the collateral cache
    ("ST-ATTS-701", "a RIM is malformed", _X.FAILURE),
    ("ST-ATTS-702", "a RIM is signed in another form than the one that is accepted", _X.FAILURE),
    ("ST-ATTS-703", "the content of a RIM is not what was signed", _X.FAILURE),
    ("ST-ATTS-704", "the signature of a RIM does not verify", _X.FAILURE),
    ("ST-ATTS-705", "the signer of a RIM does not lead to a pinned root", _X.FAILURE),
    ("ST-ATTS-706", "the certificate of a RIM's signer has expired", _X.FAILURE),
    ("ST-ATTS-707", "the certificate of a RIM's signer is not valid yet", _X.FAILURE),
    ("ST-ATTS-708", "a RIM is for another device, driver or firmware", _X.FAILURE),
    ("ST-ATTS-711", "an OCSP response or CRL is malformed", _X.FAILURE),
    ("ST-ATTS-712", "the OCSP responder gave no answer", _X.FAILURE),
    ("ST-ATTS-713", "the OCSP responder or CRL issuer is not authorised", _X.FAILURE),
    ("ST-ATTS-714", "the signature of an OCSP response or CRL does not verify", _X.FAILURE),
    ("ST-ATTS-715", "an OCSP response does not speak of this certificate", _X.FAILURE),
    ("ST-ATTS-716", "an OCSP response or CRL has expired", _X.FAILURE),
    ("ST-ATTS-717", "an OCSP response or CRL is from the future", _X.FAILURE),
    ("ST-ATTS-718", "an OCSP response does not carry the nonce of the request", _X.FAILURE),
    ("ST-ATTS-719", "a certificate has been revoked", _X.FAILURE),
    ("ST-ATTS-720", "a certificate is on hold", _X.FAILURE),
    ("ST-ATTS-721", "the issuer does not know the certificate", _X.FAILURE),
    ("ST-ATTS-731", "the index of the collateral cache is missing or malformed", _X.FAILURE),
    ("ST-ATTS-732", "the collateral cache is not signed by a key of the policy", _X.FAILURE),
    ("ST-ATTS-733", "the collateral cache has expired", _X.FAILURE),
    ("ST-ATTS-734", "the collateral cache went back to an older version", _X.FAILURE),
    ("ST-ATTS-735", "the collateral cache does not hold what is needed", _X.FAILURE),
    ("ST-ATTS-736", "an entry of the collateral cache has expired", _X.FAILURE),
    ("ST-ATTS-737", "a file of the collateral cache is not what was signed", _X.FAILURE),
    ("ST-ATTS-738", "a file of the collateral cache is missing or unsafe", _X.FAILURE),
    ("ST-ATTS-739", "the collateral cache cannot be written", _X.FAILURE),
    ("ST-ATTS-741", "collateral cannot be fetched", _X.FAILURE),
    # attestation, 8xx: attestation tokens of other issuers
    ("ST-ATTS-801", "the attestation token is malformed", _X.FAILURE),
    ("ST-ATTS-802", "the attestation token's issuer or key is not pinned", _X.FAILURE),
    ("ST-ATTS-803", "the attestation token's algorithm or header is not pinned", _X.FAILURE),
    ("ST-ATTS-804", "the attestation token's signature does not verify", _X.FAILURE),
    ("ST-ATTS-805", "the attestation token has expired", _X.FAILURE),
    ("ST-ATTS-806", "the attestation token is of the wrong time", _X.FAILURE),
    ("ST-ATTS-807", "the attestation token answers another nonce", _X.FAILURE),
    ("ST-ATTS-808", "the attestation token is for another audience", _X.FAILURE),
    ("ST-ATTS-809", "an attestation token's claim is not what it must be", _X.FAILURE),
    ("ST-ATTS-810", "the attestation token's devices are not what they must be", _X.FAILURE),
    ("ST-ATTS-811", "the reference values hold a key for tokens that cannot be used", _X.FAILURE),
    # attestation, 9xx: collecting evidence on this machine
    ("ST-ATTS-950", "this machine is no confidential guest that can attest itself", _X.FAILURE),
    ("ST-ATTS-951", "the kernel's report provider is not known here", _X.FAILURE),
    ("ST-ATTS-952", "the kernel did not give a TEE report", _X.FAILURE),
    ("ST-ATTS-953", "others kept changing the TEE report request", _X.FAILURE),
    ("ST-ATTS-954", "the host's certificate table is malformed", _X.FAILURE),
    ("ST-ATTS-955", "the guest firmware's event log cannot be read", _X.FAILURE),
    ("ST-ATTS-901", "the evidence of this machine is over its limits", _X.FAILURE),
    ("ST-ATTS-902", "an attestation token cannot be used", _X.FAILURE),
    ("ST-ATTS-970", "the package that reads GPU evidence is not installed", _X.USAGE),
    ("ST-ATTS-971", "NVML cannot be used on this machine", _X.FAILURE),
    ("ST-ATTS-972", "the GPUs are not in a confidential-computing mode", _X.FAILURE),
    ("ST-ATTS-973", "the GPUs are in developer-tools mode", _X.FAILURE),
    ("ST-ATTS-974", "NVML shows no GPU, or too many", _X.FAILURE),
    ("ST-ATTS-975", "a GPU gave no evidence", _X.FAILURE),
    ("ST-ATTS-976", "NVML returned malformed evidence", _X.FAILURE),
    # admission and rendezvous
    ("ST-ADMN-001", "a frame is malformed, oversized or of an unexpected type", _X.FAILURE),
    ("ST-ADMN-002", "the peer did not authenticate over TLS 1.3", _X.FAILURE),
    ("ST-ADMN-003", "the peer's certificate has the wrong role", _X.FAILURE),
    ("ST-ADMN-004", "the peer belongs to another job", _X.FAILURE),
    ("ST-ADMN-005", "the peer did not answer in time", _X.FAILURE),
    (
        "ST-ADMN-006",
        "the membership is not signed by the coordinator or its epoch goes back",
        _X.FAILURE,
    ),
    ("ST-ADMN-007", "the coordinator cannot be reached", _X.FAILURE),
    ("ST-ADMN-008", "the job is full or closed", _X.FAILURE),
    ("ST-ADMN-009", "the membership does not contain what this node sent", _X.FAILURE),
    ("ST-ADMN-010", "too many half-open or unauthenticated connections", _X.FAILURE),
    ("ST-ADMN-011", "the same node identity is joined twice", _X.FAILURE),
    ("ST-ADMN-012", "the coordinator could not decide or record an admission", _X.FAILURE),
    ("ST-ADMN-013", "the peer or its certificate has been revoked", _X.REVOKED),
    ("ST-ADMN-014", "an enrolment token is not known, or its holder does not prove it", _X.FAILURE),
    ("ST-ADMN-015", "an enrolment token has expired", _X.FAILURE),
    ("ST-ADMN-016", "an enrolment token has been used", _X.FAILURE),
    ("ST-ADMN-017", "an enrolment token was tried too often", _X.FAILURE),
    # network and worker environment
    ("ST-NETW-001", "the required network profile cannot be achieved", _X.FAILURE),
    ("ST-NETW-002", "a socket of the job is bound outside the job network", _X.FAILURE),
    ("ST-NETW-003", "a variable that the policy pins was set to something else", _X.USAGE),
    # network, 01x and 02x: the job network
    ("ST-NETW-010", "what a job network needs is missing on this machine", _X.FAILURE),
    ("ST-NETW-011", "a command of the job network failed", _X.FAILURE),
    ("ST-NETW-012", "the WireGuard engine is too old", _X.FAILURE),
    ("ST-NETW-013", "the WireGuard engine did not start or did not answer", _X.FAILURE),
    ("ST-NETW-014", "the WireGuard engine died", _X.FAILURE),
    ("ST-NETW-015", "an answer of the WireGuard engine is malformed", _X.FAILURE),
    ("ST-NETW-016", "the WireGuard engine does not hold what it was told", _X.FAILURE),
    ("ST-NETW-017", "a WireGuard key or endpoint is malformed", _X.FAILURE),
    ("ST-NETW-018", "the members of a job network contradict each other", _X.FAILURE),
    ("ST-NETW-019", "the epoch of a job network goes back", _X.FAILURE),
    ("ST-NETW-020", "a job network of this name is up already", _X.FAILURE),
    ("ST-NETW-021", "something of a job network could not be removed", _X.FAILURE),
    ("ST-NETW-022", "the record of a job network is malformed or not ours", _X.FAILURE),
    ("ST-NETW-023", "the job network has another way out than its tunnel", _X.FAILURE),
    # network, 03x: NCCL and RDMA
    ("ST-NETW-030", "the NCCL of a worker has no TLS, or does not take its key", _X.FAILURE),
    ("ST-NETW-031", "NCCL's pre-shared key did not reach a worker", _X.FAILURE),
    ("ST-NETW-032", "the RDMA port of this node's address cannot be told", _X.FAILURE),
    ("ST-NETW-033", "the network card does not encrypt everything between members", _X.FAILURE),
    ("ST-NETW-034", "the RDMA fabric is not isolated as the policy says", _X.FAILURE),
    ("ST-NETW-035", "a worker opened RDMA under a profile that has none", _X.FAILURE),
    # run time of the workers
    ("ST-RUNT-001", "a peer's pickle names a global outside the allow-list", _X.FAILURE),
    (
        "ST-RUNT-002",
        "the launcher was told to use a rendezvous backend that is not authenticated",
        _X.USAGE,
    ),
    ("ST-RUNT-003", "the preflight audit found what the policy does not allow", _X.FAILURE),
    ("ST-RUNT-004", "a worker failed", _X.FAILURE),
    ("ST-RUNT-005", "an entry point of another package would run inside the agent", _X.FAILURE),
    ("ST-RUNT-006", "a debug server would listen outside loopback", _X.FAILURE),
    (
        "ST-RUNT-007",
        "the worker shim cannot protect this program or this version of torch",
        _X.USAGE,
    ),
    ("ST-RUNT-008", "a peer's pickle is larger than the limit", _X.FAILURE),
    # gradients
    ("ST-GRAD-001", "a rank's gradient is not finite", _X.FAILURE),
    ("ST-GRAD-002", "a rank's gradient is an outlier", _X.FAILURE),
    ("ST-GRAD-003", "the reduced gradient is not what the ranks sent", _X.FAILURE),
    ("ST-GRAD-004", "the ranks do not agree on the table of sketches", _X.FAILURE),
    ("ST-GRAD-005", "the run was halted by the gradient policy", _X.FAILURE),
    ("ST-GRAD-006", "the guard does not see every gradient of the model", _X.USAGE),
    # checkpoints; here and below the first two digits are the exit code
    ("ST-CKPT-100", "the checkpoint has no statement", _X.UNSIGNED),
    ("ST-CKPT-101", "the checkpoint's statement is malformed", _X.UNSIGNED),
    ("ST-CKPT-110", "the checkpoint's signature does not verify", _X.BAD_SIGNATURE),
    ("ST-CKPT-111", "a rank's signature over its own file does not verify", _X.BAD_SIGNATURE),
    ("ST-CKPT-120", "the checkpoint is not signed by a key of the trust root", _X.POLICY),
    ("ST-CKPT-121", "the checkpoint does not meet the policy", _X.POLICY),
    ("ST-CKPT-122", "a rank's file is not signed by an admitted member of the run", _X.POLICY),
    (
        "ST-CKPT-123",
        "a waiver is malformed, expired or not signed by enough operators",
        _X.POLICY,
    ),
    ("ST-CKPT-130", "the content of a checkpoint file is not what was signed", _X.CONTENT),
    ("ST-CKPT-131", "a checkpoint file has another size than was signed", _X.CONTENT),
    ("ST-CKPT-132", "the checkpoint's index or tables are not what was signed", _X.CONTENT),
    ("ST-CKPT-140", "a signed checkpoint file is missing", _X.FILES),
    ("ST-CKPT-141", "the checkpoint has a file that was not signed", _X.FILES),
    ("ST-CKPT-142", "the checkpoint has a link, a special file or an unsafe name", _X.FILES),
    ("ST-CKPT-150", "the checkpoint is older than the policy allows", _X.STALE),
    ("ST-CKPT-151", "the checkpoint is older than one that was seen before", _X.STALE),
    ("ST-CKPT-152", "the head of the run is missing, malformed or expired", _X.STALE),
    ("ST-CKPT-153", "the checkpoint has expired", _X.STALE),
    ("ST-CKPT-160", "the checkpoint has been set aside", _X.REVOKED),
    ("ST-CKPT-170", "the checkpoint's lineage is broken", _X.LINEAGE),
    ("ST-CKPT-171", "the run has two checkpoints with one number", _X.LINEAGE),
    (
        "ST-CKPT-190",
        "the checkpoint needs unpickling, which the native path never does",
        _X.UNSAFE_CONTENT,
    ),
    ("ST-CKPT-191", "the checkpoint's index lies about a tensor", _X.UNSAFE_CONTENT),
    ("ST-CKPT-200", "a checkpoint file cannot be read or written", _X.IO),
    ("ST-CKPT-201", "a checkpoint already exists and is never overwritten", _X.IO),
    # datasets
    ("ST-DATA-100", "the dataset has no statement", _X.UNSIGNED),
    ("ST-DATA-101", "the dataset's statement is malformed", _X.UNSIGNED),
    ("ST-DATA-110", "the dataset's signature does not verify", _X.BAD_SIGNATURE),
    ("ST-DATA-120", "the dataset is not signed by a key of the trust root", _X.POLICY),
    ("ST-DATA-121", "the dataset does not meet the policy", _X.POLICY),
    ("ST-DATA-130", "the content of a dataset file is not what was signed", _X.CONTENT),
    ("ST-DATA-131", "a dataset file has another size than was signed", _X.CONTENT),
    ("ST-DATA-132", "the dataset's tables are not what was signed", _X.CONTENT),
    ("ST-DATA-140", "a signed dataset file is missing", _X.FILES),
    ("ST-DATA-141", "the dataset has a file that was not signed", _X.FILES),
    ("ST-DATA-142", "the dataset has a link, a special file or an unsafe name", _X.FILES),
    ("ST-DATA-150", "the dataset is older than the policy allows", _X.STALE),
    ("ST-DATA-160", "a read goes past the end of the data", _X.USAGE),
    ("ST-DATA-200", "a dataset file cannot be read or written", _X.IO),
    ("ST-DATA-201", "a dataset already exists and is never overwritten", _X.IO),
    # OpenSSF Model Signing bundles; the first two digits are the exit code
    ("ST-OMSB-100", "the model has no bundle", _X.UNSIGNED),
    ("ST-OMSB-101", "the model's bundle is malformed", _X.UNSIGNED),
    ("ST-OMSB-110", "the bundle's signature does not verify", _X.BAD_SIGNATURE),
    ("ST-OMSB-120", "the bundle is not signed by whom it should be", _X.POLICY),
    ("ST-OMSB-130", "the content of a model's file is not what was signed", _X.CONTENT),
    ("ST-OMSB-140", "a signed file of the model is missing", _X.FILES),
    ("ST-OMSB-141", "the model has a file that was not signed", _X.FILES),
    ("ST-OMSB-142", "the model has a link, a special file or an unsafe name", _X.FILES),
    ("ST-OMSB-150", "the signer's certificate has expired or is not yet valid", _X.STALE),
    ("ST-OMSB-200", "a file of the model cannot be read", _X.IO),
    # the scanner of pickles; here too the first two digits are the exit code
    ("ST-SCAN-030", "nothing in it could be scanned, so nothing is proven", _X.INCOMPLETE),
    ("ST-SCAN-031", "content that the scanner cannot judge", _X.INCOMPLETE),
    ("ST-SCAN-142", "a link or special file where data should be", _X.FILES),
    ("ST-SCAN-190", "a pickle names a global that is not on the allow-list", _X.UNSAFE_CONTENT),
    ("ST-SCAN-191", "a pickle takes a global from where it cannot be followed", _X.UNSAFE_CONTENT),
    ("ST-SCAN-192", "a pickle or archive is malformed", _X.UNSAFE_CONTENT),
    ("ST-SCAN-193", "a file is of two formats at once", _X.UNSAFE_CONTENT),
    ("ST-SCAN-194", "a file holds a program", _X.UNSAFE_CONTENT),
    ("ST-SCAN-200", "a file cannot be read", _X.IO),
    # the ledger
    ("ST-LEDG-001", "the ledger is malformed", _X.INTEGRITY),
    ("ST-LEDG-002", "the ledger's chain is broken", _X.INTEGRITY),
    ("ST-LEDG-003", "a ledger entry is not signed by a key of the run", _X.INTEGRITY),
    ("ST-LEDG-004", "the ledger was cut short", _X.INTEGRITY),
    # audit and threat models
    ("ST-AUDT-001", "a check definition is invalid", _X.USAGE),
    ("ST-AUDT-002", "the facts are malformed, stale or not signed", _X.INTEGRITY),
    ("ST-AUDT-003", "a waiver is malformed", _X.USAGE),
    ("ST-THRT-001", "a threat model is malformed", _X.USAGE),
    ("ST-THRT-002", "a threat model refers to something that does not exist", _X.FAILURE),
    # drills
    (
        "ST-DRIL-001",
        "the attack did not succeed against the plain stack, so the drill proves nothing",
        _X.FAILURE,
    ),
    ("ST-DRIL-002", "the attack was not refused", _X.FAILURE),
    ("ST-DRIL-003", "the attack was refused for another reason than expected", _X.FAILURE),
)
