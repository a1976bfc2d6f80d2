# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one table of the options that verbs share, and the groups in which they reach a verb.

An option stands here once, with its flag, its help and its variable; `Option.told` is the same one
in the words of one verb. What one verb alone has stands in that verb.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias
from urllib.parse import quote

import click

from securetrain.cli import passphrase
from securetrain.cli.clock import now
from securetrain.cli.command import Option

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation
    from securetrain.attest.fleet import Roots
    from securetrain.chain import Pack, Verdict
    from securetrain.identity import Ask, ClusterCA, Unlock
    from securetrain.identity.keys import PublicKey, Signer

KEY_FORMS: Final = "a file, a pkcs11: URI, or one of awskms:, gcpkms: and azurekms:"
"""Every way in which a private key is named (`identity.open_signer`)."""
AT_LEAST_0: Final = click.IntRange(min=0)

# --- the table -----------------------------------------------------------------------------------

ROOT: Final = "The trust root, a file or a folder of 'trust update'."
TRUST: Final = Option("--trust", ROOT, env="SECURETRAIN_TRUST")
RUN_TRUST: Final = TRUST.told("The trust root of the run: its trust.json.")
TRUST_DATA: Final = Option(
    "--trust-data",
    "The trust root of whoever made its dataset, where --trust does not name them.",
)
POLICY: Final = Option("--policy", "A policy by name or file.")
PACK_POLICY: Final = POLICY.told("A policy that the pack must meet. Default: none.")
AT: Final = Option("--at", "Judge at the time at which the log's witnesses had seen it.")
WALK_IN: Final = Option(
    "--walk-in", "Where else its parents and datasets are, besides the run directory around PATH."
)
EVIDENCE: Final = Option(
    "--evidence", "Further run directories with evidence of its nodes: a coordinator's, above all."
)
CATALOGUE_ROOT: Final = Option(
    "--catalogue-root",
    "The catalogue's first root, from another place than the catalogue.",
    env="SECURETRAIN_CATALOGUE_ROOT",
)
BUNDLE: Final = Option("--bundle")
KEY: Final = Option("--key", f"Private key: {KEY_FORMS}.")
OPERATOR_KEY: Final = KEY.told(f"The operator's key: {KEY_FORMS}.")
OPERATOR_FILE: Final = KEY.told("The operator's key.")
PASSPHRASE: Final = Option(
    "--passphrase-file",
    "File with the keys' passphrase (or a token's PIN); without it, it is asked for.",
)
CA_PASSPHRASE: Final = PASSPHRASE.told(
    "File with the passphrase of the cluster CA's key; without it, it is asked for."
)
ENCRYPT: Final = Option("--encrypt", "Encrypt the key with a passphrase.")
DAYS: Final = Option("--days", "Days that it lasts.", click.IntRange(1, 3650))
OUT: Final = Option("--out")
CA: Final = Option("--ca", "The cluster CA's folder.")
JOB: Final = Option("--job", "The job's id.")
ADVERTISE: Final = Option("--advertise")
VALUES: Final = Option("--reference-values")
SIGNED_BY: Final = Option(
    "--signed-by",
    "A key that may have signed what is there; repeatable. Default: --key.",
    metavar="KEY",
)
SIGNERS: Final = SIGNED_BY.told("A key that may have signed it; repeatable.", required=True)
GROUP: Final = Option("--group")
REPLACE: Final = Option("--replace")
ATTESTER: Final = Option(
    "--attester", "Sources of evidence: 'auto' (what this machine has) or a settings file."
)
STATE: Final = Option(
    "--state",
    "Private folder of the keys. Default: ~/.local/state/securetrain, for root"
    " /var/lib/securetrain.",
)
PER_NODE: Final = Option("--nproc-per-node")

Trust: TypeAlias = Annotated[Path, TRUST]
TrustData: TypeAlias = Annotated[Path | None, TRUST_DATA]
PolicyName: TypeAlias = Annotated[str | None, POLICY]
SignedBy: TypeAlias = Annotated[tuple[str, ...], SIGNED_BY]
Signers: TypeAlias = Annotated[tuple[str, ...], SIGNERS]


