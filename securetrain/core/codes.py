# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every code that a refusal can carry, with the exit code that a command ends with.

A code is stable for ever: it stands in ledgers, SARIF files and other people's CI. Refusals have
families of four letters (``ST-CKPT-130``); audit checks have groups of three (``ST-RDZ-001``), so
that the two can never be confused. In the artifact families the first two digits are the exit code.
"""

from dataclasses import dataclass
from typing import Final

from securetrain.core import attestation_codes
from securetrain.core.exits import ExitCode

__all__ = ["CODES", "Code", "ExitCode"]


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
    ("ST-USAG-014", "the data ends before the job's steps do", _X.USAGE),
    ("ST-USAG-015", "the data is not in the format that the job names", _X.USAGE),
    ("ST-USAG-016", "the model's configuration asks for what is not supported", _X.USAGE),
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
    ("ST-IDEN-017", "a trust root is not newer than the trusted one", _X.STALE),
    ("ST-IDEN-018", "what this machine remembers of a trust root cannot be used", _X.USAGE),
    ("ST-IDEN-019", "a PKCS#11 token or key cannot be used", _X.USAGE),
    ("ST-IDEN-020", "a keyless bundle is malformed", _X.UNSIGNED),
    ("ST-IDEN-021", "a keyless bundle does not verify", _X.BAD_SIGNATURE),
    ("ST-IDEN-022", "a keyless bundle is by another identity than was asked for", _X.POLICY),
    # identity, 4x: the transparency log
    ("ST-IDEN-040", "a log's checkpoint is malformed or not signed by the log", _X.LOG_PROOF),
    ("ST-IDEN-041", "a proof of being logged is malformed, or does not hold", _X.LOG_PROOF),
    ("ST-IDEN-042", "the log shrank", _X.LOG_PROOF),
    ("ST-IDEN-043", "a log is not shown to have one history", _X.LOG_PROOF),
    ("ST-IDEN-044", "too few witnesses cosigned the log's checkpoint", _X.LOG_PROOF),
    ("ST-IDEN-045", "the files of a log are damaged or incomplete", _X.LOG_PROOF),
    ("ST-IDEN-046", "a log or a witness's state cannot be written", _X.IO),
    ("ST-IDEN-047", "the log's checkpoint was not cosigned in time", _X.STALE),
    *attestation_codes.ROWS,
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
    ("ST-ADMN-018", "a member went in the middle of a run, unproven since", _X.FAILURE),
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
    ("ST-NETW-025", "another user of this machine is connected to a worker", _X.FAILURE),
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
    ("ST-RUNT-009", "a peer announces more rows for experts than it can have", _X.FAILURE),
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
    ("ST-CKPT-124", "the checkpoint is encrypted for others", _X.POLICY),
    ("ST-CKPT-130", "the content of a checkpoint file is not what was signed", _X.CONTENT),
    ("ST-CKPT-131", "a checkpoint file has another size than was signed", _X.CONTENT),
    ("ST-CKPT-132", "the checkpoint's index or tables are not what was signed", _X.CONTENT),
    ("ST-CKPT-133", "a verified checkpoint file does not decrypt", _X.CONTENT),
    ("ST-CKPT-140", "a signed checkpoint file is missing", _X.FILES),
    ("ST-CKPT-141", "the checkpoint has a file that was not signed", _X.FILES),
    ("ST-CKPT-142", "the checkpoint has a link, a special file or an unsafe name", _X.FILES),
    ("ST-CKPT-150", "the checkpoint is older than the policy allows", _X.STALE),
    ("ST-CKPT-151", "the checkpoint is older than one that was seen before", _X.STALE),
    ("ST-CKPT-152", "the head of the run is missing, malformed or expired", _X.STALE),
    ("ST-CKPT-153", "the checkpoint has expired", _X.STALE),
    ("ST-CKPT-160", "the checkpoint has been set aside", _X.REVOKED),
    ("ST-CKPT-161", "the checkpoint is signed by a key that was revoked", _X.REVOKED),
    ("ST-CKPT-170", "the checkpoint's lineage is broken", _X.LINEAGE),
    ("ST-CKPT-171", "the run has two checkpoints with one number", _X.LINEAGE),
    ("ST-CKPT-172", "a link of the checkpoint's chain is missing or broken", _X.LINEAGE),
    ("ST-CKPT-180", "the checkpoint is not proven to have been logged", _X.LOG_PROOF),
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
    ("ST-DATA-122", "these bytes were removed from the dataset and must not be read", _X.POLICY),
    ("ST-DATA-130", "the content of a dataset file is not what was signed", _X.CONTENT),
    ("ST-DATA-131", "a dataset file has another size than was signed", _X.CONTENT),
    ("ST-DATA-132", "the dataset's tables are not what was signed", _X.CONTENT),
    ("ST-DATA-133", "the index of a dataset's documents is not true", _X.CONTENT),
    ("ST-DATA-134", "a tokenizer is not the one that was named", _X.CONTENT),
    ("ST-DATA-140", "a signed dataset file is missing", _X.FILES),
    ("ST-DATA-141", "the dataset has a file that was not signed", _X.FILES),
    ("ST-DATA-142", "the dataset has a link, a special file or an unsafe name", _X.FILES),
    ("ST-DATA-150", "the dataset is older than the policy allows", _X.STALE),
    ("ST-DATA-151", "the dataset is older than one that was seen before", _X.STALE),
    ("ST-DATA-160", "a read goes past the end of the data", _X.USAGE),
    ("ST-DATA-161", "the dataset is signed by a key that was revoked", _X.REVOKED),
    ("ST-DATA-171", "the dataset does not hold all of the version before it", _X.LINEAGE),
    ("ST-DATA-172", "a sample is not proven to be in the dataset", _X.LINEAGE),
    ("ST-DATA-180", "the dataset is not proven to have been logged", _X.LOG_PROOF),
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
