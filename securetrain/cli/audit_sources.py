# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Options of ``securetrain audit`` that say where facts come from, and the facts of them all."""

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from securetrain.cli.audit_named import named_by, named_options
from securetrain.cli.options import KEY_FORMS, LocalFile, file_option, secret_option

if TYPE_CHECKING:
    from securetrain.audit import Facts, Named
    from securetrain.policy import LoadedPolicy

F = TypeVar("F", bound=Callable[..., Any])

SPREAD: Final = frozenset({"-f", "--files"})
"""Options that take all words up to the next option."""
_ANY: Final = ("node", "files", "slurm", "runs", "facts_path", "nonce_store")
_NAMED: Final = ("checkpoints", "datasets", "requirements", "trust", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The values of the options."""

    node: bool
    files: tuple[Path, ...]
    values: tuple[Path, ...]
    no_render: bool
    slurm: tuple[Path, ...]
    runs: tuple[Path, ...]
    trust: Path | None
    facts_path: Path | None
    save_facts: Path | None
    sign_key: str | None
    sign_identity: Path | None
    passphrase_file: Path | None
    nonce: str | None
    nonce_store: Path | None
    inventory_file: Path | None
    unsigned: bool
    job: "Named"
    """What the job on this node names."""


def _nonce(_context: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    if given is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,128}", given):
        raise click.BadParameter("16 to 128 letters, digits, '-' and '_'")
    return given


_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    click.option("--node", is_flag=True, help="Collect facts about this node and judge them."),
    file_option(
        "-f",
        "--files",
        multiple=True,
        metavar="PATH...",
        help="Judge manifests, launch scripts and exports: files, and folders of them.",
    ),
    file_option(
        "--values",
        multiple=True,
        help="With --files: values for the charts among them, besides their own.",
    ),
    click.option(
        "--no-render",
        is_flag=True,
        help="Run neither helm nor kustomize: read charts and kustomizations as they stand.",
    ),
    file_option(
        "--slurm",
        multiple=True,
        metavar="DIR",
        help="Judge Slurm's configuration: its folder, or a copy of it; one for each cluster.",
    ),
    file_option(
        "--run",
        "runs",
        multiple=True,
        metavar="DIR",
        help="Judge who takes part in a run, by its ledger, verified by --trust.",
    ),
    click.option(
        "--facts",
        "facts_path",
        type=LocalFile(path_type=Path, exists=True),
        metavar="PATH",
        help="Judge facts that were saved before, here or elsewhere: a file, or a folder's *.json.",
    ),
    file_option(
        "--save-facts",
        help="Also write what was collected (names, owners and modes; no secret's value): one"
        " document to a file, several to a new folder.",
    ),
    click.option(
        "--sign-key",
        metavar="KEY",
        help=f"With --save-facts: sign them with this host's key: {KEY_FORMS}.",
    ),
    file_option(
        "--sign-identity",
        metavar="DIR",
        help="With --save-facts: sign as an enrolled node: its node.pem, node.crt and ca.crt.",
    ),
    secret_option,
    click.option(
        "--nonce",
        callback=_nonce,
        help="What the auditor asked to have signed; with --facts, what the answers must hold.",
    ),
    file_option(
        "--nonce-store",
        metavar="DIR",
        help="The auditor's nonces: 'audit nonce' issues one, --facts spends what is answered.",
    ),
    file_option(
        "--inventory",
        "inventory_file",
        help="The assets that there are, and the keys or authorities that speak for each of them.",
    ),
    click.option(
        "--unsigned", is_flag=True, help="Also count facts that nobody signed; the result says so."
    ),
    named_options,
)


def source_options(command: F) -> F:
    """Add the options, which reach the command as one `sources`; None where none is given."""

    @functools.wraps(command)
    def together(**given: Any) -> Any:
        named = {name: given[name] for name in _NAMED}
        mine = {name: given[name] for name in Sources.__slots__ if name != "job"}
        for name in named | mine:
            del given[name]
        some = any(mine[name] for name in _ANY)
        if mine["runs"] and not mine["node"]:
            named["trust"] = None  # it is for the run
        job = named_by(named, node=mine["node"])
        return command(sources=Sources(**mine, job=job) if some else None, **given)

    wrapped: Any = together
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    added: F = wrapped
    return added


def facts_of_sources(sources: Sources | None, policy: "LoadedPolicy", now: datetime) -> "Facts":
    """Collect or read what the options name.

    Raises:
        UsageError: of click, naming the option that is missing.
    """
    from securetrain.audit import joined

    _refuse_contradictions(sources)
    assert sources is not None
    facts = joined(list(_parts(sources, policy, now)))
    if sources.save_facts is not None:
        _save(facts, sources, now)
    return facts


def issue_nonce(sources: Sources | None, now: datetime) -> tuple[str, datetime]:
    """A new nonce of the store that the options name, and when it is over.

    Raises:
        UsageError: of click, when they name none.
    """
    from securetrain.audit import NonceStore

    if sources is None or sources.nonce_store is None:
        raise click.UsageError("securetrain audit nonce --nonce-store DIR")
    return NonceStore(sources.nonce_store, now).issue()


def _refuse_contradictions(sources: Sources | None) -> None:
    """Refuse options that make no sense together.

    Raises:
        UsageError: of click, naming the option that is missing.
    """
    nothing = "give --node, --files PATH..., --slurm DIR, --run DIR or --facts PATH"
    if sources is None:
        raise click.UsageError(nothing)
    node, stored = sources.node, sources.facts_path is not None
    collected = node or bool(sources.files or sources.slurm or sources.runs)
    for wrong, what in (
        (not collected and not stored, nothing),
        (node and stored, "give either --node or --facts PATH"),
        (
            sources.save_facts and not collected,
            "--save-facts needs something that is collected",
        ),
        (sources.save_facts and stored, "--save-facts saves what is collected, not --facts"),
        (
            (sources.sign_key or sources.sign_identity) and not sources.save_facts,
            "--sign-key and --sign-identity need --save-facts PATH",
        ),
        (
            sources.sign_key and sources.sign_identity,
            "give either --sign-key or --sign-identity",
        ),
        (
            (sources.values or sources.no_render) and not sources.files,
            "--values and --no-render need --files PATH...",
        ),
        (sources.unsigned and not stored, "--unsigned needs --facts PATH"),
        (
            sources.inventory_file and not stored and not sources.runs,
            "--inventory needs --facts PATH or --run DIR",
        ),
        (
            sources.nonce_store and (not stored or not sources.inventory_file or sources.nonce),
            "--nonce-store needs --facts PATH with --inventory FILE, and no --nonce",
        ),
    ):
        if wrong:
            raise click.UsageError(what)


def _parts(sources: Sources, policy: "LoadedPolicy", now: datetime) -> Iterator["Facts"]:
    """Each collector is loaded when there is something for it."""
    if sources.files:
        from securetrain.audit import (
            Renderer,
            collect_manifests,
            collect_storage,
            facts_of,
            is_empty,
        )

        path = os.environ.get("PATH", "")
        renderer = Renderer(path, values=sources.values, off=sources.no_render)
        bodies = collect_manifests(sources.files, now=now, renderer=renderer)
        found = [one for one in bodies if not is_empty(one)]
        found += collect_storage(sources.files, now=now)
        if not found:
            where = ", ".join(map(str, sources.files))
            raise click.UsageError(f"--files: no manifest, script or exports file in {where}")
        yield facts_of(found)
    if sources.slurm:
        from securetrain.audit import collect_slurm, facts_of

        salt = os.urandom(32)
        yield facts_of([collect_slurm(one, now=now, salt=salt) for one in sources.slurm])
    if sources.runs:
        yield _runs(sources, policy, now)
    if sources.node:
        yield _own(sources, now)
    if sources.facts_path is not None:
        from securetrain.audit import NonceStore, read_facts, read_inventory

        store = NonceStore(sources.nonce_store, now) if sources.nonce_store else None
        yield read_facts(
            sources.facts_path,
            read_inventory(sources.inventory_file) if sources.inventory_file else None,
            nonce=sources.nonce or "",
            store=store,
            unsigned=sources.unsigned,
        )


def _runs(sources: Sources, policy: "LoadedPolicy", now: datetime) -> "Facts":
    from securetrain.audit import collect_run, facts_of, read_inventory
    from securetrain.launch import this_node

    names = None
    if sources.inventory_file is not None:
        assets = read_inventory(sources.inventory_file).assets
        names = [one.partition(":")[2] for one in assets if one.startswith("node:")]
    return facts_of(
        collect_run(
            run,
            now=now,
            trust=sources.trust,
            policy=policy,
            inventory=names,
            fleet_state=this_node(os.environ).fleet,
        )
        for run in sources.runs
    )


def _own(sources: Sources, now: datetime) -> "Facts":
    from securetrain.audit import collect_exports, collect_node, facts_of

    path = _job_search_path()
    facts = collect_node(os.environ, now=now, search_path=path, job=sources.job)
    return facts_of([facts, *collect_exports(now=now)])


def _save(facts: "Facts", sources: Sources, now: datetime) -> None:
    from securetrain.audit import save_facts

    path, nonce = sources.save_facts, sources.nonce or ""
    assert path is not None
    if sources.sign_identity is not None:
        from securetrain.rendezvous.member import load_identity

        mine = load_identity(sources.sign_identity, now)
        chain = (mine.certificate, mine.ca)
        save_facts(facts, path, keys=[mine.key], certificates=chain, nonce=nonce)
    elif sources.sign_key is not None:
        from securetrain.cli.passphrase import asker
        from securetrain.identity import open_signer

        signer = open_signer(sources.sign_key, asker(sources.passphrase_file))
        save_facts(facts, path, keys=[signer], nonce=nonce)
    else:
        save_facts(facts, path)


def _job_search_path() -> list[str]:
    """Return this process's search path without the directory of this program, as a job sees it."""
    return [entry for entry in sys.path if entry and Path(entry) != Path(sys.argv[0]).parent]
