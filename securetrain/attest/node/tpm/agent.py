# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A node's TPM at work: keys for Hello, then activation, quote and logs for evidence.

::

    agent = TpmAgent(state=Path("/var/lib/securetrain/tpm"))
    keys = agent.keys()
    evidence = agent.evidence(binding_value, credential=credential)

Rules:

1. the attestation key is made below the endorsement key, by the TPM. Its wrapped form is kept in a
   private folder, so that later starts only load it; a file that was made with another endorsement
   key, or altered, is refused and never replaced silently;
2. the key has `noDA`: power cuts count as failed tries against a TPM's other keys, and must not
   keep a node out of attestation;
3. a quote is of one moment: the TPM's count of register changes is the same before the registers
   are read and after they are quoted, or all of it is done again, at most `QUOTE_TRIES` times;
4. the TPM is open only while it is used. What is loaded is flushed, whatever happens;
5. a credential is opened through a protected session (`protected`), or not at all: the secret that
   comes out would otherwise cross the bus readable. `Sessions` says who may go without, and each
   time that somebody does it is logged.

Between uses the agent keeps the TPM's own saved contexts of its keys, in memory. They spare a TPM
without a persistent endorsement key from making it anew for every renewal, and are worth nothing
after a reset: then the keys are loaded as at first.
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from securetrain.attest.node.tpm import endorsement, protected
from securetrain.attest.node.tpm.client import TIMEOUT, Range, Tpm
from securetrain.attest.node.tpm.endorsement import EndorsementKey, split_certificates
from securetrain.attest.node.tpm.measurements import Measurements, Sources
from securetrain.attest.node.tpm.protected import Loaded
from securetrain.attest.node.tpm.responses import TpmRefusalError
from securetrain.attest.node.tpm.transport import DEFAULT_DEVICE
from securetrain.core import canonical, install_hint
from securetrain.core.errors import AttestationError, SecureTrainError
from securetrain.core.files import PRIVATE_FILE, make_missing_dir, read_file, write_atomic
from securetrain.evidence import AttestationKeys, TpmEvidence
from securetrain.evidence.tpm import (
    AK_TEMPLATE,
    EK_TEMPLATES,
    Hash,
    PcrSelection,
    PublicArea,
    check_attestation_key,
    parse_public,
    tpm2b,
)

BOOT_PCRS: Final = tuple(range(16))
"""Firmware and boot loader (0 to 9), IMA (10), unified kernel images and what comes with them (11
to 13), the machine owner's keys (14) and the system's identity (15): all that cannot be reset."""
QUOTE_TRIES: Final = 5
KEY_FILE: Final = "attestation-key.json"
_KEY_LIMIT: Final = 16 << 10
_PAUSE: Final = 0.02
_LOG: Final = logging.getLogger(__name__)


class Sessions(StrEnum):
    """The ways in which a credential may be opened."""

    PROTECTED = "protected"
    """Salted and encrypted, or not at all."""
    IF_INSTALLED = "if-installed"
    """Protected where the extra ``tpm`` is installed; otherwise in the clear, which is logged."""
    PLAIN = "plain"
    """In the clear, which is logged: for TPMs that no bus leads to (firmware's, a hypervisor's)."""


