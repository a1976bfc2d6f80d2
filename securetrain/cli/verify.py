# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain verify PATH``: prove that a checkpoint or dataset is what was signed.

Never imports torch: verifying needs neither a GPU nor trust in what would load the artifact.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.model_options import ScopeOptions, scope_options
from securetrain.cli.options import (
    CATALOGUE_ROOT_VARIABLE,
    CATALOGUE_VARIABLE,
    KEY_FORMS,
    TRUST_VARIABLE,
    Place,
    expect_options,
    file_option,
    format_options,
)
from securetrain.cli.passphrase import asker
from securetrain.cli.progress import progress_bar
from securetrain.report import emit

if TYPE_CHECKING:
    from securetrain.artifacts import Expectation
    from securetrain.chain import PackResult
    from securetrain.policy.load import LoadedPolicy

EPILOG: Final = """\
\b
Examples:
  securetrain verify runs/r1/checkpoints/step-00000100 --trust runs/r1/trust.json
  securetrain verify runs/r1/dataset --trust runs/r1/trust.json --policy baseline
  securetrain verify ./ckpt --trust trust.json --expect-name prod-model --expect-min-step 4000
  securetrain verify prod-model@models --catalogue-root root.json --trust trust.json
  securetrain verify ./model --bundle ./model/model.sig --public-key maker.pem
  securetrain verify ./snapshot --bundle model.sig --public-key maker.pem --allow-symlinks
  securetrain verify ./ckpt --trust trust.json --policy release.yaml --vsa ckpt.vsa.json
  securetrain verify s3://bucket/r1/step-00000100 --trust trust.json
  securetrain verify runs/r1/checkpoints/step-00000100 --trust runs/r1/trust.json --walk
  SECURETRAIN_TRUST=runs/r1/trust.json securetrain verify runs/r1/dataset --json
  securetrain verify runs/r1/disputes/SHA256.json --trust runs/r1/trust.json

\b
What is checked:
  the signature, against the keys that the trust root names for this kind of artifact;
  every byte of every file, and that nothing is missing, extra or a link;
  with --expect-...: that it is the one that you mean; without, what was not asked is said;
  with --policy: age, lineage, the gradient verdict and the nodes that took part: their tiers by
  results that the coordinator signed (the run's evidence folder), never by the statement's word;
  with a policy's chain.require: those links, of the checkpoint or of all its ancestors;
  of a dispute's transcript: every rank's signature, and who contradicts whom, or itself.

\b
Exit codes: 0 all of it held; 10 not signed; 11 bad signature; 12 not what the trust root or policy
allows; 13 content changed; 14 files missing or extra; 15 too old; 16 revoked or set aside;
17 lineage broken; 18 not shown to be logged; 19 unsafe content; 20 unreadable. With several
problems, the most telling one decides: the signature, then changed content, then missing files,
then the policy. Nothing is fetched from a network except what a URL names.

\b
s3:// needs the extra [s3]; other URLs need fsspec and the package of their store, such as gcsfs.
"""


