# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The doings of a launch's commands as facts: where ranks meet, what listens, what is trusted.

Options and defaults: torchrun (``torch/distributed/run.py``), accelerate and deepspeed ``--help``,
etcd, TensorBoard, Jupyter Server, Ray, Open MPI and sshd(8).
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from securetrain.audit.facts import Location, Reading
from securetrain.audit.parser.values import absent, ok
from securetrain.audit.shell.evaluator import Call, Commands, Open
from securetrain.audit.shell.programs import PYTHONS, SHELLS, family_of
from securetrain.audit.shell.values import Arg
from securetrain.audit.subjects.launches.collect.fetches import REVISIONS, unpinned_models
from securetrain.audit.subjects.launches.collect.options import (
    Option,
    options_of,
    reading,
    rest_of,
    templated,
    value_of,
)
from securetrain.audit.subjects.launches.facts import (
    Address,
    HostKeys,
    Rendezvous,
    Revision,
    Scope,
    Service,
    Switch,
    Tool,
)

_ADDRESS_OPTIONS: Final = frozenset(
    {"master-addr", "rdzv-endpoint", "main-process-ip", "dist-init-addr", "dist-url", "init-method"}
)
_ADDRESS_VARIABLES: Final = frozenset(
    {"MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "MAIN_PROCESS_IP", "RDZV_ENDPOINT"}
)
_SGLANG: Final = "dist-init-addr"
"""Its value is one of ``tcp://`` that says so only inside."""
_METHODS: Final = frozenset(
    {"dist-url", "init-method", "dist-init-method", "ddp-init-method", _SGLANG}
)
_LAUNCHER: Final = re.compile(
    r"(?:torch\.distributed\.(?:run|launch|elastic)|accelerate\.commands\.launch"
    r"|deepspeed\.launcher\.runner)\Z"
)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}\Z")
_TRUE: Final = frozenset({"1", "true", "yes", "on", "y", "t"})
_UNCHECKED: Final = re.compile(
    r"StrictHostKeyChecking[=\s\"']+(?:no|off)\b|UserKnownHostsFile[=\s\"']+/dev/null",
    re.IGNORECASE,
)
_CHECKED: Final = re.compile(r"StrictHostKeyChecking[=\s\"']+(?:yes|accept-new)\b", re.IGNORECASE)
_QUOTES: Final = frozenset({"echo", "printf", "set", "grep", "sed", "awk", *SHELLS})
"""Programs whose words are no options of theirs."""
_OWN: Final = ("launch.rendezvous", "launch.addresses", "launch.services")
_OF_SCRIPT: Final = ("launch.revisions", "launch.remote_code")
_OURS: Final = "securetrain"
"""The backend whose workers' store is authenticated."""
_TRAINERS: Final = frozenset({*PYTHONS, "composer", "tune", "axolotl", "vllm", "sglang"})
_READERS: Final = frozenset({"grep", "egrep", "rg"})


@dataclass(slots=True)
class Seen:
    """The records of a launch."""

    rendezvous: list[Rendezvous] = field(default_factory=list)
    addresses: list[Address] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    revisions: list[Revision] = field(default_factory=list)
    remote_code: list[Switch] = field(default_factory=list)
    mpi_as_root: list[Switch] = field(default_factory=list)
    host_keys: list[HostKeys] = field(default_factory=list)

    def meets(
        self,
        program: str,
        at: Location,
        backend: Reading[str],
        protocol: Reading[str] | None = None,
    ) -> None:
        """Note where ranks meet."""
        how = protocol or absent(at)
        self.rendezvous.append(Rendezvous(at=at, program=program, backend=backend, protocol=how))


_SWITCHES: Final[Mapping[str, Callable[[Seen], list[Switch]]]] = {
    **dict.fromkeys(
        ("HF_DATASETS_TRUST_REMOTE_CODE", "TRUST_REMOTE_CODE"), lambda seen: seen.remote_code
    ),
    **dict.fromkeys(
        ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"), lambda seen: seen.mpi_as_root
    ),
}
"""Variables that turn something on."""


