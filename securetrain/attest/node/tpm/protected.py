# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Opens a credential so that nobody between the CPU and the TPM reads or alters what comes out.

Sources: TCG TPM 2.0 Library, Part 1, 19 (sessions: salt, HMAC), 21 (parameter encryption); TCG CPU
to TPM Bus Protection Guidance, passive and active attacks.

Rules:

1. the session is salted to the endorsement key whose public area the node has shown in its Hello.
   A credential only comes back for a key whose certificate the verifier has judged, so that nobody
   on the bus can put a key of their own there: what the library knows of both keys is compared,
   byte for byte, with what the node knows, before the first session is started;
2. the credential goes in and the secret comes out encrypted (AES-128-CFB), and both directions
   carry an HMAC under a key that only this process and the TPM can derive. What does not verify is
   refused (ST-ATTS-160) and its content is not looked at;
3. the sessions are made by libtss2 (`tpm2-pytss`, the extra ``tpm``), over the same open channel as
   everything else: deadlines and limits are those of `transport`. Without it nothing is opened
   (ST-ATTS-159).

What is not a secret (quotes, public areas, logs) is not encrypted: it is signed, or judged by the
verifier.
"""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from securetrain.attest.node.tpm.client import Tpm
from securetrain.attest.node.tpm.responses import refusal
from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm import (
    POLICY_C,
    Algorithm,
    PublicArea,
    number,
    policy_a,
    policy_b,
    tpm2b,
)

LIBRARY: Final = "tpm2_pytss"
_LAYERS: Final = 16
"""Bits of a response code below its layer; the TPM's own layer is zero."""
_KEY_BITS: Final = 128
_SERIALIZED_TYPE: Final = 4
"""Bytes that say what kind of resource follows, in libtss2's serialization."""
_WRONG_HMAC: Final = frozenset({0x98E, 0x9A2})
"""TPM_RC_AUTH_FAIL and TPM_RC_BAD_AUTH about the first session: a command that was altered."""


def installed() -> bool:
    """Tell whether the extra is there."""
    return importlib.util.find_spec(LIBRARY) is not None


class Loaded(NamedTuple):
    """A key in the TPM."""

    handle: int
    public: PublicArea
    """As it was shown to the verifier."""


def activate_credential(
    tpm: Tpm, endorsement: Loaded, attestation: Loaded, credential: tuple[bytes, bytes]
) -> bytes:
    """The secret of a credential, through a salted and encrypted session.

    Args:
        tpm: open.
        endorsement: the endorsement key.
        attestation: the attestation key.
        credential: TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET.

    Raises:
        AttestationError: ST-ATTS-151, 152 the TPM does not answer, or not as it must; ST-ATTS-158
            the credential is malformed; ST-ATTS-159 the extra is not installed; ST-ATTS-160 a key,
            a command or a response was altered.
        TpmRefusalError: ST-ATTS-153, or ST-ATTS-154 in lockout.
    """
    tss = _library()
    carried = _carrier(tss, tpm)
    try:
        sent = (
            tss.TPM2B_ID_OBJECT.unmarshal(credential[0])[0],
            tss.TPM2B_ENCRYPTED_SECRET.unmarshal(credential[1])[0],
        )
    except tss.TSS2_Exception as error:
        what = f"the verifier's credential is malformed: {error}"
        raise AttestationError("ST-ATTS-158", what, tpm.where) from error
    try:
        with tss.ESAPI(carried) as esys:
            return _activate(tss, esys, endorsement, attestation, sent)
    except tss.TSS2_Exception as error:
        if carried.failed is not None:
            # The library only says that the carrier failed; the carrier knows why.
            raise carried.failed from error
        raise _told(int(error.rc), tpm.where) from error
    except _AlteredError as error:
        raise _altered(str(error), tpm.where) from error


class _AlteredError(Exception):
    """Something on the way is not what it was when the verifier judged it."""


def _activate(
    tss: SimpleNamespace,
    esys: Any,
    endorsement: Loaded,
    attestation: Loaded,
    sent: tuple[Any, Any],
) -> bytes:
    ek = _known(esys, endorsement, "endorsement key")
    ak = _known(esys, attestation, "attestation key")
    name_alg = int(endorsement.public.name_alg)
    with (
        _session(tss, esys, ek, tss.TPM2_SE.HMAC, name_alg) as sealed,
        _session(tss, esys, tss.ESYS_TR.NONE, tss.TPM2_SE.POLICY, name_alg) as policy,
    ):
        attributes = tss.TPMA_SESSION
        both = attributes.DECRYPT | attributes.ENCRYPT | attributes.CONTINUESESSION
        esys.trsess_set_attributes(sealed, both)
        _allow(tss, esys, policy, endorsement.public)
        opened = esys.activate_credential(
            ak,
            ek,
            *sent,
            session1=sealed,
            session2=policy,
        )
        return bytes(opened)


