# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A machine that can be attested: a software TPM, what it booted, what it has run.

::

    with Machine(folder / "node-0", "node-0") as machine:
        machine.boot()
        policy = write_policy(folder, [machine], key)   # enrolled, signed, ready for `run`
        attester = machine.attester(node_key)

Everything but the hardware is real: the TPM's commands, its certificates, the logs' formats. That
is why such a node is labelled test-only.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from securetrain.attest.fleet import (
    Bundle,
    Enrollment,
    Roots,
    Secret,
    collect_bundle,
    enroll,
    key_text,
    own_question,
    question_to_enroll,
)
from securetrain.attest.node import AttesterSettings, NodeAttester, TpmSettings, make_attester
from securetrain.attest.session import write_reference_values
from securetrain.core import canonical
from securetrain.core.files import write_atomic
from securetrain.evidence import ReferenceValues
from securetrain.identity.keys import PrivateKey
from securetrain.testing.bootlog import Boot
from securetrain.testing.measurement_lists import Measurement, encode_ima, measure_files
from securetrain.testing.swtpm import SoftwareTpm

FILES: Final[Mapping[str, bytes]] = {
    "/usr/bin/python3.11": b"the interpreter",
    "/usr/lib/libcuda.so": b"the driver's library",
    "/opt/train/train.py": b"the training script",
}
REFERENCE_FILE: Final = "reference-values.json"
_WHY: Final = "a software TPM proves that the exchange works, and nothing about the machine"


class Machine:
    """One node's hardware, kept in a folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        ca: Path | None = None,
        what: Boot | None = None,
        files: Mapping[str, bytes] = FILES,
    ) -> None:
        """Make the machine; it is off.

        Args:
            folder: of this machine alone.
            name: the node's name.
            ca: folder of the TPM's manufacturer; machines that share it have one root.
            what: what it boots.
            files: what it has run after the boot, by path.
        """
        self.name = name
        self.tpm = SoftwareTpm(folder / "tpm", ca=ca)
        self.what = what or Boot()
        self.files = dict(files)
        self.measured: list[Measurement] = []
        self._folder = folder

    def __enter__(self) -> Self:
        self.tpm.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.tpm.stop()

    @property
    def settings(self) -> AttesterSettings:
        """Of its attester, while it is on."""
        return AttesterSettings(
            tpm=TpmSettings(
                address=self.tpm.address,
                state=str(self._folder / "agent"),
                event_log=str(self._folder / "event_log"),
                ima_binary=str(self._folder / "ima_binary"),
                ima_ascii=str(self._folder / "ima_ascii"),
            )
        )

    def write_settings(self, path: Path) -> Path:
        """The settings as a file for ``--attester``."""
        write_atomic(path, canonical.encode(self.settings))
        return path

    def boot(self) -> None:
        """Measure what it boots and runs, into the registers and the logs."""
        self.measured = list(measure_files(self.files, self.what.registers()))
        self.tpm.boot(self.what.digests(), self.measured)
        write_atomic(self._folder / "event_log", self.what.log())
        self._write_list()

    def reboot(self) -> None:
        """Off and on again, and boot."""
        self.tpm.reboot()
        self.boot()

    def execute(self, path: str, content: bytes) -> None:
        """Run one more file: the kernel measures it."""
        boot_aggregate, entry = measure_files({path: content}, self.what.registers())
        assert boot_aggregate.name == b"boot_aggregate"
        self.measure(entry)

    def measure(self, entry: Measurement) -> None:
        """Measure something else: a signed file, a key for a keyring, a violation."""
        self.measured.append(entry)
        self.tpm.boot(files=[entry])
        self._write_list()

    def attester(self, key: PrivateKey) -> NodeAttester:
        """Its attester, with the node's identity key."""
        return make_attester(self.settings, key, environ={})

    def bundle(self, key: PrivateKey, now: datetime, asked: Secret | None = None) -> Bundle:
        """Evidence for its enrollment, or its answer to a question."""
        question = own_question(self.name) if asked is None else asked.question
        itself = asked is None
        return collect_bundle(self.attester(key), key.public, now, question, asked_itself=itself)

    def enrollment(self, key: PrivateKey, now: datetime) -> Enrollment:
        """Its boot to be learned, with the proof that its TPM holds the key that signs."""
        asked = question_to_enroll(self.bundle(key, now), now)
        return Enrollment(bundle=self.bundle(key, now, asked), learn_boot=True, secret=asked)

    def _write_list(self) -> None:
        write_atomic(self._folder / "ima_binary", encode_ima(self.measured))
        write_atomic(self._folder / "ima_ascii", encode_ima(self.measured, binary=False))


def runtime_policy(files: Mapping[str, bytes]) -> dict[str, object]:
    """A Keylime runtime policy that knows exactly these files."""
    import hashlib  # noqa: PLC0415 - one use

    return {
        "meta": {"version": 1, "generator": 0},
        "release": 0,
        "digests": {path: [hashlib.sha256(data).hexdigest()] for path, data in files.items()},
        "excludes": ["boot_aggregate"],
        "keyrings": {},
        "ima": {"ignored_keyrings": [], "log_hash_alg": "sha1", "dm_policy": None},
        "ima-buf": {},
        "verification-keys": "",
    }


def reference_values(
    machines: Sequence[Machine],
    now: datetime,
    *,
    virtual: bool = False,
    lifetime: timedelta = timedelta(days=1),
) -> ReferenceValues:
    """Machines that are on, enrolled with this boot as the good one.

    Args:
        machines: what to enroll.
        now: the time, timezone-aware.
        virtual: vouch for the software TPMs' manufacturer, so that their tier is `vtpm`.
        lifetime: of the reference values.
    """
    key = PrivateKey.generate()
    pems = tuple(dict.fromkeys(machine.tpm.root_certificate for machine in machines))
    between = tuple(dict.fromkeys(machine.tpm.issuer_certificate for machine in machines))
    roots = Roots(
        virtual=pems if virtual else (), test=() if virtual else pems, intermediates=between
    )
    enrollments = [machine.enrollment(key, now) for machine in machines]
    return enroll(None, enrollments, roots=roots, now=now, lifetime=lifetime).values


def write_policy(
    folder: Path,
    values: ReferenceValues,
    key: PrivateKey,
    *,
    tier: str = "test-only",
    extends: str = "dev",
    ima: str = "log",
) -> Path:
    """A policy that asks for these reference values, and the values beside it.

    Args:
        folder: where both go.
        values: the reference values.
        key: signs them.
        tier: the lowest tier that may join.
        extends: the policy that this one adds to.
        ima: what is asked of the measurement list.
    """
    write_reference_values(folder / REFERENCE_FILE, values, key)
    reference = {"file": REFERENCE_FILE, "signed_by": [key_text(key.public)]}
    node = {
        "min_tier": tier,
        "reference_values": reference,
        "tpm": {"ima": ima},
        "allow_self_asserted": (
            {"max_nodes": len(values.nodes), "reason": _WHY} if tier == "test-only" else None
        ),
    }
    document = {
        "extends": extends,
        "apiVersion": "securetrain.dev/policy/v1",
        "kind": "Policy",
        "metadata": {"id": "software-tpm", "version": "1.0.0", "title": "Attested, test only"},
        "node": node,
    }
    path = folder / "policy.yaml"
    write_atomic(path, json.dumps(document, indent=2).encode())  # JSON is YAML
    return path
