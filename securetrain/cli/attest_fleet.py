# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest`` for a fleet: reference values, the cache, revocations."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import days_option, file_argument, file_option, json_option
from securetrain.report import emit

NAMED: Final = "NAME=FILE"
_KEY = file_option("--key", "key_file", required=True, help="The operator's key.")
_SIGNED_BY = click.option(
    "--signed-by",
    multiple=True,
    metavar="KEY",
    help="A key that may have signed what is there; repeatable. Default: --key.",
)

# --- reference values ----------------------------------------------------------------------------

ENROLL_EPILOG: Final = """\
\b
Examples:
  securetrain attest enroll answer-17.json --secret question-17.secret \\
      --reference-values fleet.json --key operator.pem --root infineon.pem \\
      --learn-boot --group gpu-h100-2026.11
  securetrain attest enroll node-*.json --reference-values fleet.json \\
      --key operator.pem --group gpu-h100-2026.11
  securetrain attest enroll --reference-values fleet.json --key operator.pem \\
      --days 90

You vouch for what is enrolled: that the machine is yours and, with --learn-boot, that it is in a
good state. Look at the bundle first: securetrain attest show. A boot is learned from the answer to
a question only (attest challenge --to-enroll), and is good for the nodes of its image group.
Without a bundle the file is signed anew, with a later end.

Exit codes: 0 enrolled; 1 a bundle does not hold together; 2 bad command line or file, or hardware
that is enrolled as another node; 3 enrolled, and something was left out: read the lines with '!'.
"""


@click.command(
    name="enroll", epilog=ENROLL_EPILOG, short_help="Enroll nodes into signed reference values."
)
@file_argument("bundles", nargs=-1)
@file_option("--reference-values", "values", required=True, help="The file; created when missing.")
@_KEY
@file_option("--root", "roots", multiple=True, help="CA of a maker of TPMs (PEM).")
@file_option("--virtual-root", "virtual", multiple=True, help="CA of virtual TPMs: a cloud's.")
@file_option("--test-root", "test", multiple=True, help="CA of software TPMs: proves nothing.")
@file_option("--intermediate", "between", multiple=True, help="CA between a root and the TPMs.")
@click.option("--learn-boot", is_flag=True, help="Take boot, guest and firmware as known good.")
@file_option("--secret", "secrets", multiple=True, help="Of the question that a bundle answers.")
@click.option("--unproven", is_flag=True, help="Learn a boot that nothing proves; it is labelled.")
@click.option("--group", help="Image group of the nodes. Default: the one they have, or none.")
@click.option("--uncertified", is_flag=True, help="Accept a TPM without a certificate, as virtual.")
@click.option("--replace", is_flag=True, help="Accept new hardware or group of a node.")
@file_option("--ima-policy", help="A Keylime runtime policy to put in.")
@click.option(
    "--ima-policy-sha256", metavar="SHA256", help="One that is in the cache, by its SHA-256."
)
@file_option("--cache", "cache_folder", help="Cache with AMD's certificates.")
@_SIGNED_BY
@days_option(90, "Days that it lasts.")
@json_option
def enroll(  # noqa: PLR0917 - click passes every option
    bundles: tuple[Path, ...],
    values: Path,
    key_file: Path,
    roots: tuple[Path, ...],
    virtual: tuple[Path, ...],
    test: tuple[Path, ...],
    between: tuple[Path, ...],
    learn_boot: bool,
    secrets: tuple[Path, ...],
    unproven: bool,
    group: str | None,
    uncertified: bool,
    replace: bool,
    ima_policy: Path | None,
    ima_policy_sha256: str | None,
    cache_folder: Path | None,
    signed_by: tuple[str, ...],
    days: int,
    output: str,
) -> int:
    """Enroll the nodes of BUNDLES into the signed reference values."""
    from securetrain.attest.fleet import (
        Enrollment,
        Roots,
        enroll_into,
        ima_reference,
        key_text,
        read_bundle,
        read_pem,
        read_secret,
    )
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    if unproven and not learn_boot:
        raise click.UsageError("--unproven says how --learn-boot learns: name both, or neither")
    now, key = datetime.now(UTC), PrivateKey.load(key_file)
    own = key_text(key.public)
    asked = {secret.question.node: secret for secret in map(read_secret, secrets)}
    given = [read_bundle(path) for path in bundles]
    if len(asked) < len(secrets) or not asked.keys() <= {bundle.node for bundle in given}:
        raise click.UsageError("--secret: name one for each node whose answer is among BUNDLES")
    with closing(fleet_memory()) as state:
        edition = enroll_into(
            values,
            [
                Enrollment(
                    bundle=bundle,
                    learn_boot=learn_boot,
                    uncertified=uncertified,
                    replace=replace,
                    secret=asked.get(bundle.node),
                    unproven=unproven,
                    group=group,
                )
                for bundle in given
            ],
            key=key,
            signed_by=signed_by or (own,),
            roots=Roots(
                hardware=tuple(map(read_pem, roots)),
                virtual=tuple(map(read_pem, virtual)),
                test=tuple(map(read_pem, test)),
                intermediates=tuple(map(read_pem, between)),
            ),
            now=now,
            lifetime=timedelta(days=days),
            ima=ima_reference(ima_policy, ima_policy_sha256 or ""),
            cache=cache_folder,
            state=state,
        )
    return emit(evidence.edition(edition, values, own), output)


