# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain verify PATH``: prove that a checkpoint or dataset is what was signed.

Never imports torch: verifying needs neither a GPU nor trust in what would load the artifact.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from securetrain.cli.output import and_scan, format_options, show
from securetrain.cli.passphrase import asker
from securetrain.cli.place import Place
from securetrain.cli.progress import progress_bar
from securetrain.cli.scan import print_briefly
from securetrain.cli.verify_chain import follow, print_chain
from securetrain.cli.verify_known import known, remember
from securetrain.cli.verify_model import Roots, verify_bundle

if TYPE_CHECKING:
    from rich.console import Console

    from securetrain.artifacts.lineage.walk import Link
    from securetrain.artifacts.scan.findings import ScanResult
    from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetPredicate
    from securetrain.artifacts.tree.problems import Problem
    from securetrain.artifacts.verify import VerifyResult
    from securetrain.policy.load import LoadedPolicy

TRUST_VARIABLE: Final = "SECURETRAIN_TRUST"

EPILOG: Final = """\
\b
Examples:
  securetrain verify runs/r1/checkpoints/step-00000100 --trust runs/r1/trust.json
  securetrain verify runs/r1/dataset --trust runs/r1/trust.json --policy baseline
  securetrain verify ./model --bundle ./model/model.sig --public-key maker.pem
  securetrain verify ./ckpt --trust trust.json --policy release.yaml --vsa ckpt.vsa.json
  securetrain verify s3://bucket/r1/step-00000100 --trust trust.json
  securetrain verify runs/r1/checkpoints/step-00000100 --trust runs/r1/trust.json --walk
  SECURETRAIN_TRUST=runs/r1/trust.json securetrain verify runs/r1/dataset --json

\b
What is checked:
  the signature, against the keys that the trust root names for this kind of artifact;
  every byte of every file, and that nothing is missing, extra or a link;
  with --policy: age, lineage, the gradient verdict and the nodes that took part.

\b
Exit codes: 0 all of it held; 10 not signed; 11 bad signature; 12 not what the trust root or policy
allows; 13 content changed; 14 files missing or extra; 15 too old; 16 revoked or set aside;
17 lineage broken; 18 not shown to be logged; 19 unsafe content; 20 unreadable. With several
problems, the most telling one decides: who signed, then what was changed, then what is missing,
then what the policy says. Nothing is fetched from a network but what a URL names.

\b
URLs need fsspec and the package of their store, such as s3fs for s3://.
"""


@click.command(name="verify", epilog=EPILOG)
@click.argument("path", type=Place())
@click.option(
    "--trust",
    "trust_file",
    type=click.Path(path_type=Path),
    envvar=TRUST_VARIABLE,
    show_envvar=True,
    help="The trust root, a file or a folder of 'trust update'. There is no default.",
)
@click.option(
    "--log-proof",
    type=click.Path(path_type=Path),
    help="Proof that the statement was logged (securetrain log prove). Given, it must hold, and"
    " keys that were revoked later still count. Default, when the policy asks for a log: the one"
    " beside PATH.",
)
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="An OpenSSF Model Signing bundle: PATH is a model that was signed with it.",
)
@click.option(
    "--public-key",
    type=click.Path(path_type=Path),
    help="With --bundle: the public key (PEM) that must have signed.",
)
@click.option(
    "--ca",
    "roots",
    type=click.Path(path_type=Path),
    help="With --bundle: certificates (PEM) of the authorities that are trusted.",
)
@click.option("--identity", help="With --bundle: who signed keyless, in full (e-mail or URI).")
@click.option("--issuer", help="With --identity: the OIDC issuer that vouched, in full.")
@click.option(
    "--trusted-root",
    type=click.Path(path_type=Path),
    help="With --identity: trusted_root.json of a Sigstore instance. Default: the public one.",
)
@click.option("--policy", "policy_name", help="A policy by name or file. Default: none.")
@format_options
@click.option(
    "--vsa",
    type=click.Path(path_type=Path),
    help="Also write a verification summary (SLSA VSA) to this file, which must not exist.",
)
@click.option(
    "--vsa-key", help="Sign the summary: a key file or a pkcs11: URI. Default: not signed."
)
@click.option(
    "--walk",
    "walking",
    is_flag=True,
    help="Follow the chain to parents, datasets, nodes and policy, and print it as a tree.",
)
@click.option(
    "--walk-in",
    "places",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Where its parents and datasets are. Default: the two folders above PATH.",
)
@click.option(
    "--waiver",
    "waivers",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Operators' waiver for this checkpoint (securetrain waive). It must count.",
)
@click.option(
    "--floors",
    "floors_file",
    type=click.Path(path_type=Path),
    help="File in which this machine remembers the newest of every run: older ones are refused.",
)
@click.option("--scan", is_flag=True, help="Also scan every file for pickles (securetrain scan).")
@click.option(
    "--offline",
    is_flag=True,
    help="Fetch nothing: refuse a PATH that is a URL of a store.",
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
    policy_name: str | None,
    output: str,
    vsa: Path | None,
    vsa_key: str | None,
    walking: bool,
    places: tuple[Path, ...],
    waivers: tuple[Path, ...],
    floors_file: Path | None,
    scan: bool,
    offline: bool,
) -> int:
    """Prove that the checkpoint or dataset at PATH, a directory or a URL, is what was signed."""
    from securetrain.artifacts.lineage.logged import LogProof
    from securetrain.artifacts.scan.scanner import scan_path
    from securetrain.artifacts.verify import verify_path
    from securetrain.core.errors import IdentityError
    from securetrain.core.files import read_file
    from securetrain.identity.log.proof import LIMIT
    from securetrain.identity.truststore import load_trust
    from securetrain.policy.load import load_policy

    given = Roots(
        public_key=public_key,
        ca=roots,
        identity=identity,
        issuer=issuer,
        trusted_root=trusted_root,
    )
    asked = {"--bundle": bundle or given.count, "--scan": scan, "--walk": walking and not places}
    _refuse_remote(path, {**asked, "--offline": offline})
    if bundle is not None or given.count:
        _refuse_ignored(path)
        return verify_bundle(Path(path), bundle, given, output, scan=scan)
    if trust_file is None:
        raise IdentityError(
            "ST-IDEN-007",
            "no trust root was given, so nothing says whose signature counts",
            str(path),
        )
    now = datetime.now(UTC)
    trust = load_trust(trust_file, now)
    loaded = load_policy(policy_name) if policy_name is not None else None
    proof = None if log_proof is None else LogProof(read_file(log_proof, LIMIT))
    with progress_bar("verifying") as progress:
        result = verify_path(
            path,
            trust=trust,
            policy=loaded.policy if loaded else None,
            now=now,
            progress=progress,
            known=known(waivers, floors_file),
            log_proof=proof,
        )
    if result.ok and floors_file is not None:
        result = remember(result, floors_file, trust)
    scanned = scan_path(Path(path)) if scan else None
    chain = None
    if walking or places:
        result, chain = follow(result, trust, places)
    code = _render(
        output, result, loaded=loaded, trust_file=trust_file, scanned=scanned, chain=chain
    )
    if vsa is not None:
        _write_summary(vsa, vsa_key, result, loaded=loaded, now=now, passed=code == 0)
    return code


