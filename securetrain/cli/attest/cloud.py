# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest google``: accept confidential VMs of Google Cloud."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import click

from securetrain.cli.attest.signing import KeySigning
from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.report import Document

_PEM_LIMIT: Final = 256 << 10
_ENDORSEMENT_LIMIT: Final = 64 << 10
_FIRST: Final = 90
"""Days of a first edition."""
_LEAST: Final = click.IntRange(0, 0xFFFFFFFF)
Words: TypeAlias = tuple[str, ...]
List: TypeAlias = Literal[
    "roots",
    "intermediates",
    "endorsement_roots",
    "endorsements",
    "projects",
    "zones",
    "vcpus",
    "memory_gib",
]


def _files(flag: str, text: str) -> Option:
    return Option(flag, f"{text}; repeatable.", metavar="FILE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """Additions to the lists of what is accepted."""

    root: Annotated[Words, _files("--root", "Google's CA of attestation keys")]
    intermediate: Annotated[Words, _files("--intermediate", "A CA between it and the keys")]
    endorsement_root: Annotated[
        Words, _files("--endorsement-root", "Google's CA of launch endorsements")
    ]
    endorsement: Annotated[Words, _files("--endorsement", "A launch endorsement")]
    project: Annotated[Words, Option("--project", metavar="ID")]
    """An accepted project; repeatable."""
    zone: Annotated[Words, Option("--zone")]
    """An accepted zone; repeatable. Default: all."""
    vcpus: Annotated[tuple[int, ...], Option("--vcpus")]
    """An accepted number of virtual CPUs (SEV-SNP); repeatable. Default: all endorsed ones."""
    memory_gib: Annotated[tuple[int, ...], Option("--memory-gib")]
    """An accepted size of memory (TDX); repeatable. Default: all endorsed ones."""

    def read(self) -> dict[str, Any]:
        """The additions, by the names of the lists."""
        from securetrain.core.files import read_file

        def texts(names: Words) -> list[str]:
            found = (read_file(Path(one), _PEM_LIMIT) for one in names)
            return [data.decode("ascii", "replace") for data in found]

        return {
            "roots": texts(self.root),
            "intermediates": texts(self.intermediate),
            "endorsement_roots": texts(self.endorsement_root),
            "endorsements": [read_file(Path(one), _ENDORSEMENT_LIMIT) for one in self.endorsement],
            "projects": self.project,
            "zones": self.zone,
            "vcpus": self.vcpus,
            "memory_gib": self.memory_gib,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for every VM."""

    min_snp_svn: Annotated[int | None, Option("--min-snp-svn", type=_LEAST)]
    """Smallest security version of the firmware on SEV-SNP."""
    min_tdx_svn: Annotated[int | None, Option("--min-tdx-svn", type=_LEAST)]
    """The same on TDX."""
    min_security_version: Annotated[int | None, Option("--min-security-version", type=_LEAST)]
    """Smallest security version of the instance."""
    any_vm: Annotated[bool | None, Option("--any-vm/--enrolled-vms")]
    """Accept VMs that are not enrolled."""
    allow_test: Annotated[bool | None, Option("--allow-test/--production")]
    """Accept instances that are not of production."""


@verb()
def google(
    *,
    file: Path,
    signing: KeySigning,
    lists: Lists,
    new: Annotated[bool, Option("--new", "Begin FILE, which is not there yet; for 90 days.")],
    limits: Limits,
    clear: Annotated[
        tuple[List, ...],
        Option(
            "--clear",
            "Empty a list before anything is added to it; repeatable.",
            metavar="LIST",
        ),
    ],
) -> Document:
    r"""Accept confidential VMs of Google Cloud.

    Writes into FILE which of them are accepted.

    Examples:
      securetrain attest google fleet.json --new --key operator.pem \
          --root gcp_ek_ak_ca_root.pem --intermediate gcp_ek_ak_ca_intermediate.pem \
          --endorsement-root GCE-cc-tcb-root_1.pem --endorsement 8f3a.binarypb \
          --project training-project --zone europe-west4-a
      securetrain attest google fleet.json --key operator.pem --vcpus 48 --min-snp-svn 5
      securetrain attest google fleet.json --key operator.pem --clear endorsements \
          --endorsement 91bc.binarypb

    Certificates are PEM. A launch endorsement is a file of the bucket gce_tcb_integrity, named
    after the measurement that it endorses; Google's CAs are at pki.goog/cloud_integrity. Then
    enroll the VMs themselves with 'attest enroll'.

    Exit codes: 0 written; 1 an endorsement or a certificate does not hold, the file is not signed
    by these keys, or went back; 2 bad command line; 3 written, and it ends within 14 days.
    """
    from securetrain.attest.fleet import set_google
    from securetrain.report import values

    added = lists.read()
    made = signing.change(
        file,
        lambda old: set_google(old, added, asdict(limits), clear),
        _FIRST if new else None,
        new=new,
    )
    return values.values_page(made, file, now())