# --- groups: keys --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """The passphrase of keys."""

    passphrase_file: Annotated[Path | None, PASSPHRASE]

    @property
    def ask(self) -> "Ask":
        """Gives the passphrase, or a PIN, when one is needed."""
        return passphrase.asker(self.passphrase_file)

    def new(self, *, encrypt: bool) -> bytes | None:
        """The passphrase of a new key, if it gets one."""
        given = self.passphrase_file
        return passphrase.new_passphrase(given) if encrypt or given else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaSecret(Secret):
    """The passphrase of the cluster CA's key."""

    passphrase_file: Annotated[Path | None, CA_PASSPHRASE]

    def unlocker(self, cluster: "ClusterCA") -> "Unlock":
        """Gives the CA's key, and asks only if it is encrypted."""
        return passphrase.unlocker(cluster, self.passphrase_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Secret):
    """The private key that signs."""

    key: Annotated[str, KEY]

    def signer(self) -> "Signer":
        """The key, opened."""
        from securetrain.identity import open_signer

        return open_signer(self.key, self.ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys(Secret):
    """The private keys that sign."""

    keys: Annotated[tuple[str, ...], KEY.told("", required=True)]

    def signers(self, names: Sequence[str] = ()) -> "list[Signer]":
        """The keys, opened; or those that are named."""
        from securetrain.identity import open_signer

        return [open_signer(name, self.ask) for name in names or self.keys]

    def public(self, names: Sequence[str]) -> "list[PublicKey]":
        """The public halves of keys that are named."""
        from securetrain.identity import read_public

        return [read_public(name, self.ask) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOrIdentity(Secret):
    """The signer: a key, or with ``--keyless`` an identity."""

    key: Annotated[str | None, KEY]
    keyless: Annotated[bool, Option("--keyless")]
    """Sign by identity instead of with a key: a Sigstore instance vouches for it."""
    identity_token: Annotated[Path | None, Option("--identity-token")]
    """--keyless: the file of the OIDC token. Default: what the CI system offers."""
    trust_config: Annotated[Path | None, Option("--trust-config")]
    """--keyless: the trust configuration of a private instance. Default: the public one."""

    def check(self) -> None:
        """Refuse both, neither, and what belongs to the other."""
        if self.keyless == (self.key is not None):
            raise click.UsageError("give either --key or --keyless")
        if (self.identity_token or self.trust_config) and not self.keyless:
            raise click.UsageError("--identity-token and --trust-config belong to --keyless")

    @property
    def name(self) -> str:
        """As `identity.open_signer` takes it."""
        given = {"token": self.identity_token, "config": self.trust_config}
        query = "&".join(f"{name}={quote(str(path))}" for name, path in given.items() if path)
        return self.key or (f"keyless:?{query}" if query else "keyless:")

    def signer(self) -> "Signer":
        """The signer, opened."""
        from securetrain.identity import open_signer

        return open_signer(self.name, self.ask)


# --- groups: artifacts ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectOptions:
    """The artifact that is meant."""

    expect_digest: Annotated[str | None, Option("--expect-digest")]
    """The digest that it must have (verify prints it)."""
    expect_run: Annotated[str | None, Option("--expect-run")]
    """The run that must have saved it."""
    expect_name: Annotated[str | None, Option("--expect-name")]
    """The name that it must bear."""
    expect_step: Annotated[int | None, Option("--expect-step", type=AT_LEAST_0)]
    """The step that it must be of."""
    expect_dataset: Annotated[str | None, Option("--expect-dataset")]
    """The dataset that it must be trained on: its digest, or the name that its own signer gave."""
    expect_policy: Annotated[str | None, Option("--expect-policy")]
    """The policy that it must be made under: its digest, or the name of a shipped one."""
    expect_min_step: Annotated[int | None, Option("--expect-min-step", type=AT_LEAST_0)]
    """The lowest step that will do."""
    expect_min_version: Annotated[int | None, Option("--expect-min-version", type=AT_LEAST_0)]
    """The lowest version of a dataset, or number of a checkpoint in its run."""
    expect_signer: Annotated[str | None, Option("--expect-signer")]
    """The id of a key, or the identity, that must have signed it."""

    @property
    def expectation(self) -> "Expectation | None":
        """As the library calls it; None without any."""
        from securetrain.artifacts import Expectation

        named = {one.name.removeprefix("expect_"): getattr(self, one.name) for one in fields(self)}
        given = any(value is not None for value in named.values())
        return Expectation(**named) if given else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTrust:
    """The signatures and the policy that a pack is judged by."""

    trust: Trust
    policy: Annotated[str | None, PACK_POLICY]
    trust_data: TrustData
    at: Annotated[Literal["now", "witness"], AT] = "now"

    def verify(self, pack: "Pack") -> "Verdict":
        """Verify a pack that is open."""
        from securetrain.chain import Options, verify

        options = Options(trust_data=self.trust_data, at=self.at)
        return verify(pack, trust=self.trust, policy=self.policy, now=now(), options=options)


# --- groups: fleets ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmAuthorities:
    """The authorities of makers of TPMs."""

    roots: Annotated[tuple[Path, ...], Option("--root")]
    """CA of a maker of TPMs (PEM)."""
    virtual: Annotated[tuple[Path, ...], Option("--virtual-root")]
    """CA of virtual TPMs: a cloud's."""
    test: Annotated[tuple[Path, ...], Option("--test-root")]
    """CA of software TPMs: proves nothing."""
    between: Annotated[tuple[Path, ...], Option("--intermediate")]
    """CA between a root and the TPMs."""

    def read(self) -> "Roots":
        """Their certificates."""
        from securetrain.attest.fleet import Roots, read_pem

        return Roots(
            hardware=tuple(map(read_pem, self.roots)),
            virtual=tuple(map(read_pem, self.virtual)),
            test=tuple(map(read_pem, self.test)),
            intermediates=tuple(map(read_pem, self.between)),
        )