# --- the cache -----------------------------------------------------------------------------------

CACHE_EPILOG: Final = """\
\b
Examples:
  securetrain attest cache fetch collateral node-17.json --key operator.pem
  securetrain attest cache add collateral --key operator.pem \\
      --rim NV_GPU_DRIVER_GH100_590.12=driver.xml \\
      --amd-chain Genoa-VCEK=cert_chain.pem --crl amd-Genoa-VCEK=genoa.crl
  securetrain attest cache list collateral --signed-by MCowBQYDK2VwAyEA...
"""


@click.group(name="cache", epilog=CACHE_EPILOG, short_help="Keep what makers publish, signed.")
def cache() -> None:
    """Keep what makers publish in a signed folder: verifiers need no network."""


ADD_EPILOG: Final = """\
\b
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


@cache.command(name="add", epilog=ADD_EPILOG)
@file_argument("folder")
@_KEY
@click.option("--rim", multiple=True, metavar=NAMED, help="NVIDIA's golden measurements.")
@click.option("--ocsp", multiple=True, metavar=NAMED, help="An answer about a certificate.")
@click.option("--crl", multiple=True, metavar=NAMED, help="A revocation list.")
@click.option("--tcb-info", multiple=True, metavar="FMSPC=FILE", help="Intel's TCB Info.")
@file_option("--qe-identity", help="Intel's QE Identity.")
@click.option("--issuer-chain", multiple=True, metavar=NAMED, help="Intel's signing chains.")
@click.option("--amd-chain", multiple=True, metavar=NAMED, help="AMD's ASK and ARK.")
@file_option("--runtime-policy", help="A Keylime runtime policy.")
@_SIGNED_BY
@days_option(30, "Days that it lasts.")
@json_option
def cache_add(  # noqa: PLR0917 - click passes every option
    folder: Path,
    key_file: Path,
    rim: tuple[str, ...],
    ocsp: tuple[str, ...],
    crl: tuple[str, ...],
    tcb_info: tuple[str, ...],
    qe_identity: Path | None,
    issuer_chain: tuple[str, ...],
    amd_chain: tuple[str, ...],
    runtime_policy: Path | None,
    signed_by: tuple[str, ...],
    days: int,
    output: str,
) -> int:
    """Put documents into the cache FOLDER, and sign it."""
    from securetrain.attest.fleet import Listing, add_items, key_text, read_item
    from securetrain.evidence import CollateralKind
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    now, key = datetime.now(UTC), PrivateKey.load(key_file)
    given = {
        CollateralKind.RIM: rim,
        CollateralKind.OCSP: ocsp,
        CollateralKind.CRL: crl,
        CollateralKind.TCB_INFO: tcb_info,
        CollateralKind.QE_IDENTITY: (f"tdx={qe_identity}",) if qe_identity else (),
        CollateralKind.ISSUER_CHAIN: issuer_chain,
        CollateralKind.AMD_CHAIN: amd_chain,
        CollateralKind.RUNTIME_POLICY: (f"={runtime_policy}",) if runtime_policy else (),
    }
    items = [
        read_item(kind, *_named(kind, text), now) for kind, texts in given.items() for text in texts
    ]
    with closing(fleet_memory()) as state:
        index = add_items(
            folder,
            items,
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=timedelta(days=days),
            state=state,
        )
    return emit(evidence.cache_page(Listing(index, now), folder), output)


FETCH_EPILOG: Final = """\
\b
Example:
  securetrain attest cache fetch collateral node-*.json --key operator.pem

Asks NVIDIA, AMD and Intel, over HTTPS (a proxy is taken from HTTPS_PROXY), for what the CPUs and
GPUs in the bundles call for: RIMs, certificates, TCB documents and revocation lists. Everything is
verified before it is put in. The makers' documents end after days: run it again in time.

