# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest google``: accept confidential VMs of Google Cloud."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import file_argument, json_option
from securetrain.cli.passphrase import asker
from securetrain.report import emit

EPILOG: Final = """\
\b
Examples:
  securetrain attest google fleet.json --new --key operator.pem \\
      --root gcp_ek_ak_ca_root.pem --intermediate gcp_ek_ak_ca_intermediate.pem \\
      --endorsement-root GCE-cc-tcb-root_1.pem --endorsement 8f3a.binarypb \\
      --project training-project --zone europe-west4-a
  securetrain attest google fleet.json --key operator.pem --vcpus 48 --min-snp-svn 5
  securetrain attest google fleet.json --key operator.pem --clear endorsements \\
      --endorsement 91bc.binarypb

Certificates are PEM. A launch endorsement is a file of the bucket gce_tcb_integrity, named after
the measurement that it endorses; Google's CAs are at pki.goog/cloud_integrity. Then enroll the VMs
themselves with 'attest enroll'.

Exit codes: 0 written; 1 an endorsement or a certificate does not hold, the file is not signed by
these keys, or went back; 2 bad command line; 3 written, and it ends within 14 days.
"""
F = TypeVar("F", bound=Callable[..., Any])
_PEM_LIMIT: Final = 256 << 10
_FIRST: Final = timedelta(days=90)
_ENDORSEMENT_LIMIT: Final = 64 << 10


def _files(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, multiple=True, metavar="FILE", help=f"{text}; repeatable.")


def _least(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=click.IntRange(0, 0xFFFFFFFF), help=text)


@click.command(epilog=EPILOG, short_help="Accept confidential VMs of Google Cloud.")
@file_argument("file")
@click.option(
    "--key",
    "key_name",
    required=True,
    help="The operator's key: a file, a pkcs11: URI, or one of awskms:, gcpkms: and azurekms:.",
)
@_files("--root", "Google's CA of attestation keys")
@_files("--intermediate", "A CA between it and the keys")
@_files("--endorsement-root", "Google's CA of launch endorsements")
@_files("--endorsement", "A launch endorsement")
@click.option("--new", is_flag=True, help="Begin FILE, which is not there yet; for 90 days.")
@click.option("--project", multiple=True, metavar="ID", help="An accepted project; repeatable.")
@click.option("--zone", multiple=True, help="An accepted zone; repeatable. Default: all.")
@click.option(
    "--vcpus",
    multiple=True,
    type=int,
    help="An accepted number of virtual CPUs (SEV-SNP); repeatable. Default: all endorsed ones.",
)
@click.option(
    "--memory-gib",
    multiple=True,
    type=int,
    help="An accepted size of memory (TDX); repeatable. Default: all endorsed ones.",
)
@_least("--min-snp-svn", "Smallest security version of the firmware on SEV-SNP.")
@_least("--min-tdx-svn", "The same on TDX.")
@_least("--min-security-version", "Smallest security version of the instance.")
@click.option("--any-vm/--enrolled-vms", default=None, help="Accept VMs that are not enrolled.")
@click.option(
    "--allow-test/--production", default=None, help="Accept instances that are not of production."
)
@click.option(
    "--clear",
    multiple=True,
    metavar="LIST",
    type=click.Choice(
        [
            *("roots", "intermediates", "endorsement_roots", "endorsements"),
            *("projects", "zones", "vcpus", "memory_gib"),
        ]
    ),
    help="Empty a list before anything is added to it; repeatable.",
)
@click.option(
    "--signed-by",
    multiple=True,
    metavar="KEY",
    help="A key that may have signed what is there; repeatable. Default: --key.",
)
@json_option
def google(
    file: Path,
    key_name: str,
    clear: tuple[str, ...],
    signed_by: tuple[str, ...],
    output: str,
    *,
    new: bool,
    **said: Any,
) -> int:
    """Write into FILE which of Google's confidential VMs are accepted."""
    from securetrain.attest.fleet import change_values, key_text, set_google
    from securetrain.core.files import read_file
    from securetrain.identity import open_signer
    from securetrain.report import values

    def texts(name: str) -> list[str]:
        found = (read_file(Path(one), _PEM_LIMIT) for one in said[name])
        return [data.decode("ascii", "replace") for data in found]

    added = {
        "roots": texts("root"),
        "intermediates": texts("intermediate"),
        "endorsement_roots": texts("endorsement_root"),
        "endorsements": [read_file(Path(one), _ENDORSEMENT_LIMIT) for one in said["endorsement"]],
        "projects": said["project"],
        "zones": said["zone"],
        "vcpus": said["vcpus"],
        "memory_gib": said["memory_gib"],
    }
    numbers = ("min_snp_svn", "min_tdx_svn", "min_security_version", "any_vm", "allow_test")
    fields = {name: said[name] for name in numbers}
    now, key = datetime.now(UTC), open_signer(key_name, asker(None))
    with closing(fleet_memory()) as state:
        made = change_values(
            file,
            lambda old: set_google(old, added, fields, clear),
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=_FIRST if new else None,
            state=state,
            new=new,
        )
    return emit(values.values_page(made, file, now), output)