def sessions_for(address: str) -> Sessions:
    """The sessions where nobody chose any.

    A device may be a chip on a board, behind a bus. A socket leads to a software TPM of this
    machine, whose state anybody who could listen there can read anyway.
    """
    return Sessions.PROTECTED if address.startswith("/") else Sessions.IF_INSTALLED


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An attestation key as the TPM wrapped it: of use in that TPM only."""

    ek_name: bytes
    """Name of the endorsement key that it is below."""
    private: bytes
    """TPM2B_PRIVATE."""
    public: bytes
    """TPM2B_PUBLIC."""


class TpmAgent:
    """Uses one TPM for one node. Not for use by several threads at once."""

    def __init__(
        self,
        state: Path,
        *,
        address: str = DEFAULT_DEVICE,
        pcrs: tuple[int, ...] = BOOT_PCRS,
        sources: Sources | None = None,
        timeout: float = TIMEOUT,
        sessions: Sessions | None = None,
    ) -> None:
        """Remember where things are; nothing is opened yet.

        Args:
            state: private folder of the attestation key.
            address: of the TPM (see `transport`).
            pcrs: registers of the SHA-256 bank that are quoted.
            sources: where the kernel shows its logs.
            timeout: seconds for each command.
            sessions: how credentials are opened; None for `sessions_for` the address.
        """
        self.sessions = sessions or sessions_for(address)
        self.address = address
        self._file = state / KEY_FILE
        self._pcrs = tuple(sorted(set(pcrs)))
        self._sources = sources or Sources()
        self._timeout = timeout
        self._contexts: dict[str, bytes] = {}
        self._endorsement_key: EndorsementKey | None = None
        self._stored: StoredKey | None = None
        self._indices: frozenset[int] | None = None
        self.notes: tuple[str, ...] = ()
        """What the latest evidence lacks, and why: for people."""
        self.parts: tuple[bytes, ...] = ()
        """Of the list that the latest evidence announces."""

    def keys(self) -> AttestationKeys:
        """The endorsement key and the attestation key; the latter is made when there is none.

        Raises:
            AttestationError: ST-ATTS-150 to 155 about the TPM, ST-ATTS-157 about the stored key.
            UsageError: ST-USAG-002 when the key cannot be stored.
        """
        with self._open() as tpm:
            key = self._endorsement(tpm)
            stored = self._key(tpm, key)
        return AttestationKeys(
            ek_public=key.public.tpm2b,
            ek_certificate=key.certificate,
            ek_chain=key.chain,
            ak_public=stored.public,
        )

    def evidence(
        self,
        binding: bytes,
        *,
        credential: tuple[bytes, bytes] | None = None,
        ima_first: int = 0,
        in_parts: bool = False,
        full: bool = True,
    ) -> TpmEvidence:
        """Evidence for one binding.

        Args:
            binding: what the quote signs as its extraData.
            credential: TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET to open; None on a renewal.
            ima_first: entries of the IMA list that the verifier has seen before.
            in_parts: whether the verifier asks for the parts of a long list (`parts`).
            full: whether to send the firmware's log.

        Raises:
            AttestationError: ST-ATTS-150 to 155 about the TPM, ST-ATTS-156 when the registers did
                not stand still, ST-ATTS-157 about the stored key, ST-ATTS-158 when the credential
                is for other keys, ST-ATTS-159 without the extra, ST-ATTS-160 when somebody on the
                bus altered something.
        """
        with self._open() as tpm, ExitStack() as held:
            key = self._endorsement(tpm)
            stored = self._key(tpm, key)
            ak = self._attestation_key(tpm, key, stored, held)
            activation = b""
            if credential is not None:
                secret = self._activate(tpm, key, stored, ak, credential)
                activation = hmac.digest(secret, binding, hashlib.sha256)
            quote, signature, pcrs = quote_at_once(tpm, ak, binding, self._pcrs)
        logs = Measurements(self._sources)
        evidence = TpmEvidence(
            activation=activation,
            quote=quote,
            signature=signature,
            pcrs=pcrs,
            event_log=logs.event_log() if full else b"",
            ima=logs.ima(ima_first, in_parts=in_parts),
            ima_parts=logs.announced,
            userspace_log=logs.userspace_log(),
            pcr_signatures=logs.pcr_signatures() if full else b"",
        )
        self.notes, self.parts = tuple(logs.notes), logs.parts
        return evidence

    def has_index(self, index: int) -> bool:
        """Tell whether the TPM has an NV index; what a TPM has of them is looked up once."""
        if self._indices is None:
            with self._open() as tpm:
                self._indices = frozenset(tpm.handles(Range.NV))
        return index in self._indices

    def vouched(
        self, binding: bytes, *, index: int, handle: int, in_parts: bool = False
    ) -> tuple[bytes, TpmEvidence]:
        """Evidence by a key that is not ours, and that a report in the TPM vouches for.

        Args:
            binding: what the quote signs as its extraData.
            index: where the report lies.
            handle: where the key is persistent.
            in_parts: as for `evidence`.

        Returns:
            The report, and the quote with the logs.

        Raises:
            AttestationError: ST-ATTS-150 to 156.
        """
        with self._open() as tpm:
            report = tpm.nv_read(index)
            quote, signature, pcrs = quote_at_once(tpm, handle, binding, self._pcrs)
        return report, self._in_full(quote, signature, pcrs, in_parts=in_parts)

    def certified(
        self, binding: bytes, *, certificate: int, template: int, in_parts: bool = False
    ) -> tuple[bytes, PublicArea, TpmEvidence]:
        """Evidence by a primary key whose template and certificate lie in the TPM.

        Args:
            binding: what the quote signs as its extraData.
            certificate: the NV index of the certificate.
            template: the NV index of the template (TPMT_PUBLIC).
            in_parts: as for `evidence`.

        Returns:
            The certificate, the key's public area, and the quote with the logs.

        Raises:
            AttestationError: ST-ATTS-150 to 156; ST-ATTS-101 for a template that is none.
        """
        with self._open() as tpm, ExitStack() as held:
            found = split_certificates(tpm.nv_read(certificate))
            area = parse_public(tpm2b(tpm.nv_read(template)), "template of the attestation key")
            key = held.enter_context(tpm.create_primary(area))
            public = tpm.read_public(key)
            quote, signature, pcrs = quote_at_once(tpm, key, binding, self._pcrs)
        if not found:
            raise AttestationError(
                "ST-ATTS-155", f"NV index {certificate:#x} holds no certificate", self.address
            )
        return found[0], public, self._in_full(quote, signature, pcrs, in_parts=in_parts)

    def _in_full(
        self, quote: bytes, signature: bytes, pcrs: dict[int, bytes], *, in_parts: bool
    ) -> TpmEvidence:
        """A quote with everything that explains it."""
        logs = Measurements(self._sources)
        evidence = TpmEvidence(
            quote=quote,
            signature=signature,
            pcrs=pcrs,
            event_log=logs.event_log(),
            ima=logs.ima(0, in_parts=in_parts),
            ima_parts=logs.announced,
            userspace_log=logs.userspace_log(),
            pcr_signatures=logs.pcr_signatures(),
        )
        self.notes, self.parts = tuple(logs.notes), logs.parts
        return evidence

    def _open(self) -> Tpm:
        return Tpm.open(self.address, self._timeout)

    def _endorsement(self, tpm: Tpm) -> EndorsementKey:
        if self._endorsement_key is None:
            self._endorsement_key = endorsement.find(tpm)
        return self._endorsement_key

    def _key(self, tpm: Tpm, key: EndorsementKey) -> StoredKey:
        """The stored attestation key; made and stored the first time."""
        if self._stored is None:
            if not self._file.exists():
                self._make_key(tpm, key)
            self._stored = self._read_key(key)
        return self._stored

    def _make_key(self, tpm: Tpm, key: EndorsementKey) -> None:
        make_missing_dir(self._file.parent)
        with self._parent(tpm, key) as parent, endorsement.session(tpm, key) as session:
            private, public = tpm.create(parent, session, AK_TEMPLATE)
        stored = StoredKey(ek_name=key.public.name, private=private, public=public)
        write_atomic(self._file, canonical.encode(stored), mode=PRIVATE_FILE)

    def _read_key(self, key: EndorsementKey) -> StoredKey:
        where = str(self._file)
        try:
            data = read_file(self._file, _KEY_LIMIT)
            stored = canonical.decode(data, StoredKey, where=where, canonical=True)
            check_attestation_key(parse_public(stored.public))
        except SecureTrainError as error:
            raise self._unusable(error.what) from error
        if stored.ek_name != key.public.name:
            raise self._unusable("it is below the endorsement key of another TPM")
        return stored

    def _unusable(self, what: str) -> AttestationError:
        return AttestationError(
            "ST-ATTS-157", f"the attestation key cannot be used: {what}", str(self._file)
        )

    def _attestation_key(
        self, tpm: Tpm, key: EndorsementKey, stored: StoredKey, held: ExitStack
    ) -> int:
        """A handle of the attestation key."""
        saved = self._recall(tpm, "ak", held)
        if saved is not None:
            return saved
        with ExitStack() as loading:
            parent = loading.enter_context(self._parent(tpm, key))
            session = loading.enter_context(endorsement.session(tpm, key))
            try:
                load = tpm.load(parent, session, stored.private, stored.public)
                ak = held.enter_context(load)
            except TpmRefusalError as error:
                if not error.about_parameter:
                    raise
                raise self._unusable("this TPM did not wrap it, or it was altered") from error
        self._contexts["ak"] = tpm.context_save(ak)
        return ak

    def _activate(
        self,
        tpm: Tpm,
        key: EndorsementKey,
        stored: StoredKey,
        ak: int,
        credential: tuple[bytes, bytes],
    ) -> bytes:
        """Open a credential."""
        try:
            if not self._unprotected(tpm.where):
                public = parse_public(stored.public)
                with self._parent(tpm, key) as parent:
                    return protected.activate_credential(
                        tpm, Loaded(parent, key.public), Loaded(ak, public), credential
                    )
            with self._parent(tpm, key) as parent, endorsement.session(tpm, key) as session:
                return tpm.activate_credential(ak, parent, session, *credential)
        except TpmRefusalError as error:
            if not error.about_parameter:
                raise
            raise AttestationError(
                "ST-ATTS-158",
                f"the TPM cannot open the verifier's credential: {error.what}",
                tpm.where,
            ) from error

    def _unprotected(self, where: str) -> bool:
        """Tell whether a credential is opened in the clear, and log it when it is.

        Raises:
            AttestationError: ST-ATTS-159 when it may not be, and there is no other way.
        """
        if self.sessions is not Sessions.PLAIN and protected.installed():
            return False
        if self.sessions is Sessions.PROTECTED:
            raise protected.absent(where)
        _LOG.warning(
            "%s: the activation secret crosses the way to the TPM readable (sessions: %s);"
            " to protect it, %s",
            where,
            self.sessions,
            install_hint("tpm"),
        )
        return True

    @contextmanager
    def _parent(self, tpm: Tpm, key: EndorsementKey) -> Iterator[int]:
        """A handle of the endorsement key."""
        if key.handle is not None:
            yield key.handle
            return
        with ExitStack() as held:
            handle = self._recall(tpm, "ek", held)
            if handle is None:
                handle = held.enter_context(tpm.create_primary(EK_TEMPLATES[key.template]))
                self._contexts["ek"] = tpm.context_save(handle)
            yield handle

    def _recall(self, tpm: Tpm, name: str, held: ExitStack) -> int | None:
        """A key from its saved context; None when there is none, or the TPM was reset since."""
        context = self._contexts.pop(name, None)
        if context is None:
            return None
        try:
            handle = held.enter_context(tpm.context_load(context))
        except TpmRefusalError:
            return None
        self._contexts[name] = context
        return handle


def quote_at_once(
    tpm: Tpm, key: int, qualifying: bytes, pcrs: tuple[int, ...]
) -> tuple[bytes, bytes, dict[int, bytes]]:
    """Quote registers of the SHA-256 bank, with the values that were quoted.

    Returns:
        TPMS_ATTEST, TPMT_SIGNATURE, and the registers' values.

    Raises:
        AttestationError: ST-ATTS-156 when registers changed meanwhile, time and again; ST-ATTS-155
            when the bank is switched off.
    """
    selection = (PcrSelection(Hash.SHA256, pcrs),)
    for _ in range(QUOTE_TRIES):
        counter, values = tpm.pcr_read(Hash.SHA256, pcrs)
        quote, signature = tpm.quote(key, qualifying, selection)
        if tpm.pcr_update_counter() == counter:
            return quote, signature, values
        time.sleep(_PAUSE)
    raise AttestationError(
        "ST-ATTS-156", f"registers changed during each of {QUOTE_TRIES} quotes", tpm.where
    )
