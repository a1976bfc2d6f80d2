# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ``securetrain`` command: finds the verb, and is the one place where an error ends.

Rules, in order:

1. verbs are loaded when they are used: ``--help`` imports click and nothing heavy;
2. a verb returns its exit code (nothing means 0) and catches nothing;
3. every error becomes one message on standard error: what, where, fix. With ``--json`` it becomes
   one JSON object, the only thing on standard output;
4. the exit code is the one of the refusal's code (core/codes). Ctrl-C is 130, a bad command line
   is 2, and anything unforeseen is ST-USAG-010 with exit code 1: never 0;
5. a reader that closes the pipe early (``| head``) gets no traceback.
"""

import atexit
import gc
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import click

from securetrain import __version__
from securetrain.core import ExitCode, printable
from securetrain.core.errors import SecureTrainError, UsageError, os_error

TRACEBACK_VARIABLE: Final = "SECURETRAIN_TRACEBACK"


@dataclass(frozen=True, slots=True)
class Verb:
    """The place of a verb's click command (``module:attribute``), and its line in the help."""

    target: str
    help: str
    own_options: bool = True
    """False when what follows the verb belongs to somebody else's program."""


_FOREIGN: Final = frozenset({"run", "train"})
"""What follows these belongs to the launcher and the script."""
_HELP: Final[Mapping[str, str]] = {
    "quickstart": "The whole story on this machine, in two minutes.",
    "doctor": "Say what works on this machine, and what to install.",
    "run": "Start a training script under a policy (every torchrun flag works).",
    "train": "Train the built-in model from a job file (run -m securetrain.train).",
    "plan": "Say what a job needs on each rank, and whether it fits, without starting it.",
    "verify": "Prove that a checkpoint or dataset is what was signed.",
    "sign": "Sign a dataset or a model that no run of ours saved.",
    "convert": "Make a checkpoint of torch's own format a signed one.",
    "catalogue": "Keep a signed list of which artifact a name means.",
    "pack": "Put what proves a checkpoint into one file.",
    "unpack": "Write the weights and rows that a pack holds.",
    "replay": "Do the recorded steps of a pack again, and compare.",
    "export": "Write what a pack proves as CycloneDX, SPDX or SLSA provenance.",
    "waive": "Excuse one checkpoint that is old or was set aside.",
    "scan": "Look for what the pickles in files would run.",
    "attest": "Collect, look at, verify and enroll evidence of nodes.",
    "fleet": "Admit machines to a fleet by what they prove, and look after it.",
    "audit": "Check this host against a policy.",
    "policy": "Lint and explain policies.",
    "schema": "Print the JSON Schema of policy and job files, for editors.",
    "threats": "Check that a threat model is backed.",
    "drill": "Attack the plain stack, then ours, and compare.",
    "ca": "Keep a cluster's certificate authority.",
    "trust": "Keep a trust root: which keys may sign what.",
    "log": "Keep a transparency log, witness it, prove what is in it.",
    "key": "Make signing keys and change their passphrases.",
    "enroll": "Turn a machine into a node with a one-time token.",
    "coordinator": "Run the coordinator of a job of several machines.",
    "network": "Clean up job networks whose owner is dead.",
    "cache": "Look after compiled code that runs share.",
    "report": "Show what a run did and proved.",
    "follow": "Tell OpenTelemetry, MLflow or W&B what a run does, or did.",
}
_FOLDERS: Final[Mapping[str, str]] = {
    "artifacts": "verify sign convert catalogue pack unpack replay export waive scan",
    "audit": "audit",
    "identity": "ca trust log key enroll",
    "jobs": "quickstart run train plan drill coordinator report follow",
    "machine": "doctor policy schema threats network cache",
}
"""Where verbs stand; one that is not named has a folder of its own."""
_PLACES: Final = {
    name: f"{folder}.{name}" for folder, names in _FOLDERS.items() for name in names.split()
}
VERBS: Final[Mapping[str, Verb]] = {
    name: Verb(
        f"securetrain.cli.{_PLACES.get(name, name)}:command",
        text,
        own_options=name not in _FOREIGN,
    )
    for name, text in _HELP.items()
}

