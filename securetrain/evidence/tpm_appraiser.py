# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""One node's TPM: whose it is, what it booted, what it has run since.

Rules, in order:

1. the endorsement key is certified and, where the policy wants it, enrolled for this very node
   (ST-ATTS-012): a genuine TPM of somebody else is not ours;
2. at the beginning of a lease the TPM proves that it holds the attestation key, by opening the
   challenge's credential (ST-ATTS-016);
3. the quote covers PCR 0 to 10 and is of this exchange; with all that were accepted before, its
   clock is one TPM's, and during a lease the machine was not restarted;
4. the boot is what the reference values say of the node's image group. During a lease PCR 0 to 9 do
   not change, so that the log need not be sent again (ST-ATTS-008);
5. the kernel's measurement list replays into the quoted PCR 10, begins with this boot, and goes on
   from where the last appraisal ended.

A software TPM is a file, which can be copied. What one TPM signs over time obeys three rules more,
and what breaks one is two machines (ST-ATTS-121). Sources: Part 1, Timing Components (Clock only
advances, keeps within 15 % of real time while the TPM has power, and stands without it; resetCount
and restartCount only rise); Part 3, 24.6 (TPM2_Clear sets all three to zero, and ends the keys
below the endorsement key); Linux measures anew after each start.

6. what was accepted before a quote was asked for is earlier than that quote. Counts and clock never
   go back under an attestation key that was seen before. Under a new key they may have been cleared
   (ST-ATTS-117);
7. from one reset to the next, the clock advances no faster than the time of the verifier, within
   `DRIFT`: of two machines, the one that was started first is ahead of the other. A suspend holds
   the clock up, which is no objection. Times are compared within one boot of the verifier's machine
   only, and the longer of two counts: its uptime, which nobody sets, and the wall's time, which
   goes on while a virtual machine is paused. A wall that is set can hide a copy, and accuses
   nobody;
8. until the next reset or restart, the measurement list of a machine begins with all that it had
   measured before.

A TPM that stands for nothing (`test-only`) affirms nothing, whatever it has measured.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import datetime
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.case import Ask, Case, Opening, Part, Remembered
from securetrain.evidence.ima_appraiser import ImaAppraiser
from securetrain.evidence.node_evidence import AttestationKeys, TpmEvidence
from securetrain.evidence.recent import Recent
from securetrain.evidence.result import Submodule, trust_vector
from securetrain.evidence.tpm.boot import OWNER_KEYS_PCR, BootAppraiser
from securetrain.evidence.tpm.bootrules import BootReference, check_value
from securetrain.evidence.tpm.certificates import MAX_KEYS, Endorsements, TpmReference
from securetrain.evidence.tpm.constants import Hash
from securetrain.evidence.tpm.credential import make_credential
from securetrain.evidence.tpm.eventlog import EventLog
from securetrain.evidence.tpm.ima import ImaState, Progress
from securetrain.evidence.tpm.keys import check_attestation_key
from securetrain.evidence.tpm.late import (
    LATE_PCRS,
    LateAppraiser,
    LateProgress,
    LateReference,
)
from securetrain.evidence.tpm.quote import (
    Clock,
    Quote,
    check_clock,
    verify_quote,
)
from securetrain.evidence.tpm.runtime_policy import ImaReference
from securetrain.evidence.tpm.structures import PublicArea, parse_public
from securetrain.policy.schema import Tpm

QUOTED: Final = range(11)
BOOT_PCRS: Final = range(10)
READY_KEYS: Final = 1 << 10
"""Attestation keys that are ready to verify with: OpenSSL takes 2.7 kB for each."""
MAX_BOOTS: Final = 1 << 10
"""Boots whose registers the leases of all nodes share."""
MAX_SHOWN: Final = 4
"""Violations that a result names; it counts all."""
DRIFT: Final = 0.15
"""By which a clock may be too fast: what the specification allows a TPM's oscillator."""
SLACK_MS: Final = 60_000
"""Beside it: the 30 seconds of a nonce, and as much again for pauses of the verifier."""
_BOOT_VALUES: Final = itemgetter(*BOOT_PCRS)


class Inventory(Protocol):
    """Look up the TPMs that a node may present."""

    def __call__(self, node: str) -> tuple[str, ...] | None:
        """Names of its endorsement keys, hex; None for a node that is not enrolled."""