def observe(commands: Commands, variables: Mapping[str, Arg] | None = None) -> Seen:
    """The records of these commands, and of the variables that their surroundings set."""
    seen = Seen()
    for name, value in (*(variables or {}).items(), *commands.settings):
        _setting(seen, name, value)
    for call in commands.calls:
        options = options_of(call)
        for look in _looks(call.program):
            look(seen, call, options)
        if not call.opened and call.program not in _QUOTES:
            _any_program(seen, call, options)
        _host_keys(seen, call)
    for call, body in commands.bodies:
        seen.host_keys.extend(_keys(body, call.program))
    seen.host_keys = _once(seen.host_keys)
    return seen


_VARIABLE: Final = re.compile(r"\w+(?:\[.*\])?|[@*#?$!-]")


def open_words(call: Call) -> Iterator[Open]:
    """Yield the word that may be any options of a call, with what these could say."""
    rest = next(rest_of(call), None)
    if rest is None:
        return
    if family_of(call.program) == "mpirun":
        bears_on: tuple[str, ...] = ("launch.mpi_as_root", "launch.host_keys")
    elif _looks(call.program) or call.program in _TRAINERS:
        bears_on = _OF_SCRIPT if rest.opens[0][:1] in "@*" else (*_OWN, *_OF_SCRIPT)
    elif call.program in {"ssh", "scp", "rsync"}:
        bears_on = ("launch.host_keys",)
    else:
        return
    name = rest.opens[0]
    if not _VARIABLE.fullmatch(name):  # a template writes it, where a variable is no text
        bears_on = (*bears_on, "launch.secrets")
    yield Open(rest.at, f"${name} may be any options of {call.program}", bears_on=bears_on)


def _once(found: list[HostKeys]) -> list[HostKeys]:
    """One record for each word: a wrapper and the program that it runs both have it."""
    first: dict[Location, HostKeys] = {}
    for one in found:
        kept = first.setdefault(one.at, one)
        if kept.checked.value and not one.checked.value:
            first[one.at] = one
    return list(first.values())


def _keys(arg: Arg, program: str) -> list[HostKeys]:
    """The word of a text about host keys: the first word that checks none, else the first."""
    found = _UNCHECKED.search(arg.text)
    good = None if found else _CHECKED.search(arg.text)
    said = found or good
    if said is None:
        return []
    at = arg.place(said.start())
    return [HostKeys(at=at, program=program, checked=ok(good is not None, at))]


# --- variables -----------------------------------------------------------------------------------


def _setting(seen: Seen, name: str, value: Arg) -> None:
    if name in _ADDRESS_VARIABLES:
        scope = reading(value, scope_of)
        seen.addresses.append(Address(at=value.at, program=name, name=name, scope=scope))
    elif switches := _SWITCHES.get(name):
        on = reading(value, lambda text: text.strip().lower() in _TRUE)
        switches(seen).append(Switch(at=value.at, program=name, name=name, enabled=on))
    elif name == "PET_RDZV_BACKEND":
        seen.meets(name, value.at, reading(value, str))
    seen.host_keys.extend(_keys(value, name))


def scope_of(text: str) -> Scope:
    """The reach of HOST, HOST:PORT, [HOST]:PORT or SCHEME://HOST:PORT."""
    host = text.strip().strip("\"'")
    host = host.split("://", 1)[-1].split("/", 1)[0]
    if host.startswith("["):
        host = host[1:].split("]", 1)[0]
    elif host.count(":") == 1:
        host = host.split(":", 1)[0]
    if host in {"", "*", "0", "0.0.0.0", "::"}:  # noqa: S104 - this is what is looked for
        return Scope.ANY
    if host == "localhost":
        return Scope.LOOPBACK
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return Scope.NAME
    if address.is_unspecified:
        return Scope.ANY
    if address.is_loopback:
        return Scope.LOOPBACK
    return Scope.PUBLIC if address.is_global else Scope.PRIVATE


# --- any program ---------------------------------------------------------------------------------


