# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain trust``: make, rotate, revoke and show trust roots; follow them on a machine."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from securetrain.cli.options import (
    days_option,
    file_argument,
    file_option,
    json_option,
    secret_option,
)
from securetrain.cli.passphrase import asker
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.identity import Change, Identity
    from securetrain.identity.keys import PublicKey, Signer
    from securetrain.identity.trust import Authority, Signatures, TrustRole

EPILOG = """\
\b
Examples:
  securetrain trust init trust --key root-1.pem --key root-2.pem --threshold root=2 \\
      --add checkpoint=run.pem.pub --add log=log.pem.pub --add witness=w1.pem.pub \\
      --log-origin log.example/team
  securetrain trust rotate trust --key root-1.pem --key root-2.pem --add checkpoint=new.pem.pub
  securetrain trust revoke trust 3fa9c2 --valid-before 1207 --reason "replaced" --key root-1.pem
  securetrain trust sign trust --key root-2.pem
  securetrain trust show trust/root.json
  securetrain trust update ~/.securetrain/trust --pin trust/root.json
  securetrain trust update ~/.securetrain/trust --from trust

\b
Roles: root, checkpoint, dataset, ledger, operator, node, log, witness, ci. Keys are PEM files (of
the public half, but for --key) or URIs (see 'securetrain key'). --identity gives a role to whom a
Sigstore instance vouches for, in place of a key. A version that too few root keys have signed stays
a draft; the others sign it with 'trust sign', on machines of their own.

\b
Exit codes: 0 done, or kept as a draft; 2 bad arguments, keys that cannot be used, or it exists
already; 12 not a good trust root, or it does not follow from the one before; 15 an older one;
20 a file cannot be read or written.
"""

_IDENTITY = click.option(
    "--identity",
    multiple=True,
    metavar="ROLE=NAME",
    help="Let this name of a Sigstore certificate sign for a role; * stands for one part of it.",
)
_ISSUER = click.option("--issuer", default="", help="--identity: the OIDC issuer, its whole URL.")
_INSTANCE = file_option(
    "--trusted-root",
    help="--identity: trusted_root.json of a private Sigstore instance. Default: the public one,"
    " as the installed package carries it.",
)
_SIGNATURES = click.option(
    "--signatures",
    multiple=True,
    metavar="ROLE=classical|both",
    help="Ask for both signatures of a pair of keys.",
)
_FOLDER = file_argument("folder")
_KEYS = click.option(
    "--key", "keys", multiple=True, required=True, help="A root key that signs; may be repeated."
)
_ADD = click.option(
    "--add", multiple=True, metavar="ROLE=KEY", help="Give a role a key; may be repeated."
)
_THRESHOLD = click.option(
    "--threshold", multiple=True, metavar="ROLE=N", help="How many keys of a role must sign."
)
_DAYS = days_option(365, "Its lifetime.")
_ORIGIN = click.option("--log-origin", help="The origin line of the one log that counts.")
_AUTHORITY = click.option(
    "--authority",
    multiple=True,
    metavar="ROLE=CERTIFICATE[,job=JOB]",
    help="Let members of a cluster CA (PEM) sign for a role with their own keys; with a job, those"
    " of that job alone.",
)


@click.group(name="trust", epilog=EPILOG)
def command() -> None:
    """Keep a trust root: which keys may sign what, by whose word it changes."""