@click.command(name="verify", epilog=EPILOG)
@click.argument("path", type=Place())
@file_option(
    "--trust",
    "trust_file",
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root, a file or a folder of 'trust update'. There is no default.",
)
@file_option(
    "--log-proof",
    help="Proof that the statement was logged (securetrain log prove). It must hold; keys that were"
    " revoked later then still count. Default, when the policy asks for a log: the proof beside"
    " PATH.",
)
@file_option(
    "--bundle", help="An OpenSSF Model Signing bundle: PATH is a model that was signed with it."
)
@file_option("--public-key", help="With --bundle: the public key (PEM) that must have signed.")
@file_option(
    "--ca", "roots", help="With --bundle: certificates (PEM) of the authorities that are trusted."
)
@click.option(
    "--identity",
    help="With --bundle: the identity that signed keyless, in full (e-mail or URI).",
)
@click.option("--issuer", help="With --identity: the OIDC issuer that vouched, in full.")
@file_option(
    "--trusted-root",
    help="With --identity: trusted_root.json of a Sigstore instance. Default: the public one.",
)
@scope_options("With --bundle")
@click.option(
    "--ignore-unsigned",
    is_flag=True,
    help="With --bundle: accept files that were not signed. They are named, and nobody vouches for"
    " them.",
)
@click.option("--policy", "policy_name", help="A policy by name or file. Default: none.")
@expect_options
@click.option(
    "--catalogue",
    "store",
    envvar=CATALOGUE_VARIABLE,
    show_envvar=True,
    help="What NAME@catalogue asks: the folder, URL or OCI layout of a catalogue.",
)
@file_option(
    "--catalogue-root",
    envvar=CATALOGUE_ROOT_VARIABLE,
    show_envvar=True,
    help="A catalogue's first root: with it, PATH may be NAME@FOLDER or NAME@catalogue.",
)
@format_options("sarif", "junit", text="What to print on standard output.")
@file_option(
    "--vsa", help="Also write a verification summary (SLSA VSA) to this file, which must not exist."
)
@click.option("--vsa-key", help=f"Key that signs the summary: {KEY_FORMS}. Default: not signed.")
@click.option(
    "--walk",
    "walking",
    is_flag=True,
    help="Follow the chain to parents, datasets, nodes and policy, and print it as a tree.",
)
@file_option(
    "--walk-in",
    "places",
    multiple=True,
    help="Where its parents and datasets are. Default: the two folders above PATH.",
)
@file_option(
    "--evidence",
    "evidence",
    multiple=True,
    help="Further run directories with evidence of its nodes: a coordinator's, above all. The run"
    " directory around PATH is always asked.",
)
@click.option(
    "--appraise",
    "again",
    is_flag=True,
    help="Also judge the attestation evidence behind the tiers again (the link nodes is required).",
)
@file_option(
    "--trust-data",
    help="The trust root of whoever made its dataset, where --trust does not name them.",
)
@file_option(
    "--waiver",
    "waivers",
    multiple=True,
    help="Operators' waiver for this checkpoint (securetrain waive). It must count.",
)
@file_option(
    "--floors",
    "floors_file",
    help="File that remembers the newest checkpoint of every run: older ones are refused.",
)
@click.option(
    "--at",
    type=click.Choice(["now", "witness"]),
    default="now",
    help="Of a pack: judge at the time at which the log's witnesses had seen it, for one that is"
    " older than certificates live.",
)
@file_option(
    "--replayed",
    multiple=True,
    help="Of a pack: a signed result of steps that were done again (securetrain replay --out).",
)
@file_option(
    "--trust-replay",
    help="The trust root of whoever did them again (role ci), where --trust does not name them.",
)
@click.option("--scan", is_flag=True, help="Also scan every file for pickles (securetrain scan).")
@click.option(
    "--offline", is_flag=True, help="Fetch nothing: refuse a PATH that is a URL of a store."
)
def command(
    *,
    path: Path | str,
    trust_file: Path | None,
    log_proof: Path | None,
    bundle: Path | None,
    public_key: Path | None,
    roots: Path | None,
    identity: str | None,
    issuer: str | None,
    trusted_root: Path | None,
    scope: ScopeOptions,
    ignore_unsigned: bool,
    policy_name: str | None,
    expect: "Expectation | None",
    store: str | None,
    catalogue_root: Path | None,
    output: str,
    vsa: Path | None,
    vsa_key: str | None,
    walking: bool,
    places: tuple[Path, ...],
    evidence: tuple[Path, ...],
    again: bool,
    trust_data: Path | None,
    waivers: tuple[Path, ...],
    floors_file: Path | None,
    at: str,
    replayed: tuple[Path, ...],
    trust_replay: Path | None,
    scan: bool,
    offline: bool,
) -> int:
    """Prove that the checkpoint or dataset at PATH, a directory or a URL, is what was signed.

    PATH may also be a pack (securetrain pack), or the transcript of a disputed reduction
    (RUN/disputes/SHA256.json).
    """
    from securetrain.artifacts import (
        Wanted,
        check_words,
        examine,
        examine_model,
        has_saved,
        is_words,
        policy_used,
        summarize,
        verify_saved,
    )
    from securetrain.artifacts.model import ModelRoots
    from securetrain.chain import Evidence, is_pack, near
    from securetrain.cli.pack import verify_file
    from securetrain.core.errors import IdentityError
    from securetrain.identity import load_trust
    from securetrain.policy.load import load_policy
    from securetrain.report import verification

    path, expect = _by_name(path, store, catalogue_root, expect, offline=offline)
    model = any((bundle, public_key, roots, identity, issuer, trusted_root))
    model = model or scope.given or ignore_unsigned
    asked = {"--bundle": model, "--scan": scan, "--walk": walking and not places}
    _refuse_remote(path, {**asked, "--offline": offline})
    if model:
        _refuse_ignored(path)
        given = ModelRoots(
            public_key=public_key,
            ca=roots,
            identity=identity,
            issuer=issuer,
            trusted_root=trusted_root,
        )
        with progress_bar("verifying") as progress:
            result, scanned = examine_model(
                Path(path),
                bundle,
                given,
                datetime.now(UTC),
                scope=scope.scope(ignore_unsigned=ignore_unsigned),
                scan=scan,
                expect=expect,
                progress=progress,
            )
        return emit(verification.model(result, scanned), output)
    if trust_file is None:
        raise IdentityError(
            "ST-IDEN-007",
            "no trust root was given, so nothing says whose signature counts",
            str(path),
        )
    if isinstance(path, Path) and is_pack(path):
        _refuse_given(path, "a pack", "scan", *_OF_DIRECTORIES)
        if at != "now":
            _refuse_given(path, "a pack at its witnesses' time", "vsa", "vsa_key")
        packed = verify_file(
            path,
            trust_file=trust_file,
            trust_data=trust_data,
            policy_name=policy_name,
            expect=expect,
            again=again,
            at=at,
            replayed=replayed,
            trust_replay=trust_replay,
        )
        return _tell_pack(packed, trust_file, output, vsa, vsa_key)
    if isinstance(path, Path) and has_saved(path):
        _refuse_given(path, "what a script saved", "vsa", "vsa_key", "scan", "at", *_OF_DIRECTORIES)
        now = datetime.now(UTC)
        saved = verify_saved(
            path,
            trust=load_trust(trust_file, now),
            policy=None if policy_name is None else load_policy(policy_name).policy,
            now=now,
            expect=expect,
        )
        return emit(verification.saved(saved, trust_file), output)
    if at != "now" or replayed or trust_replay:
        raise click.UsageError(
            "--at witness, --replayed and --trust-replay are for packs (securetrain pack)"
        )
    now = datetime.now(UTC)
    trust_root = load_trust(trust_file, now)
    if again and policy_name is None:
        raise click.UsageError("--appraise asks what a policy asks of nodes: give --policy")
    policy = load_policy(policy_name) if policy_name is not None else None
    kept = Evidence(trust=trust_root, places=(*near(path), *evidence), now=now, again=again)
    requires = policy is not None and bool(kept.required(policy.policy))
    wanted = Wanted(
        log_proof=log_proof,
        waivers=waivers,
        floors=floors_file,
        expect=expect,
        scan=scan,
        walk=walking,
        places=places,
        data=load_trust(trust_data, now) if trust_data is not None else None,
        shows=kept.shows if policy is not None else None,
        links=partial(kept.problems, policy.policy) if policy is not None and requires else None,
    )
    if is_words(path):
        _refuse_expected(path, expect)
        assert isinstance(path, Path)
        return emit(verification.words(check_words(path, trust_root)), output)
    with progress_bar("verifying") as progress:
        found = examine(path, wanted, trust=trust_root, policy=policy, now=now, progress=progress)
    code = emit(verification.verified(found, trust_file), output)
    if vsa is not None:
        used = policy_used(found.policy)
        summed = partial(summarize, found.result, used, now, passed=code == 0)
        _write_summary(vsa, vsa_key, summed, of_something=code == 0 or bool(found.result.digest))
    return code