def _any_program(seen: Seen, call: Call, options: list[Option]) -> None:
    if call.program not in {"huggingface-cli", "hf"}:
        seen.revisions.extend(unpinned_models(call, options))
    for option in options:
        if option.name == "trust-remote-code":
            seen.remote_code.append(_turned(call, option, _separate_switch(option)))
        elif option.name in REVISIONS and option.value is not None:
            commit = option.reading(lambda text: bool(_COMMIT.match(text)))
            seen.revisions.append(
                Revision(at=option.at, program=call.program, name=option.name, commit=commit)
            )
        elif option.name in _ADDRESS_OPTIONS and option.text[:6] not in {"", "env://", "file:/"}:
            scope = option.reading(scope_of)
            seen.addresses.append(
                Address(at=option.at, program=call.program, name=option.name, scope=scope)
            )
        if option.name in _METHODS:
            _method(seen, call, option)


def _turned(call: Call, option: Option, on: Reading[bool]) -> Switch:
    return Switch(at=option.at, program=call.program, name=option.name, enabled=on)


def _separate_switch(option: Option) -> Reading[bool]:
    """A word behind an option is its value only when it can be one of a switch."""
    text = option.text.strip().lower()
    if option.own or option.value is None:
        return option.reading(lambda _: text in _TRUE or not text)
    off = not option.opens and text in {"0", "false", "no", "off", "n", "f"}
    return ok(not off, option.value.at if off or text in _TRUE else option.at)


def _method(seen: Seen, call: Call, option: Option) -> None:
    scheme, written, _ = option.text.partition("://")
    if not written and option.name == _SGLANG:
        scheme = "tcp"
    if scheme in {"tcp", "env"}:
        seen.meets(call.program, option.at, ok(scheme, option.place))
    elif option.opens:
        seen.meets(call.program, option.at, templated(option.opens, option.place))


def _host_keys(seen: Seen, call: Call) -> None:
    if call.program.lower() == "stricthostkeychecking" and call.args:  # a line of an ssh_config
        checked = ok(call.args[0].text.lower() not in {"no", "off"}, call.at)
        seen.host_keys.append(HostKeys(at=call.at, program="ssh_config", checked=checked))
    if call.program in _READERS:
        return
    if call.program in {"echo", "printf"} and not call.targets:
        return
    for arg in call.args:
        if call.program in SHELLS and re.search(r"[\n;&|]", arg.text):
            continue  # its commands are calls of their own
        if keys := _keys(arg, call.program):
            seen.host_keys.extend(keys)
            return


# --- launchers -----------------------------------------------------------------------------------


def _module(options: list[Option]) -> str:
    """The module that Python runs; empty for a file."""
    module = value_of(options[:6], "m")
    return module.text if module else ""


def _torchrun(seen: Seen, call: Call, options: list[Option]) -> None:
    if call.program == "python" and not _LAUNCHER.match(_module(options)):
        return
    backend = value_of(options, "rdzv-backend")
    group = _static(call, options)
    if value_of(options, "standalone"):
        seen.meets(call.program, call.at, ok("local", call.at))
    elif backend is not None:
        etcd = backend.text.startswith("etcd")
        protocol = _etcd_protocol(options, backend.place) if etcd else None
        seen.meets(call.program, backend.at, backend.reading(str), protocol)
        alone = bool(backend.opens) or backend.text in {"static", _OURS}
        if group.value == "static" and not alone:  # the workers meet once more
            seen.meets(call.program, group.at or call.at, ok("env", group.at))
    elif rest := next((one for one in rest_of(call) if one.opens[0][:1] not in "@*"), None):
        seen.meets(call.program, rest.at, templated(rest.opens, rest.at))
    else:
        seen.meets(call.program, group.at or call.at, group)


def _static(call: Call, options: list[Option]) -> Reading[str]:
    """The default of torchrun: nothing meets anybody on one node."""
    nodes = value_of(options, "nnodes", "num-machines", "num-nodes")
    address = value_of(options, "master-addr", "main-process-ip", "rdzv-endpoint")
    if hosts := value_of(options, "hostfile"):  # deepspeed, on what it lists
        return ok("static", hosts.at)
    if nodes is not None and nodes.opens and address is None:
        return templated(nodes.opens, nodes.place)
    if nodes is not None and nodes.text in {"1", "1:1"}:
        return ok("local", nodes.place)
    if nodes is None and (address is None or scope_of(address.text) is Scope.LOOPBACK):
        return ok("local", address.place if address else call.at)
    named = address or nodes
    return ok("static", named.place if named else call.at)