Exit codes: 0 all of it is there; 3 something could not be had: read the lines with '!'.
"""


@cache.command(
    name="fetch", epilog=FETCH_EPILOG, short_help="Fetch what nodes need from their makers."
)
@file_argument("folder")
@file_argument("bundles", nargs=-1, required=True)
@_KEY
@_SIGNED_BY
@days_option(30, "Days that it lasts.")
@json_option
def cache_fetch(  # noqa: PLR0917 - click passes every option
    folder: Path,
    bundles: tuple[Path, ...],
    key_file: Path,
    signed_by: tuple[str, ...],
    days: int,
    output: str,
) -> int:
    """Fetch what the hardware in BUNDLES needs into the cache FOLDER, and sign it."""
    from securetrain.attest.fleet import Listing, add_items, gather, key_text, read_bundle
    from securetrain.identity.keys import PrivateKey
    from securetrain.report import evidence

    now, key = datetime.now(UTC), PrivateKey.load(key_file)
    gathered = gather.gather_from_makers([read_bundle(path) for path in bundles], now)
    with closing(fleet_memory()) as state:
        index = add_items(
            folder,
            gathered.items,
            key=key,
            signed_by=signed_by or (key_text(key.public),),
            now=now,
            lifetime=timedelta(days=days),
            state=state,
        )
    problems = gathered.problems
    page = evidence.cache_page(Listing(index, now), folder, problems, incomplete=bool(problems))
    return emit(page, output)


def _named(option: str, text: str) -> tuple[str, Path]:
    """``NAME=FILE``."""
    name, equals, file = text.partition("=")
    if not equals or not file:
        raise click.UsageError(f"--{option} {text}: it is NAME=FILE")
    return name, Path(file)


@cache.command(name="list")
@file_argument("folder")
@click.option(
    "--signed-by",
    multiple=True,
    required=True,
    metavar="KEY",
    help="A key that may sign it; repeatable.",
)
@json_option
def cache_list(folder: Path, signed_by: tuple[str, ...], output: str) -> int:
    """Show what the cache FOLDER holds. Exit code 3 when something in it has ended."""
    from securetrain.attest.fleet import list_cache
    from securetrain.report import evidence

    with closing(fleet_memory()) as state:
        listing = list_cache(folder, signed_by, datetime.now(UTC), state)
    ended = listing.expired or bool(listing.ended())
    return emit(evidence.cache_page(listing, folder, incomplete=ended), output)


# --- revocations ---------------------------------------------------------------------------------

_STATE: Final = file_option(
    "--state", help="A run's directory of an earlier version. Default: this machine's memory."
)


@click.command(name="revocations")
@file_argument("state", required=False)
@json_option
def revocations(state: Path | None, output: str) -> int:
    """Show who is let in no more by the coordinators of this machine.

    STATE is the directory of a run that an earlier version of securetrain has made.
    """
    from securetrain.attest.fleet import open_state
    from securetrain.attest.session import SealedState
    from securetrain.report import evidence

    with closing(open_state(state) if state is not None else fleet_memory()) as kept:
        place = kept.place if isinstance(kept, SealedState) else str(state)
        return emit(evidence.revocations(kept.revocations(), place), output)


@click.command(name="revoke", short_help="Let a node or device in no more, in any job.")
@click.argument("subject")
@click.option("--reason", required=True, help="Why, for whoever meets the refusal.")
def revoke(subject: str, reason: str) -> None:
    """Let SUBJECT in no more: node:DOMAIN/NAME, ek:HEX, chip:HEX or device:SERIAL.

    It holds for every job that a coordinator on this machine admits nodes to, those that run
    included: a node that is in is refused at its next renewal. DOMAIN is the policy's trust domain.
    """
    from securetrain.attest.session import Revocation, check_subject

    check_subject(subject)
    since = datetime.now(UTC).isoformat()
    with closing(fleet_memory()) as kept:
        kept.revoke(Revocation(subject=subject, reason=reason[:1000], since=since))
    click.echo(f"{subject} is let in no more")


@click.command(name="restore", short_help="Let a revoked node or device in again.")
@click.argument("subject")
@_STATE
def restore(subject: str, state: Path | None) -> None:
    """Let SUBJECT in again: node:DOMAIN/NAME, ek:HEX, chip:HEX or device:SERIAL.

    A node that contradicted itself is revoked under its name and under its hardware: restore every
    subject that 'securetrain attest revocations' shows for it, after finding out why. Restoring
    ek:HEX also forgets the clock of that TPM, for one that its owner has cleared.
    """
    from securetrain.attest.fleet import open_state

    with closing(open_state(state) if state is not None else fleet_memory()) as kept:
        if not kept.restore(subject):
            where = state or "what this machine remembers"
            raise click.UsageError(f"{subject} is not revoked in {where}")
    click.echo(f"{subject} may join again")
