# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The command line of ``securetrain run``: torchrun's own, and a few options of ours.

1. `scan` reads the few options that are needed before torch may be imported (the policy decides
   which entry points that import may load). It knows which of torch's options take a value, and
   stops at the training script as argparse does;
2. `parse` is torch's own parser with our group added, so that every torchrun flag works as it does
   there; what it finds must agree with the scan;
3. torchrun's defaults, ``--standalone`` and its own backends on one node become ours; any other
   rendezvous is refused (ST-RUNT-002, `dropin`).
"""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from securetrain.core import install_hint
from securetrain.core.errors import UsageError
from securetrain.core.files import local_file
from securetrain.core.vocabulary import NetworkProfile
from securetrain.launch import dropin
from securetrain.launch.dropin import BACKEND
from securetrain.policy.schema import Network

SANDBOX: Final = "sandbox"
"""What ``--require`` takes besides network profiles."""
STANDALONE_POLICY: Final = "dev"
DEFAULT_POLICY: Final = "baseline"
DEFAULT_NODES: Final = "1:1"
"""As torchrun's."""

TORCH_FLAGS: Final = frozenset(
    {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
)
"""torchrun's options without a value; a hyphen may be written as an underscore."""

TORCH_VALUED: Final = frozenset(
    {
        "--nnodes",
        "--nproc-per-node",
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--rdzv-conf",
        "--max-restarts",
        "--monitor-interval",
        "--start-method",
        "--event-log-handler",
        "--role",
        "--log-dir",
        "-r",
        "--redirects",
        "-t",
        "--tee",
        "--local-ranks-filter",
        "--duplicate-stdout-filters",
        "--duplicate-stderr-filters",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--local-addr",
        "--logs-specs",
        "--numa-binding",
        "--signals-to-handle",
        "--shutdown-timeout",
    }
)
"""torchrun's options with a value."""

OUR_FLAGS: Final = {
    "--guard": "watch gradients although the policy does not ask",
    "--sign-checkpoints": "sign what the script saves by dcp.save, torch.save and safetensors",
    "--verify-checkpoints": "refuse to load what is altered, unsigned or of another run",
    "--json": "end with one line of JSON on standard output",
}
OUR_VALUED: Final = frozenset(
    {
        *("--policy", "--require", "--run-dir", "--pass-env", "--attester", "--telemetry"),
        *("--user", "--output", "--input", "--egress", "--max-memory-mib", "--max-tasks"),
        *("--transparency-log", "--transparency-log-key", "--allow-workers", "--secret"),
    }
)
STATIC: Final = {"node_rank": 0, "master_addr": "127.0.0.1"}
"""torchrun's options of a static rendezvous, and their defaults."""
HELP: Final = frozenset({"-h", "--help"})

_USAGE: Final = "securetrain run [options of ours and of torchrun] script.py [script options]"
_EXAMPLES: Final = """\
Start a training script under a policy. Every torchrun flag works as it does there.

examples:
  securetrain run --standalone --nproc-per-node 2 train.py --lr 0.1
  securetrain run --standalone --policy my-policy.yaml -m my_package.train
  securetrain run --policy baseline --require loopback --run-dir runs/first train.py
  securetrain run --standalone --pass-env WANDB_API_KEY train.py
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The options of a command line that are needed before torch may be imported."""

    policy: str
    policy_source: str
    """Why this policy: given, or the default for what."""
    run_dir: Path | None = None
    logs_specs: str | None = None
    standalone: bool = False
    json: bool = False
    guard: bool = False
    """Whether gradients are watched although the policy does not ask for it."""
    sign: bool = False
    verify: bool = False
    """Whether the script's saves are signed, and its loads verified, likewise."""
    help: bool = False
    nnodes: str = DEFAULT_NODES
    require: tuple[str, ...] = ()
    endpoint: str = ""
    """Of the coordinator that is joined."""
    bind: str = ""
    """This node's address, as ``--rdzv-conf bind=`` gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """A whole command line."""

    torch: argparse.Namespace
    """torchrun's options; `rdzv_backend` is ours."""
    scan: Scan
    require: tuple[NetworkProfile, ...]
    requires_sandbox: bool
    user: str
    """The workers' user; empty for what `sandbox.user` chooses."""
    outputs: tuple[Path, ...]
    """What workers may change besides the working directory."""
    inputs: tuple[Path, ...]
    """What workers shall see although it lies where their sandbox hides things."""
    max_memory_mib: int
    """The most memory of this node's workers together; 0 for what the policy says."""
    max_tasks: int
    """The most processes and threads of theirs; 0 for what the policy says."""
    pass_env: tuple[str, ...]
    telemetry: tuple[str, ...]
    """The trackers that follow the run."""
    secrets: tuple[str, ...]
    """Where the secrets of the policy lie; for a launch that starts the job's coordinator."""
    attester: str
    """Settings file of this node's attester, ``auto``, or empty for what the policy implies."""
    log: str
    """Folder of the transparency log that the policy names; empty for the run's own."""
    log_key: str
    """The log's key, on a node that writes it."""
    joins: bool
    """Whether the job's coordinator runs elsewhere (``--rdzv-endpoint``)."""
    argv: tuple[str, ...] = ()
    """The arguments as they were given."""
    store_port: int = 0
    """The port that the workers' store was asked to have; 0 for any."""
    allow_workers: int = 0
    """The most workers on this node; 0 for the limit by cores."""

    @property
    def script(self) -> str:
        """The training script or module."""
        return str(self.torch.training_script)

    @property
    def egress(self) -> tuple[str, ...]:
        """Places that workers may reach besides those of the policy."""
        return tuple(self.torch.egress)

    @property
    def coordinator(self) -> str:
        """The places of the job's coordinator and standbys; empty where this launch starts one."""
        return str(self.torch.rdzv_endpoint) if self.joins else ""

    @property
    def bind(self) -> str:
        """This node's address as ``--rdzv-conf bind=`` gives it; empty when it does not."""
        return _bind(str(self.torch.rdzv_conf))


def scan(
    argv: Sequence[str], *, standalone: bool = False, environ: Mapping[str, str] | None = None
) -> Scan:
    """Read what is needed before torch may be imported.

    Args:
        argv: The arguments after ``securetrain run``.
        standalone: Whether the environment already says so (``PET_STANDALONE=1``).
        environ: Where torch's parser looks for other options that are not given (``PET_*``).
    """
    found = {
        f"--{name.replace('_', '-')}": value
        for name in ("nnodes", "rdzv_endpoint", "rdzv_conf", "rdzv_backend")
        if (value := (environ or {}).get(f"PET_{name.upper()}"))
    }
    require: list[str] = []
    flags: set[str] = set()
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--" or not argument.startswith("-") or argument == "-":
            break
        name, has_value, value = _split(argument)
        if name in TORCH_VALUED or name in OUR_VALUED:
            found[name] = value if has_value else next(arguments, "")
            require += [found[name]] if name == "--require" else []
        else:
            flags.add(name)
    standalone = standalone or "--standalone" in flags
    wanted = dropin.Wanted(
        nnodes=found.get("--nnodes", DEFAULT_NODES),
        backend=found.get("--rdzv-backend", ""),
        endpoint=found.get("--rdzv-endpoint", ""),
        conf=found.get("--rdzv-conf", ""),
    )
    default = STANDALONE_POLICY if standalone else DEFAULT_POLICY
    source = f"default for {'--standalone' if standalone else 'jobs without --standalone'}"
    return Scan(
        policy=found.get("--policy", default),
        policy_source="given" if "--policy" in found else source,
        run_dir=local_file(found["--run-dir"]) if "--run-dir" in found else None,
        logs_specs=found.get("--logs-specs"),
        standalone=standalone,
        json="--json" in flags,
        guard="--guard" in flags,
        sign="--sign-checkpoints" in flags,
        verify="--verify-checkpoints" in flags,
        help=bool(flags & HELP),
        nnodes=wanted.nnodes,
        require=tuple(require),
        endpoint="" if standalone or wanted.is_own_job else wanted.endpoint,
        bind=_bind(found.get("--rdzv-conf", "")),
    )


def parse(argv: Sequence[str], scanned: Scan) -> RunOptions:
    """Parse a command line; imports torch.

    Raises:
        UsageError: ST-USAG-001 with what is wrong.
        RuntimeRefusal: ST-RUNT-002 for a rendezvous that is not ours and cannot become it.
    """
    parser = _torch_parser()
    _add_ours(parser)
    # torchrun's own default is nobody's wish; the same word given by a person is one.
    if parser.get_default("rdzv_backend") == "static":
        parser.set_defaults(rdzv_backend="")
    unasked = {n: usual for n, usual in STATIC.items() if parser.get_default(n) == usual}
    parser.set_defaults(**dict.fromkeys(unasked))
    options = parser.parse_args(list(argv))
    given = [n for n in STATIC if getattr(options, n) is not None]
    vars(options).update({n: usual for n, usual in unasked.items() if n not in given})
    _check_scan(options, scanned)
    wanted = dropin.Wanted(
        nnodes=str(options.nnodes),
        backend="" if options.standalone else str(options.rdzv_backend),
        endpoint="" if options.standalone else str(options.rdzv_endpoint),
        conf=str(options.rdzv_conf),
        is_static=bool(given or options.master_port),
    )
    dropin.check_rendezvous(options, wanted, argv)
    options.rdzv_backend = BACKEND
    options.rdzv_endpoint = "" if wanted.is_own_job else wanted.endpoint
    return RunOptions(
        torch=options,
        scan=scanned,
        require=tuple(name for name in options.require if name != SANDBOX),
        requires_sandbox=SANDBOX in options.require,
        user=str(options.user),
        outputs=tuple(options.output),
        inputs=tuple(options.input),
        max_memory_mib=options.max_memory_mib,
        max_tasks=options.max_tasks,
        pass_env=tuple(options.pass_env),
        telemetry=tuple(options.telemetry),
        secrets=tuple(options.secret),
        attester=str(options.attester),
        log=str(options.transparency_log),
        log_key=str(options.transparency_log_key),
        joins=bool(options.rdzv_endpoint),
        argv=tuple(argv),
        store_port=options.master_port or wanted.store_port,
        allow_workers=options.allow_workers,
    )


def format_help() -> str:
    """Usage, examples, our options, then torch's own."""
    ours = argparse.ArgumentParser(
        usage=_USAGE,
        description=_EXAMPLES,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_ours(ours)
    try:
        torch_help = _torch_parser().format_help()
    except ImportError:
        torch_help = f"torchrun's options: to see them, {install_hint('train')}\n"
    _, _, rest = torch_help.partition("positional arguments:")
    return f"{ours.format_help()}\ntorchrun's own:\n\npositional arguments:{rest or torch_help}"


class _Parser(argparse.ArgumentParser):
    """Raises instead of leaving."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("ST-USAG-001", message, "securetrain run", "securetrain run --help")


def _torch_parser() -> argparse.ArgumentParser:
    # torch takes seconds to import: only when a command line is really parsed.
    try:
        from torch.distributed.run import get_args_parser  # noqa: PLC0415
    except ImportError:
        raise
    except Exception as error:
        raise dropin.import_refusal(error, os.environ) from error

    parser: argparse.ArgumentParser = get_args_parser()
    parser.__class__ = _Parser
    parser.prog = "securetrain run"
    return parser


def _add_ours(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("securetrain")
    group.add_argument(
        "--policy",
        default=None,
        metavar="NAME|FILE",
        help="dev, baseline, hardened or a policy file"
        f" (default: {STANDALONE_POLICY} with --standalone, else {DEFAULT_POLICY})",
    )
    group.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="PROFILE",
        type=_requirement,
        help="refuse to start unless this network profile is achieved, or for 'sandbox' unless the"
        " workers' sandbox lacks nothing; may be repeated",
    )
    group.add_argument(
        "--user",
        default="",
        metavar="NAME|UID",
        help="the workers' user, when root starts the job (default: the script's owner; where"
        " that is root, a user that nobody else is)",
    )
    group.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="PATH",
        type=local_file,
        help="let the workers write to this folder or file; a folder is made when it is not there;"
        " may be repeated",
    )
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="PATH",
        type=local_file,
        help="let the workers read this, though it lies in a home folder or /tmp; may be repeated",
    )
    group.add_argument(
        "--egress",
        action="append",
        default=[],
        metavar="HOST:PORT",
        type=_place,
        help="let the workers reach this place through the launcher's proxy, besides those of the"
        " policy (network.egress); *:PORT for all public addresses; may be repeated",
    )
    group.add_argument(
        "--max-memory-mib",
        default=0,
        metavar="N",
        type=_limit,
        help="the most memory of this node's workers together, in MiB, where the machine has"
        " cgroup v2; the policy's limit stays when it is lower",
    )
    group.add_argument(
        "--max-tasks",
        default=0,
        metavar="N",
        type=_limit,
        help="the most processes and threads of this node's workers together, likewise",
    )
    group.add_argument(
        "--run-dir",
        default=None,
        metavar="DIR",
        help="the folder of keys, ledger, logs and checkpoints (default: runs/<time>-<id>);"
        " an existing one is used again",
    )
    group.add_argument(
        "--pass-env",
        action="append",
        default=[],
        metavar="NAME",
        help="let this environment variable through to the workers; may be repeated",
    )
    group.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME=file:PATH",
        type=_secret,
        help="where a secret lies that the policy names (node.secrets): file:PATH, env:VARIABLE or"
        " command:PROGRAM ARGUMENTS; may be repeated",
    )
    group.add_argument(
        "--attester",
        default="",
        metavar="auto|FILE",
        help="the attester of this node: auto (its TPM, CPU and GPUs, the default when the policy"
        " names reference values), or a file of settings",
    )
    group.add_argument(
        "--transparency-log",
        default="",
        metavar="DIR",
        help="the folder of the log that the policy names; not needed for the run's own",
    )
    group.add_argument(
        "--transparency-log-key",
        default="",
        metavar="KEY",
        help="the key of that log, a file or a pkcs11: URI, on a node that logs",
    )
    group.add_argument(
        "--allow-workers",
        default=0,
        metavar="N",
        type=int,
        help="let this node have up to N workers (default: 16 for each core, and at least 64)",
    )
    group.add_argument(
        "--telemetry",
        action="append",
        default=[],
        metavar="otlp|mlflow|wandb",
        help="have this tracker follow the run, from a process of its own; may be repeated",
    )
    for name, text in OUR_FLAGS.items():
        group.add_argument(name, action="store_true", help=text)


def _bind(settings: str) -> str:
    """This node's address in the text of ``--rdzv-conf``."""
    parts = (part.partition("=") for part in settings.split(","))
    return {name.strip(): value.strip() for name, _, value in parts}.get("bind", "")


def _requirement(text: str) -> str:
    if text == SANDBOX:
        return text
    try:
        return NetworkProfile(text)
    except ValueError as error:
        names = ", ".join([*NetworkProfile, SANDBOX])
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {names}") from error


def _secret(text: str) -> str:
    place = text.partition("=")[2]
    if not place.startswith(("file:", "env:", "command:")):
        # It may be the secret itself: it is neither shown nor kept.
        raise argparse.ArgumentTypeError("it does not say where the secret lies: NAME=file:PATH")
    return text


def _place(text: str) -> str:
    try:
        return msgspec.convert({"egress": [text.lower()]}, Network).egress[0]
    except msgspec.ValidationError as error:
        what = f"{text!r} is not HOST:PORT, [IPV6]:PORT or *:PORT"
        raise argparse.ArgumentTypeError(what) from error


def _limit(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 0 < number <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def _split(argument: str) -> tuple[str, bool, str]:
    """An option's full name, whether its value is attached, and the value."""
    if not argument.startswith("--") and argument[:2] in TORCH_VALUED and len(argument) > 2:
        return argument[:2], True, argument[2:].removeprefix("=")
    name, equals, value = argument.partition("=")
    if not name.startswith("--"):
        return name, bool(equals), value
    name = name.replace("_", "-")
    known = TORCH_FLAGS | TORCH_VALUED | OUR_FLAGS.keys() | OUR_VALUED | HELP
    longer = [option for option in known if option.startswith(name)]
    return (longer[0] if name not in known and len(longer) == 1 else name), bool(equals), value


def _check_scan(options: argparse.Namespace, scanned: Scan) -> None:
    """The policy that was in force while torch was imported is the one that was meant."""
    policy = options.policy if options.policy is not None else None
    expected = scanned.policy if scanned.policy_source == "given" else None
    run_dir = Path(options.run_dir) if options.run_dir is not None else None
    saves = (options.sign_checkpoints, options.verify_checkpoints)
    if (policy, run_dir, options.json, options.guard, options.logs_specs, saves) != (
        expected,
        scanned.run_dir,
        scanned.json,
        scanned.guard,
        scanned.logs_specs,
        (scanned.sign, scanned.verify),
    ) or bool(options.standalone) != scanned.standalone:
        raise UsageError(
            "ST-USAG-001",
            "an option before --policy, --run-dir, --logs-specs, --guard, --sign-checkpoints,"
            " --verify-checkpoints or --json is not known to securetrain",
            "securetrain run",
            "write these options first, and values as --option=value",
        )
