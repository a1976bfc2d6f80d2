# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""Keep what makers publish in a signed folder: verifiers need no network.

Examples:
  securetrain attest cache fetch collateral node-17.json --key operator.pem
  securetrain attest cache add collateral --key operator.pem \
      --rim NV_GPU_DRIVER_GH100_590.12=driver.xml \
      --amd-chain Genoa-VCEK=cert_chain.pem --crl amd-Genoa-VCEK=genoa.crl
  securetrain attest cache list collateral --signed-by MCowBQYDK2VwAyEA...
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import click

from securetrain.cli.attest.signing import FileSigning
from securetrain.cli.clock import now
from securetrain.cli.command import Argument, Option, VerbGroup, verb
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import DAYS, SIGNERS
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.attest.fleet import Listing

cache = VerbGroup(__name__, __doc__, {"": ("add", "fetch", "list")}, name="cache")
NAMED = "NAME=FILE"
Files: TypeAlias = tuple[str, ...]
Days: TypeAlias = Annotated[int, DAYS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Documents of makers, by name."""

    rim: Annotated[Files, Option("--rim", metavar=NAMED)]
    """NVIDIA's golden measurements."""
    ocsp: Annotated[Files, Option("--ocsp", metavar=NAMED)]
    """An answer about a certificate."""
    crl: Annotated[Files, Option("--crl", metavar=NAMED)]
    """A revocation list."""
    tcb_info: Annotated[Files, Option("--tcb-info", metavar="FMSPC=FILE")]
    """Intel's TCB Info."""
    qe_identity: Annotated[Path | None, Option("--qe-identity")]
    """Intel's QE Identity."""
    issuer_chain: Annotated[Files, Option("--issuer-chain", metavar=NAMED)]
    """Intel's signing chains."""
    amd_chain: Annotated[Files, Option("--amd-chain", metavar=NAMED)]
    """AMD's ASK and ARK."""
    runtime_policy: Annotated[Path | None, Option("--runtime-policy")]
    """A Keylime runtime policy."""

    def read(self) -> list[Any]:
        """The documents."""
        from securetrain.attest.fleet import read_item
        from securetrain.evidence import CollateralKind

        given = {
            CollateralKind.RIM: self.rim,
            CollateralKind.OCSP: self.ocsp,
            CollateralKind.CRL: self.crl,
            CollateralKind.TCB_INFO: self.tcb_info,
            CollateralKind.QE_IDENTITY: (f"tdx={self.qe_identity}",) if self.qe_identity else (),
            CollateralKind.ISSUER_CHAIN: self.issuer_chain,
            CollateralKind.AMD_CHAIN: self.amd_chain,
            CollateralKind.RUNTIME_POLICY: (
                (f"={self.runtime_policy}",) if self.runtime_policy else ()
            ),
        }
        return [
            read_item(kind, *_named(kind, text), now())
            for kind, texts in given.items()
            for text in texts
        ]


@verb()
def add(*, folder: Path, signing: FileSigning, items: Items, days: Days = 30) -> Document:
    """Put documents into the cache FOLDER, and sign it.

    Names, as verifiers ask for them:
      --rim           the id of NVIDIA's RIM service, NV_GPU_DRIVER_GH100_590.12
      --ocsp          SHA-256 of the certificate that the answer is about
      --crl           amd-PRODUCT-VCEK, amd-PRODUCT-VLEK; intel-root,
                      intel-platform, intel-processor; for NVIDIA the SHA-256 of
                      the issuer's public key
      --tcb-info      the platform's FMSPC, 12 hex digits
      --issuer-chain  tcb-info or qe-identity
      --amd-chain     Milan-VCEK, Genoa-VCEK, Turin-VCEK, and the same with VLEK

    What is there stays, unless the same name is given anew. Without a document the index is signed
    anew, with a later end. A refusal with ST-ATTS-735 names the document that is missing.
    """
    from securetrain.report import evidence

    return evidence.cache_page(_sign(folder, items.read(), signing, days), folder)


@verb()
def fetch(
    *,
    folder: Path,
    bundles: Annotated[tuple[Path, ...], Argument(required=True)],
    signing: FileSigning,
    days: Days = 30,
) -> Document:
    """Fetch what the hardware in BUNDLES needs into the cache FOLDER, and sign it.

    Example:
      securetrain attest cache fetch collateral node-*.json --key operator.pem

    Asks NVIDIA, AMD and Intel, over HTTPS (a proxy is taken from HTTPS_PROXY), for what the CPUs
    and GPUs in the bundles call for: RIMs, certificates, TCB documents and revocation lists.
    Everything is verified before it is put in. The makers' documents end after days: run it again
    in time.

    Exit codes: 0 all of it is there; 3 something could not be had: read the lines with '!'.
    """
    from securetrain.attest.fleet import gather, read_bundle
    from securetrain.report import evidence

    signing.signer()  # before anything is fetched
    gathered = gather.gather_from_makers([read_bundle(path) for path in bundles], now())
    listing, problems = _sign(folder, gathered.items, signing, days), gathered.problems
    return evidence.cache_page(listing, folder, problems, incomplete=bool(problems))


@verb()
def list_(*, folder: Path, signed_by: Annotated[tuple[str, ...], SIGNERS]) -> Document:
    """Show what the cache FOLDER holds. Exit code 3 when something in it has ended."""
    from securetrain.attest.fleet import list_cache
    from securetrain.report import evidence

    with closing(fleet_memory()) as state:
        listing = list_cache(folder, signed_by, now(), state)
    ended = listing.expired or bool(listing.ended())
    return evidence.cache_page(listing, folder, incomplete=ended)


def _sign(folder: Path, items: Sequence[Any], signing: FileSigning, days: int) -> "Listing":
    from securetrain.attest.fleet import Listing, add_items

    at, key = now(), signing.signer()
    with closing(fleet_memory()) as state:
        index = add_items(
            folder,
            items,
            key=key,
            signed_by=signing.by(key),
            now=at,
            lifetime=timedelta(days=days),
            state=state,
        )
    return Listing(index, at)


def _named(option: str, text: str) -> tuple[str, Path]:
    """``NAME=FILE``."""
    name, equals, file = text.partition("=")
    if not equals or not file:
        raise click.UsageError(f"--{option} {text}: it is NAME=FILE")
    return name, Path(file)