class TpmState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a TPM has proven; all but the part is kept by the lease."""

    part: Part
    clock: Clock
    registers: bytes
    secure_boot: bool | None
    ima: Progress | None
    late: LateProgress | None


class TpmAppraiser:
    """Judges TPMs for as long as one edition of the reference values stands."""

    def __init__(
        self,
        policy: Tpm,
        *,
        tpm: TpmReference,
        boots: Mapping[str, BootReference],
        late: Mapping[str, LateReference | None],
        ima: ImaReference,
        documents: dict[str, bytes],
        inventory: Inventory,
        group: Callable[[str], str],
        own: Callable[[str], Mapping[str, tuple[str, ...]]],
        unproven: frozenset[str],
    ) -> None:
        """Read what is pinned.

        Args:
            policy: what is asked of a TPM.
            tpm: whose endorsement keys are accepted.
            boots: what a good boot measures, by image group.
            late: what it measures in PCR 11 to 15; None where that is not judged.
            ima: which files may be measured.
            documents: runtime policies that `ima` names by SHA-256.
            inventory: which TPMs a node may present.
            group: which image group a node is of.
            own: digests that a node alone may measure when it boots, by PCR.
            unproven: image groups with a boot that was learned without a proof.

        Raises:
            AttestationError: ST-ATTS-009, ST-ATTS-320 to 324 for bad reference values.
        """
        self._policy = policy
        self._boots = {name: BootAppraiser(boot) for name, boot in boots.items()}
        self._registers = {name: boot.registers for name, boot in boots.items()}
        self._judges_keys = {name: _judges_owner_keys(boot) for name, boot in boots.items()}
        self._unjudged = {name: _unjudged(boot) for name, boot in boots.items()}
        self._late = {
            name: LateAppraiser(one, _elsewhere(boots[name]))
            for name, one in late.items()
            if one is not None
        }
        self._inventory = inventory
        self._group = group
        self._own = own
        self._unproven = unproven
        self._endorsements = Endorsements(tpm)
        self._attestation_keys: Recent[bytes, PublicArea] = Recent(MAX_KEYS)
        self._ready: Recent[bytes, PublicArea] = Recent(READY_KEYS, PublicArea.forget)
        self._boot_values: Recent[bytes, bytes] = Recent(MAX_BOOTS)
        self._ima = ImaAppraiser(policy, ima, documents)

    def open(self, keys: AttestationKeys, node: str, now: datetime) -> Opening:
        """Rule 1, and the form of the attestation key.

        Raises:
            AttestationError: ST-ATTS-012, ST-ATTS-101 to 110.
        """
        endorsement = self._endorsements.check(
            keys.ek_public, keys.ek_certificate, keys.ek_chain, now
        )
        enrolled = self._inventory(node)
        is_enrolled = enrolled is not None and endorsement.name.hex() in enrolled
        # A node that is enrolled answers with its own TPM, whether or not the policy insists.
        if not is_enrolled and (self._policy.inventory or enrolled is not None):
            raise AttestationError(
                "ST-ATTS-012",
                f"the TPM is {endorsement.name.hex()[:20]}..., "
                + ("the node is not enrolled" if enrolled is None else "the node has another"),
                f"node {node}: endorsement key",
            )
        ak = self._attestation_key(keys.ak_public)
        return Opening(endorsement=endorsement, ak=ak, enrolled=is_enrolled)

    def _attestation_key(self, public: bytes) -> PublicArea:
        known = self._attestation_keys.get(public)
        if known is not None:
            if self._ready.get(known.name) is None:
                self._ready.put(known.name, known)
            return known
        ak = parse_public(public, "attestation key")
        check_attestation_key(ak)
        self._ready.put(ak.name, ak)
        return self._attestation_keys.put(public, ak)

    def _shared(self, registers: bytes) -> bytes:
        """The same registers, once for all nodes that boot alike."""
        return self._boot_values.get(registers) or self._boot_values.put(registers, registers)

    def credential(
        self, opening: Opening, secret: bytes, random: Callable[[int], bytes]
    ) -> tuple[bytes, bytes]:
        """The secret, for the TPM that holds both keys."""
        made = make_credential(opening.endorsement.key, opening.ak_name, secret, random)
        opening.endorsement.key.forget()  # nothing is encrypted to it until the node joins again
        return made.id_object, made.encrypted_secret

    def appraise(self, evidence: TpmEvidence, case: Case, opening: Opening) -> TpmState:
        """Rules 2 to 5.

        Raises:
            AttestationError: ST-ATTS-008, 013 and 016, ST-ATTS-101 to 121, 2xx, 3xx.
        """
        check_activation(evidence, case.ask, case.secret, case.binding)
        quote = verify_quote(
            evidence.quote,
            evidence.signature,
            ak=opening.ak,
            ek=opening.endorsement.key,
            extra_data=case.binding,
            pcrs=evidence.pcrs,
            required=QUOTED,
        )
        check_history(quote.clock, opening.ak_name.hex(), case)
        if case.lease is not None and case.lease.clock is not None:
            check_clock(quote.clock, case.lease.clock, running=True)
        registers = b"".join(_BOOT_VALUES(quote.pcrs))
        secure_boot, log = self._judge_boot(evidence, quote, registers, case)
        late = self._judge_late(evidence, quote, log, case)
        earlier = measured_before(quote.clock, case)
        watch = earlier.entries if earlier is not None else 0
        ima = self._ima.appraise(evidence, case, quote, registers, watch=watch)
        if ima is not None:
            check_list(earlier, ima, case.lease.ima if case.lease is not None else None)
        return TpmState(
            part=self._part(
                opening, quote, ima, late, group=self._group(case.node), secure_boot=secure_boot
            ),
            clock=quote.clock,
            registers=self._shared(registers),
            secure_boot=secure_boot,
            ima=ima.progress if ima is not None else None,
            late=late,
        )

    def appraise_vouched(self, evidence: TpmEvidence, case: Case, ak: PublicArea) -> Part:
        """Rules 3 to 5 for a virtual TPM whose attestation key a CPU's report vouches for.

        There is no endorsement key and nothing to activate. All of it is sent each time, so that a
        lease has nothing to go on from.

        Raises:
            AttestationError: ST-ATTS-013, 016, ST-ATTS-101 to 119, 2xx, 3xx.
        """
        if evidence.activation:
            raise AttestationError("ST-ATTS-016", "an activation that nobody has asked for", "vtpm")
        case = msgspec.structs.replace(case, lease=None)
        quote = verify_quote(
            evidence.quote,
            evidence.signature,
            ak=ak,
            ek=None,
            extra_data=case.binding,
            pcrs=evidence.pcrs,
            required=QUOTED,
        )
        registers = b"".join(_BOOT_VALUES(quote.pcrs))
        secure_boot, log = self._judge_boot(evidence, quote, registers, case)
        late = self._judge_late(evidence, quote, log, case)
        ima = self._ima.appraise(evidence, case, quote, registers)
        affirmed = {
            "executables": secure_boot is not None,
            "file-system": ima is not None and ima.policy != "",
        }
        return Part(
            name="vtpm",
            tier=NodeTier.VTPM,
            submodule=Submodule(
                trust_vector=trust_vector(*(name for name, holds in affirmed.items() if holds)),
                claims=self._measured(
                    quote, ima, late, group=self._group(case.node), secure_boot=secure_boot
                ),
            ),
        )

    def _judge_boot(
        self, evidence: TpmEvidence, quote: Quote, registers: bytes, case: Case
    ) -> tuple[bool | None, EventLog | None]:
        """Judge the boot: was Secure Boot on, and the log; None where there is none to judge."""
        lease, group = case.lease, self._group(case.node)
        if lease is not None and lease.registers:
            _check_unchanged(registers, lease.registers)
            return lease.secure_boot, None
        if not self._policy.event_log:
            for number, allowed in self._registers[group].items():
                check_value(f"PCR {number}", quote.pcrs.get(int(number), b""), allowed)
            return None, None
        if not evidence.event_log:
            raise _missing("the firmware's event log", "event_log")
        pcrs = quote.pcrs
        if not self._judges_keys[group]:
            pcrs = {index: value for index, value in pcrs.items() if index != OWNER_KEYS_PCR}
        boot = self._boots[group].appraise(
            evidence.event_log,
            pcrs,
            secure_boot=self._policy.secure_boot,
            own=self._own(case.node),
        )
        return boot.secure_boot, boot.log

    def _judge_late(
        self, evidence: TpmEvidence, quote: Quote, log: EventLog | None, case: Case
    ) -> LateProgress | None:
        """Judge PCR 11 to 15; None where nothing says what they must be."""
        appraiser = self._late.get(self._group(case.node))
        if appraiser is None:
            return None
        return appraiser.appraise(
            log,
            evidence.userspace_log,
            evidence.pcr_signatures,
            quote.pcrs,
            case.lease.late if case.lease is not None else None,
        )

    def _part(
        self,
        opening: Opening,
        quote: Quote,
        ima: ImaState | None,
        late: LateProgress | None,
        *,
        group: str,
        secure_boot: bool | None,
    ) -> Part:
        endorsement = opening.endorsement
        affirmed = {
            "hardware": endorsement.tier >= NodeTier.TPM,
            "instance-identity": opening.enrolled,
            "executables": secure_boot is not None,
            "file-system": ima is not None and ima.policy != "" and not ima.warnings,
        }
        if endorsement.tier is NodeTier.TEST_ONLY:
            affirmed = {}
        claims: dict[str, str | int | bool] = {
            "ek_name": endorsement.name.hex(),
            "ak_name": opening.ak_name.hex(),
            "manufacturer": endorsement.manufacturer,
            "model": endorsement.model,
            "firmware": f"{quote.clock.firmware:016x}",
            "reset_count": quote.clock.reset_count,
            "restart_count": quote.clock.restart_count,
            "clock_safe": quote.safe,
            "enrolled": opening.enrolled,
        }
        claims |= self._measured(quote, ima, late, group=group, secure_boot=secure_boot)
        return Part(
            name="tpm",
            tier=endorsement.tier,
            submodule=Submodule(
                trust_vector=trust_vector(*(name for name, holds in affirmed.items() if holds)),
                claims=claims,
            ),
            identities=(opening.identity,),
        )

    def _measured(
        self,
        quote: Quote,
        ima: ImaState | None,
        late: LateProgress | None,
        *,
        group: str,
        secure_boot: bool | None,
    ) -> dict[str, str | int | bool]:
        """Claims about the registers, for people."""
        claims: dict[str, str | int | bool] = {
            "pcrs_sha256": hashlib.sha256(b"".join(quote.pcrs.values())).hexdigest(),
        }
        if group:
            claims["group"] = group
        if group in self._unproven:
            claims["boot_unproven"] = True
        if late is None:
            claims["unjudged_pcrs"] = self._unjudged[group]
        if secure_boot is not None:
            claims["secure_boot"] = secure_boot
        if ima is not None:
            claims["ima_entries"] = ima.progress.entries
            claims["ima_policy"] = ima.policy
            claims.update(_remarks(ima))
        return claims


def _remarks(ima: ImaState) -> dict[str, str | int]:
    """Claims about a list that was accepted, for readers of the result."""
    remarks: dict[str, str | int] = {}
    if ima.signed:
        remarks["ima_signed"] = ima.signed
    if ima.violations:
        remarks["ima_violations"] = ima.violations
        remarks["ima_violated"] = "; ".join(ima.violated[:MAX_SHOWN])
    if ima.warnings:
        remarks["ima_warnings"] = ima.warnings
    return remarks


def check_activation(evidence: TpmEvidence, ask: Ask, secret: bytes, binding: bytes) -> None:
    """Rule 2.

    Args:
        evidence: the TPM's.
        ask: with the credential, where there was one.
        secret: what the credential holds.
        binding: of this exchange.

    Raises:
        AttestationError: ST-ATTS-016.
    """
    expected = b""
    if ask.credential is not None:
        expected = hmac.new(secret, binding, "sha256").digest()
    if not hmac.compare_digest(evidence.activation, expected):
        raise AttestationError(
            "ST-ATTS-016",
            "the challenge's credential was not opened by the TPM that holds both keys",
            "TPM2_ActivateCredential",
        )


def check_history(clock: Clock, ak_name: str, case: Case) -> None:
    """Rules 6 and 7.

    Args:
        clock: of the quote, verified.
        ak_name: of the key that signed it, hex.
        case: the exchange.

    Raises:
        AttestationError: ST-ATTS-117 and 121.
    """
    now = clock.reset_count, clock.restart_count, clock.clock
    known = any(one.ak_name == ak_name for one in case.past)
    for one in case.past:
        if now <= (one.reset_count, one.restart_count, one.clock):
            if not known:
                raise AttestationError(
                    "ST-ATTS-117", f"now {clock}; before {_told(one)}", "clockInfo"
                )
            raise _two(f"now {clock}, which is over: before, {_told(one)}", "clockInfo")
        if one.reset_count != clock.reset_count or not case.boot or one.boot != case.boot:
            continue
        wall = case.now - datetime.fromisoformat(one.seen)
        passed = max(case.uptime - one.uptime, round(wall.total_seconds() * 1000), 0)
        if clock.clock - one.clock > passed * (1 + DRIFT) + SLACK_MS:
            raise _two(
                f"now {clock}; {passed} ms ago, {_told(one)}: that clock is another one",
                "clockInfo",
            )


def measured_before(clock: Clock, case: Case) -> Progress | None:
    """The measurements of this start of the machine, as far as they were attested."""
    start = clock.reset_count, clock.restart_count
    lists = [
        Progress(one.entries, bytes.fromhex(one.pcr10))
        for one in case.past
        if (one.reset_count, one.restart_count) == start and one.entries
    ]
    return max(lists, key=lambda one: one.entries, default=None)


def check_list(earlier: Progress | None, now: ImaState, start: Progress | None) -> None:
    """Rule 8.

    Args:
        earlier: what `measured_before` gave.
        now: what the list has proven, watched at the entry where `earlier` ended.
        start: where a renewal began; what came before it is not read again.

    Raises:
        AttestationError: ST-ATTS-121.
    """
    begun, ended = now.progress.entries - now.num_entries, now.progress.entries
    if earlier is None or earlier.entries < begun:
        return
    if earlier.entries > ended:
        raise _two(f"{ended} entries, and {earlier.entries} before, in one start", "IMA list")
    passed = start.pcr if start is not None and earlier.entries == begun else now.watched
    if earlier.pcr != passed:
        raise _two(f"its first {earlier.entries} entries were others before", "IMA list")


def _told(one: Remembered) -> str:
    clock = f"reset {one.reset_count}, restart {one.restart_count}, {one.clock} ms"
    return f"{clock} as {one.node} at {one.seen}"


def _two(what: str, where: str) -> AttestationError:
    return AttestationError("ST-ATTS-121", what, where)


def _judges_owner_keys(boot: BootReference) -> bool:
    """Tell whether a boot's own rules say what PCR 14 must be."""
    listed = bool(boot.owner_keys) or str(OWNER_KEYS_PCR) in boot.registers
    return listed or OWNER_KEYS_PCR in boot.unjudged