@command.command(name="init", epilog=EPILOG)
@_FOLDER
@_KEYS
@_ADD
@_THRESHOLD
@_DAYS
@_ORIGIN
@_AUTHORITY
@_IDENTITY
@_ISSUER
@_INSTANCE
@_SIGNATURES
@secret_option
@json_option
def init(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    keys: Sequence[str],
    add: Sequence[str],
    threshold: Sequence[str],
    days: int,
    log_origin: str | None,
    authority: Sequence[str],
    identity: Sequence[str],
    issuer: str,
    trusted_root: Path | None,
    signatures: Sequence[str],
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Make version 1 in FOLDER, whose root keys are those of --key and of --add root=KEY."""
    from securetrain.identity import Change, TrustFolder, amended
    from securetrain.identity.trust import TrustDocument, TrustRole
    from securetrain.report import keys as answers

    now = datetime.now(UTC)
    identities, instances = _identities(identity, issuer, trusted_root)
    signers = _signers(keys, passphrase_file)
    roles = _keys(add, passphrase_file)
    root = [*(signer.public for signer in signers), *roles.get(TrustRole.ROOT, [])]
    unique = {key.key_id: key for key in root}
    change = Change(
        created=now,
        expires=now + timedelta(days=days),
        add={**roles, TrustRole.ROOT: list(unique.values())},
        thresholds=_thresholds(threshold),
        log_origin=log_origin,
        add_authorities=_authorities(authority),
        add_identities=identities,
        sigstore=instances,
        signatures=_signatures(signatures),
    )
    # The first version is what a change makes of nothing.
    nothing = TrustDocument(version=1, created=now, expires=now, keys={}, roles={})
    document = amended(nothing, change)
    import msgspec

    document = msgspec.structs.replace(document, version=1)
    return emit(answers.change(TrustFolder(folder).begin(document, signers, now)), output)


@command.command(name="rotate", epilog=EPILOG)
@_FOLDER
@_KEYS
@_ADD
@click.option(
    "--remove",
    multiple=True,
    metavar="ROLE=ID",
    help="Take a key (the beginning of its id) from a role: what it signed is no longer trusted.",
)
@_THRESHOLD
@_DAYS
@_ORIGIN
@_AUTHORITY
@_IDENTITY
@_ISSUER
@_INSTANCE
@_SIGNATURES
@secret_option
@json_option
def rotate(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    keys: Sequence[str],
    add: Sequence[str],
    remove: Sequence[str],
    threshold: Sequence[str],
    days: int,
    log_origin: str | None,
    authority: Sequence[str],
    identity: Sequence[str],
    issuer: str,
    trusted_root: Path | None,
    signatures: Sequence[str],
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Make the next version in FOLDER. New root keys sign it too: give them with --key as well."""
    from securetrain.identity import Change

    now = datetime.now(UTC)
    identities, instances = _identities(identity, issuer, trusted_root)
    removed: dict[TrustRole, list[str]] = {}
    for role, beginning in _pairs(remove):
        removed.setdefault(role, []).append(_key_id(folder, beginning))
    change = Change(
        created=now,
        expires=now + timedelta(days=days),
        add=_keys(add, passphrase_file),
        remove=removed,
        thresholds=_thresholds(threshold),
        log_origin=log_origin,
        add_authorities=_authorities(authority),
        add_identities=identities,
        sigstore=instances,
        signatures=_signatures(signatures),
    )
    return _propose(folder, change, keys, passphrase_file, output)


@command.command(name="revoke", epilog=EPILOG)
@_FOLDER
@click.argument("key_id")
@_KEYS
@click.option("--reason", default="", help="Why; stands in the trust root.")
@click.option(
    "--valid-before",
    type=click.IntRange(0),
    help="What was logged at an index below this stays valid; without it, nothing does.",
)
@_DAYS
@secret_option
@json_option
def revoke(  # noqa: PLR0917 - click passes options by name
    folder: Path,
    key_id: str,
    keys: Sequence[str],
    reason: str,
    valid_before: int | None,
    days: int,
    passphrase_file: Path | None,
    output: str,
) -> int:
    """Revoke the key whose id begins with KEY_ID, in a new version. It is never taken back."""
    from securetrain.identity import Change
    from securetrain.identity.trust import Revoked

    now = datetime.now(UTC)
    entry = Revoked(
        key_id=_key_id(folder, key_id), since=now, reason=reason[:500], valid_before=valid_before
    )
    change = Change(created=now, expires=now + timedelta(days=days), revoke=[entry])
    return _propose(folder, change, keys, passphrase_file, output)


@command.command(name="sign", epilog=EPILOG)
@_FOLDER
@_KEYS
@click.option("--yes", is_flag=True, help="Sign without asking.")
@secret_option
@json_option
def sign(
    folder: Path, keys: Sequence[str], yes: bool, passphrase_file: Path | None, output: str
) -> int:
    """Sign the draft in FOLDER with another root key, after it was shown."""
    from securetrain.core.errors import UsageError
    from securetrain.identity import TrustFolder
    from securetrain.report import keys as answers

    store = TrustFolder(folder)
    draft = store.draft()
    if draft is None:
        raise UsageError(
            "ST-USAG-001", "there is no draft in it", str(folder), "securetrain trust rotate"
        )
    if not yes:
        emit(answers.root(draft), "text")
        click.confirm("sign this?", abort=True, err=True)
    signed = store.sign(_signers(keys, passphrase_file), datetime.now(UTC))
    return emit(answers.change(signed), output)


@command.command(name="show", epilog=EPILOG)
@file_argument("path")
@json_option
def show(path: Path, output: str) -> int:
    """Show the trust root in PATH: a file, or a folder that 'trust update' keeps."""
    from securetrain.identity import load_trust
    from securetrain.report import keys as answers

    root = load_trust(path, datetime.now(UTC))
    return emit(answers.root(root.document), output)


@command.command(name="update", epilog=EPILOG)
@_FOLDER
@file_option("--pin", help="Trust this file, on your word.")
@file_option("--from", "source", help="Follow the published versions in this folder.")
@json_option
def update(folder: Path, pin: Path | None, source: Path | None, output: str) -> int:
    """Keep in FOLDER what this machine trusts: begin with --pin, then follow with --from."""
    from securetrain.core.files import read_file
    from securetrain.identity import TrustStore
    from securetrain.identity.trust import LIMIT
    from securetrain.report import keys as answers

    if pin is None and source is None:
        raise click.UsageError("give --pin FILE, --from FOLDER, or both")
    now = datetime.now(UTC)
    store = TrustStore(folder)
    if pin is not None:
        store.pin(read_file(pin, LIMIT), now, str(pin))
    root = store.current(now) if source is None else store.update_from(source, now)
    return emit(answers.followed(root.document), output)


def _propose(
    folder: Path, change: "Change", keys: Sequence[str], passphrase_file: Path | None, output: str
) -> int:
    from securetrain.identity import TrustFolder
    from securetrain.report import keys as answers

    signers = _signers(keys, passphrase_file)
    outcome = TrustFolder(folder).propose(change, signers, datetime.now(UTC))
    return emit(answers.change(outcome), output)


def _signers(names: Sequence[str], passphrase_file: Path | None) -> "list[Signer]":
    from securetrain.identity import open_signer

    ask = asker(passphrase_file)
    return [open_signer(name, ask) for name in names]


def _pairs(values: Sequence[str]) -> "list[tuple[TrustRole, str]]":
    from securetrain.identity.trust import TrustRole

    pairs = []
    for value in values:
        role, separator, rest = value.partition("=")
        if not separator or not rest or role not in set(TrustRole):
            raise click.UsageError(f"{value!r} is not ROLE=VALUE; roles: {', '.join(TrustRole)}")
        pairs.append((TrustRole(role), rest))
    return pairs


def _keys(
    values: Sequence[str], passphrase_file: Path | None
) -> "dict[TrustRole, list[PublicKey]]":
    from securetrain.identity import read_public

    found: dict[TrustRole, list[PublicKey]] = {}
    for role, name in _pairs(values):
        found.setdefault(role, []).append(read_public(name, asker(passphrase_file)))
    return found


def _thresholds(values: Sequence[str]) -> "dict[TrustRole, int]":
    found = {}
    for role, number in _pairs(values):
        if not (number.isascii() and number.isdigit()):
            raise click.UsageError(f"{number!r} is not a number of keys")
        found[role] = int(number)
    return found


def _signatures(values: Sequence[str]) -> "dict[TrustRole, Signatures]":
    from securetrain.identity.trust import Signatures

    found = {}
    for role, word in _pairs(values):
        if word not in set(Signatures):
            raise click.UsageError(f"{word!r} is neither classical nor both")
        found[role] = Signatures(word)
    return found


def _identities(
    values: Sequence[str], issuer: str, trusted_root: Path | None
) -> "tuple[dict[TrustRole, list[Identity]], dict[str, bytes]]":
    """The identities of roles, and the trusted root of the instance that they name."""
    from securetrain.core.files import read_file
    from securetrain.identity import Identity, public_root
    from securetrain.identity.trust import LIMIT

    if not values:
        if issuer or trusted_root is not None:
            raise click.UsageError("--issuer and --trusted-root belong to --identity")
        return {}, {}
    if not issuer:
        raise click.UsageError("--identity needs the --issuer that vouches for it")
    instance = "public"
    data = public_root() if trusted_root is None else read_file(trusted_root, LIMIT)
    if trusted_root is not None:
        import hashlib

        instance = f"private-{hashlib.sha256(data).hexdigest()[:16]}"
    found: dict[TrustRole, list[Identity]] = {}
    for role, name in _pairs(values):
        one = Identity(identity=name, issuer=issuer, instance=instance)
        try:
            one.check()
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        found.setdefault(role, []).append(one)
    return found, {instance: data}


def _authorities(values: Sequence[str]) -> "list[Authority]":
    from securetrain.core.files import read_file
    from securetrain.identity import (
        CERTIFICATE_LIMIT,
        Chain,
        Role,
        SpiffeId,
        load_certificate,
        trust_domain_of,
    )
    from securetrain.identity.trust import Authority, TrustRole

    found = []
    for role, value in _pairs(values):
        name, with_job, job = value.partition(",job=")
        certificate = load_certificate(read_file(Path(name), 2 * CERTIFICATE_LIMIT), name)
        domain = trust_domain_of(certificate)
        if with_job:
            SpiffeId(domain, job, Role.COORDINATOR)  # refuses bad names, and none
        found.append(
            Authority(
                role=role,
                certificate=Chain.of([certificate]).certificates[0],
                trust_domain=domain,
                job=job,
                # A node's tier is said by coordinators; everything else is signed by members.
                parties=[Role.COORDINATOR if role is TrustRole.NODE else Role.MEMBER],
            )
        )
    return found


def _key_id(folder: Path, beginning: str) -> str:
    """The one key of the newest version whose id begins so."""
    from securetrain.identity import TrustFolder

    newest = TrustFolder(folder).newest()
    found = [k for k in (newest.keys if newest else ()) if k.startswith(beginning.lower())]
    if len(found) != 1 or len(beginning) < 6:
        raise click.UsageError(
            f"{len(found)} keys begin with {beginning!r}; six digits or more must name one"
        )
    return found[0]
