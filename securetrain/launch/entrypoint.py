# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain run``, from the command line to the exit code.

In order:

1. scan the command line, load the policy; an ordinary user's launcher may start again in a user
   namespace here (`rootless_launcher`); judge what importing torch would run (`supply_chain`);
2. parse with torch's own parser (`options`), prepare the run directory (`setup`), open the
   ledger;
3. choose the network profile, compute the workers' environment, audit the node (`preflight`);
4. start the coordinator, or use the one that ``--rdzv-endpoint`` names;
5. run torch's elastic agent in this process, with our rendezvous and the worker shim
   (`elastic_agent`);
6. collect what the workers reported, end what is left of them, close the ledger, write
   ``run.json``.

Steps 3 to 6 are `run`. A refusal at any step is in the ledger as soon as there is one.
Everything that the launcher says goes to standard error: standard output belongs to the script.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from securetrain.core import ExitCode, judge_place
from securetrain.core.errors import NetworkError, RuntimeRefusal, SecureTrainError, UsageError
from securetrain.identity.keys import PublicKey
from securetrain.identity.log import witness_key
from securetrain.launch import dropin, telemetry
from securetrain.launch import options as cmdline
from securetrain.launch.checkpoints.services import this_node
from securetrain.launch.network import rootless_launcher
from securetrain.launch.node.preflight import AuditProcess
from securetrain.launch.node.supply_chain import check_supply_chain
from securetrain.launch.process.descendants import Interrupted, interruptible, subreaper
from securetrain.launch.process.error_file import ErrorFile
from securetrain.launch.run import Session
from securetrain.launch.setup import RunSetup, agent_ledger, default_run_dir, prepare_run
from securetrain.ledger import events
from securetrain.policy import load_policy


def main(argv: Sequence[str]) -> int:
    """Run a training script under a policy.

    Args:
        argv: The arguments after ``securetrain run``.

    Returns:
        The exit code: 0, or 130 when a signal ended the run (SIGTERM and SIGHUP too).

    Raises:
        SecureTrainError: every refusal and failure, unless ``--json`` turns it into a line of JSON.
    """
    standalone = os.environ.get("PET_STANDALONE", "0") not in {"", "0"}
    scanned = cmdline.scan(argv, standalone=standalone, environ=os.environ)
    if scanned.help:
        sys.stdout.write(cmdline.format_help())
        return int(ExitCode.OK)
    error_file = ErrorFile.of(os.environ)
    try:
        dropin.check_text(argv, os.environ)
        with interruptible(), subreaper():
            return _run(list(argv), scanned, error_file)
    except Interrupted as event:
        error_file.record(event)
        sys.stderr.write(f"securetrain: ended by {event.name}\n")
        return int(ExitCode.INTERRUPTED)
    except SecureTrainError as error:
        _name_standalone(error, argv, scanned)
        error_file.record(error)
        if not scanned.json:
            raise
        sys.stdout.write(json.dumps({"error": error.to_dict()}, sort_keys=True) + "\n")
        return int(error.exit_code)


def _run(argv: list[str], scanned: cmdline.Scan, error_file: ErrorFile) -> int:
    now = _clock()
    # Inside a user namespace other users' directories look like root's: judged before.
    _judge_place(scanned, now)
    policy = load_policy(scanned.policy).policy
    if rootless_launcher.needs_user_namespace(policy.network, scanned):
        return rootless_launcher.run_inside(argv, scanned, os.environ)
    try:
        check_supply_chain(policy, logs_specs=scanned.logs_specs)
    except RuntimeRefusal as error:
        # Nothing of torch has been imported; the refusal still belongs into a ledger.
        ledger = agent_ledger(_prepare(scanned, now), _clock)
        ledger.write(events.EntryPointRefused.of(error))
        ledger.close()
        raise
    with AuditProcess.started(policy.host.preflight) as process:
        return _with_torch(argv, scanned, now, error_file, process)


def _with_torch(
    argv: list[str],
    scanned: cmdline.Scan,
    now: datetime,
    error_file: ErrorFile,
    process: AuditProcess | None,
) -> int:
    options = cmdline.parse(argv, scanned)
    dropin.check_program(options.torch, os.environ)
    dropin.check_workers(str(options.torch.nproc_per_node), options.allow_workers)
    session = Session(
        setup=_prepare(scanned, now),
        options=options,
        argv=tuple(argv),
        clock=_clock,
        started=now,
        error_file=error_file,
    )
    with telemetry.followed(session.setup.run.root, options.telemetry, os.environ, _say):
        return session.run(os.environ, process)


def _say(text: str) -> None:
    sys.stderr.write(f"securetrain: {text}\n")
    sys.stderr.flush()


def _prepare(scanned: cmdline.Scan, now: datetime) -> RunSetup:
    def witness() -> PublicKey:
        return witness_key(this_node(os.environ).witness_key).public

    place = scanned.run_dir or default_run_dir(now)
    return prepare_run(
        place,
        scanned.policy,
        now,
        witness,
        guard=scanned.guard,
        sign=scanned.sign,
        verify=scanned.verify,
    )


def _judge_place(scanned: cmdline.Scan, now: datetime) -> None:
    try:
        judge_place(scanned.run_dir or default_run_dir(now))
    except UsageError as error:
        if error.code == "ST-USAG-018":
            safe = this_node(os.environ).root / "runs" / default_run_dir(now).name
            error.fix += f"; or type: --run-dir {safe}"
        raise


def _name_standalone(error: SecureTrainError, argv: Sequence[str], scanned: cmdline.Scan) -> None:
    """Add the command for a person who named no policy and only wants to try a script."""
    by_policy = isinstance(error, NetworkError) or error.code == "ST-RUNT-003"
    is_bare = scanned.policy_source != "given" and not scanned.standalone and not scanned.endpoint
    if by_policy and is_bare and scanned.nnodes in {"1", "1:1"}:
        command = shlex.join(["securetrain", "run", "--standalone", *argv])
        error.fix = f"to try the script on this machine alone, type: {command}; else {error.fix}"


def _clock() -> datetime:
    return datetime.now(UTC)