def _unjudged(boot: BootReference) -> str:
    """The registers from 11 to 15 that a boot's rules say nothing of, for people."""
    named = {int(number) for number in boot.registers}
    if _judges_owner_keys(boot):
        named.add(OWNER_KEYS_PCR)
    return ",".join(str(index) for index in LATE_PCRS if index not in named)


def _elsewhere(boot: BootReference) -> frozenset[int]:
    """Registers from 11 to 15 that a boot's own rules judge."""
    named = {*map(int, boot.registers), *boot.unjudged}
    if _judges_owner_keys(boot):
        named.add(OWNER_KEYS_PCR)
    return frozenset(named.intersection(LATE_PCRS))


def _check_unchanged(registers: bytes, before: bytes) -> None:
    """Rule 4: nothing is measured into a boot's registers while a lease runs."""
    if registers == before:
        return
    size = Hash.SHA256.size
    for index in BOOT_PCRS:
        place = slice(index * size, (index + 1) * size)
        if registers[place] != before[place]:
            raise AttestationError(
                "ST-ATTS-008",
                f"{registers[place].hex()}, it was {before[place].hex()} when the lease began",
                f"PCR {index}",
            )


def _missing(what: str, field: str) -> AttestationError:
    return AttestationError(
        "ST-ATTS-013",
        f"{what} is missing",
        f"node.tpm.{field}",
        "let the node read it (root, securityfs), or do not ask for it in the policy",
    )
