# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options that say what changes in a trust root: roles, and who may sign for each."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from securetrain.cli.command import Option
from securetrain.cli.options import DAYS, KEY, Keys

if TYPE_CHECKING:
    from securetrain.identity import Change, Identity
    from securetrain.identity.trust import Authority, TrustRole


@dataclass(frozen=True, slots=True, kw_only=True)
class RootKeys(Keys):
    """The root keys that sign a version."""

    keys: Annotated[tuple[str, ...], KEY.told(required=True)]
    """A root key that signs; may be repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """Names that a Sigstore instance vouches for, in place of keys."""

    identity: Annotated[tuple[str, ...], Option("--identity", metavar="ROLE=NAME")]
    """Let this name of a Sigstore certificate sign for a role; * stands for one part of it."""
    issuer: Annotated[str, Option("--issuer")] = ""
    """--identity: the OIDC issuer, its whole URL."""
    trusted_root: Annotated[Path | None, Option("--trusted-root")]
    """--identity: trusted_root.json of a private Sigstore instance. Default: the public one, as the
    installed package carries it.
    """

    def read(self) -> "tuple[dict[TrustRole, list[Identity]], dict[str, bytes]]":
        """The identities of roles, and the trusted root of the instance that they name."""
        from securetrain.core.files import read_file
        from securetrain.identity import Identity, public_root
        from securetrain.identity.trust import LIMIT

        if not self.identity:
            if self.issuer or self.trusted_root is not None:
                raise click.UsageError("--issuer and --trusted-root belong to --identity")
            return {}, {}
        if not self.issuer:
            raise click.UsageError("--identity needs the --issuer that vouches for it")
        instance, data = "public", public_root()
        if self.trusted_root is not None:
            data = read_file(self.trusted_root, LIMIT)
            instance = f"private-{hashlib.sha256(data).hexdigest()[:16]}"
        found: dict[TrustRole, list[Identity]] = defaultdict(list)
        for role, name in pairs(self.identity):
            one = Identity(identity=name, issuer=self.issuer, instance=instance)
            try:
                one.check()
            except ValueError as error:
                raise click.UsageError(str(error)) from error
            found[role].append(one)
        return found, {instance: data}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The changes of a new version."""

    add: Annotated[tuple[str, ...], Option("--add", metavar="ROLE=KEY")]
    """Give a role a key; may be repeated."""
    threshold: Annotated[tuple[str, ...], Option("--threshold", metavar="ROLE=N")]
    """How many keys of a role must sign."""
    days: Annotated[int, DAYS] = 365
    """Its lifetime."""
    log_origin: Annotated[str | None, Option("--log-origin")]
    """The origin line of the one log that counts."""
    authority: Annotated[
        tuple[str, ...], Option("--authority", metavar="ROLE=CERTIFICATE[,job=JOB]")
    ]
    """Let members of a cluster CA (PEM) sign for a role with their own keys; with a job, those of
    that job alone.
    """
    apart: Annotated[bool, Option("--apart")] = False
    """The keys of the role node, and the --authority that is added, lie on no machine that trains:
    a node's tier counts by their coordinators' word, without its evidence.
    """
    identities: Identities
    signatures: Annotated[tuple[str, ...], Option("--signatures", metavar="ROLE=classical|both")]
    """Ask for both signatures of a pair of keys."""

    def change(self, keys: Keys, created: datetime, **more: Any) -> "Change":
        """As the library calls it."""
        from securetrain.identity import Change

        identities, instances = self.identities.read()
        return Change(
            created=created,
            expires=created + timedelta(days=self.days),
            add={role: keys.public(names) for role, names in gathered(pairs(self.add))},
            thresholds=dict(map(_threshold, pairs(self.threshold))),
            log_origin=self.log_origin,
            add_authorities=[_authority(role, value) for role, value in pairs(self.authority)],
            apart=self.apart,
            add_identities=identities,
            sigstore=instances,
            signatures=dict(map(_signatures, pairs(self.signatures))),
            **more,
        )


def pairs(values: Sequence[str]) -> "list[tuple[TrustRole, str]]":
    """``ROLE=VALUE``, read."""
    from securetrain.identity.trust import TrustRole

    found = []
    for value in values:
        role, separator, rest = value.partition("=")
        if not separator or not rest or role not in set(TrustRole):
            raise click.UsageError(f"{value!r} is not ROLE=VALUE; roles: {', '.join(TrustRole)}")
        found.append((TrustRole(role), rest))
    return found


def gathered(values: "Iterable[tuple[TrustRole, str]]") -> "Iterable[tuple[TrustRole, list[str]]]":
    """The values of each role."""
    found: dict[TrustRole, list[str]] = defaultdict(list)
    for role, value in values:
        found[role].append(value)
    return found.items()


def key_id_of(folder: Path, beginning: str) -> str:
    """The one key of the newest version whose id begins so."""
    from securetrain.identity import TrustFolder

    newest = TrustFolder(folder).newest()
    found = [k for k in (newest.keys if newest else ()) if k.startswith(beginning.lower())]
    if len(found) != 1 or len(beginning) < 6:
        raise click.UsageError(
            f"{len(found)} keys begin with {beginning!r}; six digits or more must name one"
        )
    return found[0]


def _threshold(pair: "tuple[TrustRole, str]") -> "tuple[TrustRole, int]":
    role, number = pair
    if not (number.isascii() and number.isdigit()):
        raise click.UsageError(f"{number!r} is not a number of keys")
    return role, int(number)


def _signatures(pair: "tuple[TrustRole, str]") -> "tuple[TrustRole, Any]":
    from securetrain.identity.trust import Signatures

    role, word = pair
    if word not in set(Signatures):
        raise click.UsageError(f"{word!r} is neither classical nor both")
    return role, Signatures(word)


def _authority(role: "TrustRole", value: str) -> "Authority":
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

    name, with_job, job = value.partition(",job=")
    certificate = load_certificate(read_file(Path(name), 2 * CERTIFICATE_LIMIT), name)
    domain = trust_domain_of(certificate)
    if with_job:
        SpiffeId(domain, job, Role.COORDINATOR)  # refuses bad names, and none
    return Authority(
        role=role,
        certificate=Chain.of([certificate]).certificates[0],
        trust_domain=domain,
        job=job,
        # A node's tier is said by coordinators; everything else is signed by members.
        parties=[Role.COORDINATOR if role is TrustRole.NODE else Role.MEMBER],
    )