EPILOG: Final = """\
\b
Examples:
  securetrain quickstart
  securetrain run --standalone --nproc-per-node 2 --policy dev script.py
  securetrain verify runs/my-run/checkpoints/step-00000100 --trust runs/my-run/trust.json
  securetrain audit --node --policy baseline
  securetrain drill --list

\b
Exit codes:
  0    clean: everything that was asked for was done and held
  1    a finding, a refusal or a failure
  2    bad command line, job file or policy
  3    the evidence is incomplete: nothing failed, not everything is known
  4    a ledger or facts file is not what was signed
  10   not signed                   11  the signature does not verify
  12   not what the policy allows   13  the content was changed
  14   a file is missing or extra   15  too old
  16   revoked                      17  the lineage is broken
  18   no proof of being logged     19  content that could run code
  20   a file cannot be read or written, or the disk is full
  130  interrupted

Every refusal carries a stable code such as ST-CKPT-130, and says what, where and how to fix it.
"""


class LazyGroup(click.Group):
    """A group that knows its verbs by name and imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every verb, in the order of the story."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one verb."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module, _, attribute = verb.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.target} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "--version", "-V", message="securetrain %(version)s")
def cli() -> None:
    """Security-hardened distributed PyTorch training.

    One policy file, three enforcers: 'run' enforces it while a job runs, 'audit' checks a machine
    against it before, and 'verify' proves afterwards that an artifact was made under it.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _invoke(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_is_gone()
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        # torch raises some failures of a checkpoint as a bare BaseException
        return _report(error, as_json=wants_json(arguments))
    return code


def entry() -> NoReturn:
    """Run `main` for the console script, and leave quickly.

    Taking an interpreter apart costs a seventh of what verifying a small checkpoint does, and with
    torch in it about as long as everything that `run` adds to torchrun. By now the ledger is closed
    and every file is durable. Threads are waited for, and what modules left for the end is done,
    but for torch's.
    """
    gc.set_threshold(100_000, 20, 20)  # hundreds of modules make much, and all of it stays
    code = main()
    if "torch" in sys.modules:
        import logging

        logging.shutdown()
    else:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as Python does
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them now
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _invoke(arguments: list[str]) -> int:
    try:
        result = cli.main(args=arguments, prog_name="securetrain", standalone_mode=False)
    except SystemExit as leaving:
        match leaving.code:
            case None:
                return int(ExitCode.OK)
            case int(code):
                return code
            case text:
                click.echo(text, err=True)
                return int(ExitCode.FAILURE)
    # bool is an int, but a verb that returns a truth value has not returned an exit code
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether this command line asks for JSON, without parsing it: it may not parse."""
    verb = next((a for a in arguments if not a.startswith("-")), "")
    if verb in VERBS and not VERBS[verb].own_options:
        return False
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return (
        "--json" in own
        or "--format=json" in own
        or any(pair == ("--format", "json") for pair in itertools.pairwise(own))
    )


def as_refusal(error: BaseException) -> SecureTrainError:
    """The one error that a person should see for anything that a verb raised."""
    match error:
        case SecureTrainError():
            return error
        case click.FileError():
            return UsageError("ST-USAG-002", error.message, error.ui_filename)
        case click.ClickException():
            context = getattr(error, "ctx", None)
            command = context.command_path if context is not None else "securetrain"
            return UsageError("ST-USAG-001", error.format_message(), command, f"{command} --help")
        case OSError():
            return os_error(error, str(error.filename or ""))
        case _:
            return UsageError("ST-USAG-010", f"{type(error).__name__}: {error}", _origin(error))


def _origin(error: BaseException) -> str:
    """File and line of this package that an unforeseen error came from."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}securetrain{os.sep}" in frame.filename]
    for frame in (ours or list(frames))[-1:]:
        _, _, name = frame.filename.rpartition(f"{os.sep}securetrain{os.sep}")
        return f"{name}:{frame.lineno}"
    return ""


def _report(error: BaseException, *, as_json: bool) -> int:
    if os.environ.get(TRACEBACK_VARIABLE) == "1":
        sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        error.show()
        return int(ExitCode.USAGE)
    refusal = as_refusal(error)
    try:
        if as_json:
            import json

            click.echo(json.dumps({"error": refusal.to_dict()}, indent=2, sort_keys=True))
        else:
            click.echo(render(refusal), err=True)
    except BrokenPipeError:
        _reader_is_gone()
    return int(refusal.exit_code)


def render(refusal: SecureTrainError) -> str:
    """``error CODE: what``, then where and fix on lines of their own."""
    head = click.style(f"error {refusal.code}:", fg="red", bold=True)
    lines = [f"{head} {printable(refusal.what or refusal.definition.title)}"]
    if refusal.where:
        lines.append(f"  where: {printable(refusal.where)}")
    if refusal.fix:
        lines.append(f"  fix:   {printable(refusal.fix)}")
    return "\n".join(lines)


def _reader_is_gone() -> int:
    """Keep the interpreter from writing to the closed pipe once more on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return int(ExitCode.FAILURE)