def _etcd_protocol(options: list[Option], at: Location) -> Reading[str]:
    conf = value_of(options, "rdzv-conf")
    if conf is None:
        return ok("http", at)
    if conf.opens:
        return templated(conf.opens, conf.place)
    safe = "protocol=https" in conf.text and "cert=" in conf.text
    return ok("https" if safe else "http", conf.place)


def _env_method(seen: Seen, call: Call, options: list[Option]) -> None:
    """A Python program of which several run, and that finds an address in its environment."""
    module = _module(options)
    files = (one.text for one in call.args if one.text[:1] != "-")
    program = module or next(files, "")
    if "MASTER_ADDR" not in call.environment or any(one.name in _METHODS for one in options):
        return
    if not (program.endswith(".py") or module) or program.startswith(("torch.distributed", "pip")):
        return
    backend = _several(call)
    if backend.value != "local":
        seen.meets(call.program, call.at, backend)


def _several(call: Call) -> Reading[str]:
    """``env`` where a launcher starts several tasks; unknown where it does not say how many."""
    starters = [one for one in call.within if family_of(one.program) in {"srun", "mpirun"}]
    if all(one.program in {"sbatch", "salloc"} for one in starters):
        return ok("local", call.at)
    for outer in reversed(starters):
        counts = [
            one
            for one in options_of(outer)
            if one.name in {"n", "np", "ntasks", "ntasks-per-node", "nodes", "ppn", "npernode"}
        ]
        if any(one.text.isdigit() and int(one.text) > 1 for one in counts):
            return ok("env", call.at)
        if unknown := next((one for one in counts if one.opens), None):
            return templated(unknown.opens, unknown.place)
        if counts:
            return ok("local", call.at)
        if family_of(outer.program) == "mpirun":
            return ok("env", call.at)
    return templated(("the number of tasks",), call.at)


def _etcd(seen: Seen, call: Call, options: list[Option]) -> None:
    urls = value_of(options, "listen-client-urls")
    if urls is None:
        return  # its default is http on loopback
    protocol: Reading[str]
    if urls.opens and "://" not in urls.text:
        protocol = templated(urls.opens, urls.place)
    else:
        outside = [
            one
            for one in urls.text.split(",")
            if one.startswith("http://") and scope_of(one) is not Scope.LOOPBACK
        ]
        certificates = value_of(options, "client-cert-auth")
        safe = not outside and (certificates is not None or "https://" not in urls.text)
        protocol = ok("https" if safe else "http", urls.place)
    seen.meets(call.program, urls.place, ok("etcd", urls.place), protocol)


def _mpi(seen: Seen, call: Call, options: list[Option]) -> None:
    if option := value_of(options, "allow-run-as-root"):
        seen.mpi_as_root.append(_turned(call, option, ok(True, option.at)))


# --- services ------------------------------------------------------------------------------------


def _serves(  # noqa: PLR0917 - the parts of a service
    seen: Seen,
    call: Call,
    tool: Tool,
    scope: Reading[Scope],
    secret: Reading[bool] | None = None,
    config: Reading[str] | None = None,
) -> None:
    seen.services.append(
        Service(
            at=call.at,
            program=call.program,
            tool=tool,
            scope=scope,
            secret=secret or absent(call.at),
            config=config or absent(call.at),
        )
    )


def _listens(call: Call, options: list[Option], *names: str) -> Reading[Scope]:
    """The reach of a service that listens on loopback unless it is told."""
    if option := value_of(options, *names):
        return option.reading(scope_of)
    rest = next(rest_of(call), None)
    return templated(rest.opens, rest.at) if rest else ok(Scope.LOOPBACK, call.at)


def _tensorboard(seen: Seen, call: Call, options: list[Option]) -> None:
    everywhere = value_of(options, "bind-all")
    scope = ok(Scope.ANY, everywhere.at) if everywhere else _listens(call, options, "host")
    _serves(seen, call, Tool.TENSORBOARD, scope)


_JUPYTER_SECRETS: Final = re.compile(
    r"(?:notebookapp|serverapp|labapp|identityprovider|passwordidentityprovider)\."
    r"(?:token|password|hashed-password)\Z"
)