def _known(esys: Any, key: Loaded, what: str) -> Any:
    """A loaded key as the library knows it; refused unless that is what this node knows.

    The library asks the TPM, that is, whoever answers. Its copy is what it encrypts the salt to.
    """
    resource = esys.tr_from_tpmpublic(key.handle)
    kept = bytes(resource.serialize(esys))
    head = number(key.handle, 4) + tpm2b(key.public.name)
    if (
        not kept.startswith(head)
        or kept[len(head) + _SERIALIZED_TYPE :] != key.public.tpm2b
        or bytes(resource.get_name(esys)) != key.public.name
    ):
        raise _AlteredError(f"the {what} that answers is not the one that was shown")
    return resource


@contextmanager
def _session(tss: SimpleNamespace, esys: Any, salt: Any, kind: Any, hash_: int) -> Iterator[Any]:
    symmetric = tss.TPMT_SYM_DEF(algorithm=int(Algorithm.AES))
    symmetric.keyBits.sym = _KEY_BITS
    symmetric.mode.sym = int(Algorithm.CFB)
    session = esys.start_auth_session(
        tpm_key=salt, bind=tss.ESYS_TR.NONE, session_type=kind, symmetric=symmetric, auth_hash=hash_
    )
    try:
        yield session
    finally:
        # A TPM that broke cannot be flushed; the first error is the one to tell.
        with suppress(tss.TSS2_Exception):
            esys.flush_context(session)


def _allow(tss: SimpleNamespace, esys: Any, policy: Any, public: PublicArea) -> None:
    """Meet the endorsement key's policy."""
    esys.policy_secret(tss.ESYS_TR.ENDORSEMENT, policy, b"", b"", b"", 0)
    algorithm = public.name_alg
    if public.auth_policy == policy_b(algorithm):
        branches = [policy_a(algorithm), POLICY_C[algorithm]]
        esys.policy_or(policy, tss.TPML_DIGEST(branches))


def _told(code: int, where: str) -> AttestationError:
    """The error for a response code: the TPM's own, or the library's verdict about a response."""
    if code >> _LAYERS == 0 and code not in _WRONG_HMAC:
        return refusal(code, "ActivateCredential", where)
    return _altered(f"the session's protection does not hold (0x{code:x})", where)


def _altered(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-160", what, where)


def absent(where: str, why: str = "tpm2-pytss is not installed") -> AttestationError:
    """The error for a node without the extra."""
    return AttestationError(
        "ST-ATTS-159", f"the secret of a credential would cross the bus readable: {why}", where
    )


def _library() -> SimpleNamespace:
    """tpm2-pytss, loaded when it is needed: most of a node's work does without."""
    # Its warnings go to stderr unless told otherwise; what it refuses is raised here anyway.
    os.environ.setdefault("TSS2_LOG", "all+none")
    try:
        import tpm2_pytss  # noqa: PLC0415
        from tpm2_pytss import TSS2_Exception, constants, types  # noqa: PLC0415
        from tpm2_pytss.TCTI import PyTCTI  # noqa: PLC0415
    except (ImportError, OSError, RuntimeError, NotImplementedError) as error:
        # Also when libtss2 itself is missing, or too old for the binding.
        raise absent("TPM sessions", str(error)) from error
    return SimpleNamespace(
        ESAPI=tpm2_pytss.ESAPI,
        PyTCTI=PyTCTI,
        TSS2_Exception=TSS2_Exception,
        ESYS_TR=constants.ESYS_TR,
        TPM2_SE=constants.TPM2_SE,
        TPMA_SESSION=constants.TPMA_SESSION,
        TPMT_SYM_DEF=types.TPMT_SYM_DEF,
        TPML_DIGEST=types.TPML_DIGEST,
        TPM2B_ID_OBJECT=types.TPM2B_ID_OBJECT,
        TPM2B_ENCRYPTED_SECRET=types.TPM2B_ENCRYPTED_SECRET,
    )


def _carrier(tss: SimpleNamespace, tpm: Tpm) -> Any:
    """The library's way to the TPM: our open channel, with its deadlines and limits."""

    class Carrier(tss.PyTCTI):  # type: ignore[misc, name-defined]
        failed: BaseException | None = None

        def __init__(self) -> None:
            super().__init__()
            self._command = b""

        def do_transmit(self, command: bytes) -> None:
            self._command = bytes(command)

        def do_receive(self, timeout: int) -> bytes:  # noqa: ARG002 - the channel has its own
            try:
                return tpm.exchange(self._command)
            except BaseException as error:
                self.failed = error
                raise

        def do_finalize(self) -> None:
            """Leave the channel open: it is the caller's."""

    return Carrier()
