# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options of verbs about artifacts: models, datasets, and steps that are done again."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option
from securetrain.cli.options import BUNDLE, KEY, OUT, PER_NODE, TRUST
from securetrain.cli.passphrase import asker

if TYPE_CHECKING:
    from securetrain.artifacts import dataset_predicate as data
    from securetrain.artifacts.dataset import sign
    from securetrain.artifacts.model import oms
    from securetrain.artifacts.model import signers as model_signers
    from securetrain.artifacts.statement.statements import Opened
    from securetrain.chain import Signing, records
    from securetrain.identity.keys import Signer
    from securetrain.train.replaying import Draw


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOptions:
    """The files of a model that count."""

    ignore_paths: Annotated[tuple[Path, ...], Option("--ignore-paths")]
    """Of a model: leave out this path and all below it; a relative one is seen from here, or from
    the model's directory. Files that were signed are verified all the same.
    """
    ignore_git_paths: Annotated[bool, Option("--ignore-git-paths/--no-ignore-git-paths")] = True
    """Of a model: leave out .git, .gitignore, .gitattributes and .github at its top, as the format
    has it. Default: they are left out.
    """
    allow_symlinks: Annotated[bool, Option("--allow-symlinks")]
    """Of a model: follow symbolic links to files, as in a cache of Hugging Face."""

    @property
    def given(self) -> bool:
        """Tell whether any was given."""
        return bool(self.ignore_paths) or self.allow_symlinks or not self.ignore_git_paths

    def scope(self, *, ignore_unsigned: bool = False) -> "oms.Scope":
        """As the library calls it."""
        from securetrain.artifacts.model import oms

        return oms.Scope(
            ignore_paths=self.ignore_paths,
            ignore_git=self.ignore_git_paths,
            allow_symlinks=self.allow_symlinks,
            ignore_unsigned=ignore_unsigned,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormOptions:
    """The form in which a signer writes a model down."""

    certificate: Annotated[Path | None, Option("--certificate")]
    """--oms: the key's certificate (PEM), which then travels in the bundle."""
    chain: Annotated[tuple[Path, ...], Option("--chain")]
    """--oms: the certificates between that one and the root (PEM)."""
    bundle: Annotated[Path | None, BUNDLE]
    """--oms: where the bundle is written. Default: model.sig in the model, or FILE.sig beside a
    model that is one file.
    """
    hash_name: Annotated[Literal["sha256", "blake2b", "blake3"], Option("--hash")] = "sha256"
    """--oms: the hash of the files. The command of the reference implementation verifies sha256
    only.
    """
    shard_size: Annotated[
        int | None, Option("--shard-size", type=click.IntRange(min=1), metavar="BYTES")
    ]
    """--oms: sign pieces of this size (1000000000 is usual), which are hashed beside each other.
    The reference implementation verifies whole files only.
    """
    spec_name: Annotated[bool, Option("--spec-name")]
    """--oms: call a model that is one file by its name, as the specification says, and not '.', as
    the reference implementation writes it and needs it.
    """

    @property
    def given(self) -> bool:
        """Tell whether any was given."""
        files = (self.certificate, self.chain, self.bundle, self.shard_size, self.spec_name)
        return any(files) or self.hash_name != "sha256"

    def form(self) -> "oms.Form":
        """As the library calls it."""
        from securetrain.artifacts.model import oms

        return oms.Form(
            algorithm=self.hash_name, shard_size=self.shard_size, spec_name=self.spec_name
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleOptions:
    """A model's bundle, and what is trusted to have signed it."""

    scope: ScopeOptions
    bundle: Annotated[Path | None, BUNDLE]
    """An OpenSSF Model Signing bundle: PATH is a model that was signed with it."""
    public_key: Annotated[Path | None, Option("--public-key")]
    """With --bundle: the public key (PEM) that must have signed."""
    roots: Annotated[Path | None, Option("--ca")]
    """With --bundle: certificates (PEM) of the authorities that are trusted."""
    identity: Annotated[str | None, Option("--identity")]
    """With --bundle: the identity that signed keyless, in full (e-mail or URI)."""
    issuer: Annotated[str | None, Option("--issuer")]
    """With --identity: the OIDC issuer that vouched, in full."""
    trusted_root: Annotated[Path | None, Option("--trusted-root")]
    """With --identity: trusted_root.json of a Sigstore instance. Default: the public one."""
    ignore_unsigned: Annotated[bool, Option("--ignore-unsigned")]
    """With --bundle: accept files that were not signed. They are named, and nobody vouches for
    them.
    """

    @property
    def given(self) -> bool:
        """Tell whether any was given."""
        signers = (self.public_key, self.roots, self.identity, self.issuer, self.trusted_root)
        return any((self.bundle, *signers, self.ignore_unsigned, self.scope.given))

    def signing(self) -> "Signing":
        """As the library calls it; nothing, where none was given."""
        from securetrain.chain import Signing

        if not self.given:
            return Signing()
        scope = self.scope.scope(ignore_unsigned=self.ignore_unsigned)
        return Signing(bundle=self.bundle, roots=self.trusted(), scope=scope)

    def trusted(self) -> "model_signers.ModelRoots":
        """As the library calls it."""
        from securetrain.artifacts.model import signers as model_signers

        return model_signers.ModelRoots(
            public_key=self.public_key,
            ca=self.roots,
            identity=self.identity,
            issuer=self.issuer,
            trusted_root=self.trusted_root,
        )


REPORT_LIMIT: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """All that is signed about a dataset besides its bytes."""

    name: Annotated[str, Option("--name")] = ""
    """Name of what is signed. Default: the directory's name."""
    data_format: Annotated[
        Literal["raw", "jsonl", "parquet", "webdataset", "mds"] | None, Option("--data-format")
    ]
    """--dataset: how samples lie in the files. Default: by the files' names."""
    samples: Annotated[bool, Option("--samples")]
    """--dataset: sign a table of all samples as well."""
    append: Annotated[bool, Option("--append")]
    """--dataset: sign a new version, with the files and bytes that were added."""
    trust: Annotated[Path | None, TRUST.told(env=None)]
    """--append: the trust root that verifies the version before."""
    licenses: Annotated[tuple[str, ...], Option("--license")]
    """--dataset: an SPDX expression."""
    sources: Annotated[tuple[str, ...], Option("--source")]
    """--dataset: its origin."""
    scan_reports: Annotated[
        tuple[str, ...], Option("--scan-report", metavar="TOOL:VERSION:clean|findings:FILE")
    ]
    """--dataset: a scanner's report on the data; its digest and verdict are signed."""
    croissant: Annotated[Path | None, Option("--croissant")]
    """--dataset: its Croissant description, whose digest is signed."""
    metadata: Annotated[tuple[str, ...], Option("--metadata", metavar="KEY=VALUE")]
    """--dataset: anything else to sign; token_bytes=2 or 4 says how wide the numbers of a token
    file are.
    """
    remove: Annotated[tuple[str, ...], Option("--remove", metavar="FILE:OFFSET:LENGTH[:REASON]")]
    """--append: bytes that must not be read any more."""

    def about(self, path: Path, previous: "Opened | None") -> "sign.About":
        """As the library calls it; a new version bears the name of the one before."""
        from securetrain.artifacts import dataset_predicate as data
        from securetrain.artifacts.dataset import sign
        from securetrain.artifacts.statement.statements import DatasetPredicate
        from securetrain.core.files import read_file

        said = previous.predicate if previous is not None else None
        own = self.name or path.resolve().name
        digest = ""
        if self.croissant is not None:
            digest = hashlib.sha256(read_file(self.croissant, REPORT_LIMIT)).hexdigest()
        return sign.About(
            name=said.name if isinstance(said, DatasetPredicate) else own,
            format=None if self.data_format is None else data.DataFormat(self.data_format),
            licenses=self.licenses,
            sources=self.sources,
            scans=[_scan(text) for text in self.scan_reports],
            croissant=digest,
            metadata=dict(_pair(text) for text in self.metadata),
            with_samples=self.samples,
            removed=[_removed(text) for text in self.remove],
        )

    def previous(self, path: Path) -> "Opened | None":
        """The version before, verified; None of the first."""
        from securetrain.artifacts import Kind, read_statement
        from securetrain.artifacts.statement.statements import open_statement
        from securetrain.identity.trust import TrustRoot

        if not self.append:
            return None
        if self.trust is None:
            what = "a new version rests on the one before, which must be verified"
            _refuse(what, str(path), "give --trust FILE")
        root = TrustRoot.load(self.trust, now())
        return open_statement(read_statement(path, Kind.DATASET), Kind.DATASET, root, str(path))


def _refuse(what: str, where: str, fix: str) -> NoReturn:
    from securetrain.core.errors import UsageError

    raise UsageError("ST-USAG-001", what, where, fix)


def _scan(text: str) -> "data.Scan":
    from securetrain.artifacts import dataset_predicate as data
    from securetrain.core.files import read_file

    parts = text.split(":", 3)
    if len(parts) != 4 or parts[2] not in set(data.Verdict):
        fix = "write it as TOOL:VERSION:clean:FILE or TOOL:VERSION:findings:FILE"
        _refuse(f"{text!r} is no scan report", "--scan-report", fix)
    tool, version, verdict, file = parts
    digest = data.digest_of_report(read_file(Path(file), REPORT_LIMIT))
    return data.Scan(tool=tool, version=version, verdict=data.Verdict(verdict), result=digest)


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not (key and found):
        _refuse(f"{text!r} is no pair", "--metadata", "write it as KEY=VALUE")
    return key, value


def _removed(text: str) -> "data.Removed":
    from securetrain.artifacts import dataset_predicate as data

    try:
        file, offset, length, *reason = text.split(":", 3)
        return data.Removed(
            file=file, offset=int(offset), length=int(length), reason=reason[0] if reason else ""
        )
    except ValueError as error:
        _refuse(f"{text!r}: {error}", "--remove", "write it as FILE:OFFSET:LENGTH[:REASON]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The steps that are done again."""

    first: Annotated[int | None, Option("--from", type=click.IntRange(0))]
    """Begin with this step's checkpoint."""
    last: Annotated[int | None, Option("--to", type=click.IntRange(1))]
    """End with this step's checkpoint."""
    confidence: Annotated[float | None, Option("--sample", type=click.FloatRange(0, 1))]
    """Draw so many segments that a forged one is among them with this confidence."""
    forged: Annotated[float | None, Option("--forged", type=click.FloatRange(0, 1, min_open=True))]
    """With --sample: the part of the segments that is forged, at least."""
    log_checkpoint: Annotated[Path | None, Option("--log-checkpoint")]
    """With --sample: the log's signed checkpoint, cosigned after the run, that draws them."""

    def draw(self) -> "Draw | None":
        """The draw of a sample; None without one."""
        from securetrain.train.replaying import Draw

        given = (self.confidence, self.forged, self.log_checkpoint)
        if all(one is None for one in given):
            return None
        if self.confidence is None or self.forged is None or self.log_checkpoint is None:
            raise click.UsageError("--sample, --forged and --log-checkpoint belong together")
        return Draw(
            confidence=self.confidence, forged=self.forged, log_checkpoint=self.log_checkpoint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """The file and the signer of the result."""

    out: Annotated[Path | None, OUT]
    """Write the result, signed, to this file, which must not exist."""
    key: Annotated[str | None, KEY]
    """With --out: the key that signs (role ci)."""

    def signer(self) -> "Signer | None":
        """The key, opened, before anything is done again."""
        from securetrain.identity import open_signer

        if (self.out is None) is not (self.key is None):
            raise click.UsageError(
                "--out and --key belong together: a result counts by its signature"
            )
        if self.out is not None and self.out.exists():
            raise click.UsageError(f"{self.out} is there already")
        return None if self.key is None else open_signer(self.key, asker(None))

    def write(self, said: "records.Replay", key: "Signer | None") -> None:
        """Write the result."""
        from securetrain.chain import records
        from securetrain.core.files import write_atomic

        if self.out is not None and key is not None:
            write_atomic(self.out, records.sign_replay(said, key), replace=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """The ranks that do steps again, and how close they must come."""

    processes: Annotated[int | None, PER_NODE.told(type=click.IntRange(1, 1024))]
    """Ranks, on this machine. Default: as many as the run had."""
    compare: Annotated[Literal["auto", "exact", "bound"], Option("--compare")] = "auto"
    """Bit by bit, within the bound, or bit by bit where mesh and environment allow it."""