def _tell_pack(
    found: "tuple[PackResult, LoadedPolicy | None]",
    trust_file: Path,
    output: str,
    vsa: Path | None,
    vsa_key: str | None,
) -> int:
    from securetrain.artifacts import policy_used
    from securetrain.chain import summarize_pack
    from securetrain.report import packs

    result, policy = found
    code = emit(packs.verified(result, policy, trust_file), output)
    if vsa is not None:
        used = policy_used(policy)
        summed = partial(summarize_pack, result, used, result.at, passed=code == 0)
        _write_summary(vsa, vsa_key, summed, of_something=result.subject is not None)
    return code


def _write_summary(
    target: Path, key_name: str | None, summed: Callable[[], bytes], *, of_something: bool
) -> None:
    from securetrain.artifacts import write_summary
    from securetrain.identity import open_signer

    if not of_something:
        click.echo("no summary: no statement verifies, so there is no digest for it", err=True)
        return
    key = open_signer(key_name, asker(None)) if key_name is not None else None
    write_summary(target, summed(), key=key)
    click.echo(f"summary {target}", err=True)


def _by_name(
    path: Path | str,
    store: str | None,
    root: Path | None,
    expect: "Expectation | None",
    *,
    offline: bool,
) -> "tuple[Path | str, Expectation | None]":
    """Ask a catalogue when `path` is ``NAME@WHERE``, and there is a root to ask it by."""
    from securetrain.core.errors import UsageError

    name, at, where = str(path).partition("@")
    if not at or "/" in name or root is None:
        if at and "/" not in name and store is not None:
            raise UsageError(
                "ST-USAG-001",
                "a catalogue is asked by its first root only",
                str(path),
                "give --catalogue-root root.json",
            )
        return path, expect
    if where == "catalogue":
        if store is None:
            raise UsageError(
                "ST-USAG-001", "nothing says which", str(path), "give --catalogue FOLDER"
            )
        where = store
    from securetrain.artifacts import local_path
    from securetrain.cli.catalogue import open_catalogue

    place = local_path(where) or where
    _refuse_remote(place, {"--offline": offline})
    found = open_catalogue(place, root).resolve(name, expect)
    return found.path, found.expect