def _refuse_remote(path: Path | str, asked: Mapping[str, object]) -> None:
    """What is only done with directories of this machine."""
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
    """Nobody must believe that a bundle was held to what only our own format can be held to."""
    from click.core import ParameterSource

    from securetrain.core.errors import UsageError

    context = click.get_current_context()
    asked = {
        name
        for name in (
            "trust_file",
            "log_proof",
            "waivers",
            "floors_file",
            "policy_name",
            "vsa",
            "vsa_key",
            "walking",
            "places",
        )
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    flags = [one.opts[0] for one in context.command.params if one.name in asked]
    if flags:
        raise UsageError(
            "ST-USAG-001",
            f"a Model Signing bundle says nothing that {', '.join(flags)} could be about",
            str(path),
            "leave it out; a bundle is verified with --public-key, --ca or --identity, and --scan",
        )


def _render(
    output: str,
    result: "VerifyResult",
    *,
    loaded: "LoadedPolicy | None",
    trust_file: Path,
    scanned: "ScanResult | None",
    chain: "Link | None",
) -> int:
    """Print the outcome in one format; the exit code."""
    from securetrain.report import problems

    document = to_dict(result, loaded)
    if chain is not None:
        document["chain"] = chain.to_dict()
    outcome, document = and_scan(problems.of_verify(result), document, scanned)

    def text() -> None:
        _print(result, loaded, trust_file)
        if chain is not None:
            print_chain(chain)
        if scanned is not None:
            print_briefly(scanned)

    return show(output, outcome, document, text)


def _write_summary(
    target: Path,
    key_name: str | None,
    result: "VerifyResult",
    *,
    loaded: "LoadedPolicy | None",
    now: datetime,
    passed: bool,
) -> None:
    from securetrain.artifacts.summary import PolicyUsed, sign, summarize
    from securetrain.core.files import write_atomic
    from securetrain.identity.signers import open_signer

    if not passed and not result.digest:
        click.echo("no summary: no statement verifies, so there is no digest for it", err=True)
        return
    policy = None
    if loaded is not None:
        policy = PolicyUsed(uri=loaded.policy.metadata.id, digest=loaded.digest)
    data = summarize(result, policy, now, passed=passed)
    if key_name is not None:
        data = sign(data, open_signer(key_name, asker(None)))
    write_atomic(target, data, replace=False)
    click.echo(f"summary {target}", err=True)


def to_dict(result: "VerifyResult", policy: "LoadedPolicy | None") -> dict[str, Any]:
    """The result as plain data, for --json."""
    import msgspec

    return {
        "kind": str(result.kind),
        "path": str(result.path),
        "ok": result.ok,
        "exit": int(result.exit_code),
        "digest": result.digest,
        "key_ids": sorted(result.key_ids),
        "log_index": None if result.logged is None else result.logged.index,
        "num_files": result.num_files,
        "num_bytes": result.num_bytes,
        "policy": None
        if policy is None
        else {"id": policy.policy.metadata.id, "digest": policy.digest},
        "statement": msgspec.to_builtins(result.statement),
        "problems": [problem.to_dict() for problem in result.problems],
        "truncated": result.truncated,
    }


def _print(result: "VerifyResult", policy: "LoadedPolicy | None", trust_file: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from securetrain.core.text import printable

    console = Console(highlight=False, soft_wrap=True)
    verdict = Text("VERIFIED", "bold green") if result.ok else Text("REFUSED", "bold red")
    console.print(Text.assemble(verdict, printable(f"  {result.kind} {result.path}", keep="")))
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(result, policy, trust_file):
        facts.add_row(Text(printable(name, keep="")), Text(printable(value, keep="")))
    console.print(facts)
    if result.problems:
        _print_problems(console, result)


def _facts(
    result: "VerifyResult", policy: "LoadedPolicy | None", trust_file: Path
) -> Iterator[tuple[str, str]]:
    from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetPredicate

    if result.key_ids:
        keys = ", ".join(key[:16] for key in sorted(result.key_ids))
        yield "signed by", f"key {keys}, trusted by {trust_file}"
    else:
        yield "signed by", "nobody that this trust root names"
    if result.digest:
        yield "digest", result.digest
    if result.logged is not None:
        seen = "" if result.logged.seen is None else f", seen by {result.logged.seen.isoformat()}"
        origin = result.logged.signed.checkpoint.origin
        yield "logged", f"entry {result.logged.index} of {origin}{seen}"
    match result.statement:
        case CheckpointPredicate() as checkpoint:
            yield from _checkpoint_facts(checkpoint, policy)
        case DatasetPredicate() as dataset:
            yield from _dataset_facts(dataset)
        case None:
            yield "lineage", "unknown: there is no statement that verifies"
    every = ", every one of them" if result.ok else ""
    yield "checked", f"{result.num_files} files, {result.num_bytes:,} bytes{every}"
    if policy is None:
        yield "policy", "none given: integrity and signature only (--policy NAME asks for more)"
    else:
        yield "policy", f"{policy.policy.metadata.id} ({policy.digest[:16]})"


def _checkpoint_facts(
    said: "CheckpointPredicate", policy: "LoadedPolicy | None"
) -> Iterator[tuple[str, str]]:
    yield "run", f"{said.run_id or 'not named'}, step {said.step}, checkpoint {said.seq} of the run"
    yield "saved", f"{said.created.isoformat()} by {said.world_size} ranks"
    data = said.dataset
    if data.digest:
        cursor = ", ".join(f"{name} {count}" for name, count in sorted(data.cursor.items()))
        yield "dataset", f"{data.name} ({data.digest[:16]}){', ' if cursor else ''}{cursor}"
    else:
        yield "dataset", "not named"
    under = f"{said.policy.id} ({said.policy.digest[:16]})" if said.policy.digest else "not named"
    if policy is not None and said.policy.digest:
        same = policy.digest == said.policy.digest
        under += ", the one given here" if same else ", another than the one given here"
    yield "made under", under
    judged = said.gradients
    yield "gradients", f"{judged.verdict}: {judged.judged} steps judged, {judged.refused} refused"
    for node in said.nodes:
        yield "node", f"{node.node}: {node.tier}{f' - {node.label}' if node.label else ''}"
    for parent in said.parents:
        yield "parent", f"{parent.role} {parent.digest[:16]}"


def _dataset_facts(said: "DatasetPredicate") -> Iterator[tuple[str, str]]:
    yield "dataset", f"{said.name}, version {said.seq}, {len(said.files)} files"
    yield "signed", said.created.isoformat()
    yield "splits", ", ".join(f"{s.name} ({len(s.files)} files)" for s in said.splits)
    if said.licenses:
        yield "licence", ", ".join(said.licenses)
    if said.removed:
        yield "removed", f"{sum(one.length for one in said.removed):,} bytes are not to be read"
    yield from sorted(said.metadata.items())


def _print_problems(console: "Console", result: "VerifyResult") -> None:
    from rich.table import Table
    from rich.text import Text

    from securetrain.core.text import printable

    count = len(result.problems)
    title = f"{count} problem{'s' if count != 1 else ''}"
    table = Table(title=title, title_justify="left", expand=False)
    for heading in ("code", "where", "what"):
        table.add_column(heading, overflow="fold")
    for problem in result.problems:
        place, what = printable(problem.place, keep=""), printable(problem.what, keep="")
        table.add_row(Text(problem.code, "red"), Text(place), Text(what))
    console.print(table)
    if result.truncated:
        console.print(f"There are more; the first {len(result.problems)} are listed.")
    fixes = dict.fromkeys(_fix(problem) for problem in result.problems)
    for fix in fixes:
        console.print(Text(f"fix: {fix}"))


def _fix(problem: "Problem") -> str:
    return f"{problem.code}: {problem.fix}"