def _jupyter(seen: Seen, call: Call, options: list[Option]) -> None:
    verbs = {"lab", "notebook", "server", "nbclassic"}
    if call.program == "jupyter" and call.args and call.args[0].text not in verbs:
        return
    secret: Reading[bool] = ok(True, call.at)
    for option in options:
        if not _JUPYTER_SECRETS.match(option.name):
            continue
        if option.opens:
            secret = templated(option.opens, option.place)
        elif option.name.endswith(".token") and not option.text.strip("'\""):
            secret = ok(False, option.place)
            break
    scope = _listens(call, options, "ip", "serverapp.ip", "notebookapp.ip")
    _serves(seen, call, Tool.JUPYTER, scope, secret)


def _ray(seen: Seen, call: Call, options: list[Option]) -> None:
    if call.args and call.args[0].text == "start" and value_of(options, "head"):
        _serves(seen, call, Tool.RAY, _listens(call, options, "dashboard-host"))


def _debugger(seen: Seen, call: Call, options: list[Option]) -> None:
    listens = value_of(options, "listen")
    if call.program == "python" and _module(options) != "debugpy":
        return
    if call.program == "gdbserver":
        if place := next((arg for arg in call.args if ":" in arg.text), None):
            _serves(seen, call, Tool.DEBUGGER, reading(place, scope_of))
    elif listens and listens.value:  # debugpy listens on loopback when it is given a port alone
        scope = listens.reading(lambda one: Scope.LOOPBACK if one.isdigit() else scope_of(one))
        _serves(seen, call, Tool.DEBUGGER, scope)


def _sshd(seen: Seen, call: Call, _: list[Option]) -> None:
    if any(re.fullmatch(r"-[Tt]+", arg.text) for arg in call.args):
        return  # it only tests its configuration
    own = next(
        (b for a, b in zip(call.args, call.args[1:], strict=False) if re.match(r"-\w*f\Z", a.text)),
        None,
    )
    config: Reading[str] = ok(own.text, own.at) if own else absent(call.at, "the system's")
    _serves(seen, call, Tool.SSHD, ok(Scope.ANY, call.at), config=config)


def _started(seen: Seen, call: Call, _: list[Option]) -> None:
    """``service ssh start`` and ``systemctl start sshd``, without the configuration's file."""
    words = {arg.text.removesuffix(".service") for arg in call.args}
    if words & {"ssh", "sshd"} and words & {"start", "restart"}:
        nothing: Reading[str] = absent(call.at, "the system's")
        _serves(seen, call, Tool.SSHD, ok(Scope.ANY, call.at), config=nothing)


def _download(seen: Seen, call: Call, options: list[Option]) -> None:
    if not call.args or call.args[0].text not in {"download", "snapshot-download"}:
        return
    if value_of(options, "revision") is None:
        commit = ok(False, call.at)
        seen.revisions.append(
            Revision(at=call.at, program=call.program, name="download", commit=commit)
        )


_Look = Callable[[Seen, Call, list[Option]], None]
_OF_PROGRAM: Final[Mapping[str, tuple[_Look, ...]]] = {
    "torchrun": (_torchrun,),
    "accelerate": (_torchrun,),
    "deepspeed": (_torchrun,),
    "python": (_torchrun, _debugger, _env_method),
    "etcd": (_etcd,),
    "mpirun": (_mpi,),
    "tensorboard": (_tensorboard,),
    **dict.fromkeys(
        ("jupyter", "jupyter-lab", "jupyter-notebook", "jupyter-server", "start-notebook.sh",
         "start-notebook.py", "start-singleuser.sh"),
        (_jupyter,),
    ),
    "ray": (_ray,),
    **dict.fromkeys(("gdbserver", "debugpy", "lldb-server"), (_debugger,)),
    "sshd": (_sshd,),
    **dict.fromkeys(("service", "systemctl"), (_started,)),
    **dict.fromkeys(("huggingface-cli", "hf"), (_download,)),
}  # fmt: skip


def _looks(program: str) -> tuple[_Look, ...]:
    return _OF_PROGRAM.get(program) or _OF_PROGRAM.get(family_of(program), ())