def _refuse_expected(path: Path | str, expect: "Expectation | None") -> None:
    """Refuse expectations of what has no name, run or version."""
    from securetrain.core.errors import UsageError

    if expect is not None:
        raise UsageError(
            "ST-USAG-001",
            "--expect-... does not apply to a dispute's transcript",
            str(path),
            "leave it out; the transcript's file is named after its digest",
        )


def _refuse_remote(path: Path | str, asked: Mapping[str, object]) -> None:
    """Refuse options that work only with directories of this machine."""
    from securetrain.core.errors import UsageError

    if isinstance(path, Path):
        return
    if flags := [flag for flag, given in asked.items() if given]:
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(flags)} is for directories of this machine only",
            path,
            "copy it here first, or leave it out; --walk-in DIR follows the chain from a store",
        )


def _refuse_ignored(path: Path | str) -> None:
    """Refuse options that a bundle cannot be held to: only our own format has what they check."""
    _refuse_given(
        path,
        "a Model Signing bundle",
        "trust_file",
        "policy_name",
        "vsa",
        "vsa_key",
        "trust_data",
        *_OF_DIRECTORIES,
    )


_OF_DIRECTORIES: Final = (
    "log_proof",
    "waivers",
    "floors_file",
    "walking",
    "places",
    "evidence",
)
"""Options about a run's directory, and what lies beside it."""


def _refuse_given(path: Path | str, what: str, *names: str) -> None:
    """Refuse options that were given and do not apply."""
    from click.core import ParameterSource

    from securetrain.core.errors import UsageError

    context = click.get_current_context()
    asked = {
        name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    flags = [one.opts[0] for one in context.command.params if one.name in asked]
    if flags:
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(flags)} does not apply to {what}",
            str(path),
            f"leave it out; see 'securetrain verify --help' for what applies to {what}",
        )
