# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Collectors against this machine, and against trees that the tests make."""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.functions.paths import path_is_safe
from securetrain.audit.facts import Outcome
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.node.collect import accounts, network, paths, software, system
from securetrain.audit.subjects.node.collect.host import (
    Host,
    TooMuchError,
    outcome_of,
    reading,
    section,
)
from securetrain.audit.subjects.node.collect.node import collect_node
from securetrain.audit.subjects.node.facts.node import EnvKind, PathRole, Scope, decode_facts
from securetrain.core.vocabulary import State


@pytest.fixture
def machine(tmp_path):
    """A Host below tmp_path: write files into it."""

    def make(files=(), environ=None, **kwargs):
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        for name, text in dict(files).items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (root / "proc/self/ns").mkdir(parents=True, exist_ok=True)
        if not (root / "proc/self/ns/pid").is_symlink():
            (root / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
        defaults = {
            "environ": environ or {},
            "search_path": (),
            "uid": os.getuid(),
            "gid": os.getgid(),
            "user": "me",
            "home": Path("/home/me"),
            "account_home": Path("/home/me"),
            "root": root,
        }
        return Host(**(defaults | kwargs))

    return make


MOUNTS = "/proc/self/mountinfo"
OUTSIDE = {MOUNTS: "1 0 8:1 / / rw - ext4 /dev/sda rw\n", "/proc/self/cgroup": "0::/user.slice\n"}
"""What says that this is no container, but for the pid namespace, which `machine` links."""


def mount(target, fstype, options, root="/"):
    return f"9 1 0:9 {root} {target} {options} shared:1 - {fstype} none {options}\n"


def test_this_node_is_collected_whole_and_small(now):
    facts = collect_node({"PATH": "/usr/bin", "HOME": "/nonexistent"}, now=now)
    assert len(facts.to_json()) < 200 << 10
    assert decode_facts(facts.to_json(), "x") == facts
    for name in ("sysctls", "mounts", "listeners", "env", "paths", "packages", "python"):
        assert getattr(facts.node, name).outcome is Outcome.OK, name
    assert (facts.node.packages.value or {})["click"].version
    assert facts.collected.at == now


def test_a_machine_without_anything_passes_nothing_by_default(now, tmp_path, fixtures):
    facts = collect_node({}, now=now, root=tmp_path, search_path=())
    result = audit(facts_of([facts]), load_checks(), fixtures.policy, now)
    hopeful = {f.check for f in result.of(State.PASS)}
    # only what the (empty) environment and search path themselves answer, and the kernel by netlink
    assert hopeful <= {
        "ST-SEC-001", "ST-SEC-003", "ST-SEC-005", "ST-SEC-006", "ST-FAB-004", "ST-FAB-006",
        "ST-FAB-008", "ST-FAB-021", "ST-FAB-022", "ST-SUP-011", "ST-SUP-012", "ST-SUP-013",
        "ST-SUP-014", "ST-SUP-015", "ST-SUP-009", "ST-SUP-017", "ST-SUP-023", "ST-CKP-005",
        "ST-NET-002",
    }  # fmt: skip
    assert result.exit_code != 0


# --- how reading ends ----------------------------------------------------------------------------


def test_outcomes():
    assert outcome_of(PermissionError(13, "no", "f"))[0] is Outcome.DENIED
    assert outcome_of(FileNotFoundError(2, "no", "f"))[0] is Outcome.ABSENT
    assert outcome_of(OSError(5, "no", "f"))[0] is Outcome.ERROR
    assert outcome_of(TooMuchError("x"))[0] is Outcome.ERROR
    assert reading(lambda: 7).value == 7
    assert reading(lambda: int("x")).outcome is Outcome.ERROR


def test_a_file_that_is_too_long_is_an_error_and_not_a_part(machine):
    host = machine({"/f": "x" * 100})
    assert host.text("/f", 100) == "x" * 100
    with pytest.raises(TooMuchError):
        host.text("/f", 99)


def test_a_collector_that_hangs_costs_its_own_section_only(machine):
    def hangs(_):
        time.sleep(30)

    result = section(hangs, machine(), 0.05)
    assert result.outcome is Outcome.TIMEOUT
    assert result.value is None


def test_a_collector_that_breaks_knows_nothing(machine):
    def breaks(_):
        raise KeyError("x")

    assert section(breaks, machine(), 1.0).outcome is Outcome.ERROR


# --- network -------------------------------------------------------------------------------------


def real(**environ):
    return Host(
        environ=environ,
        search_path=(),
        uid=os.getuid(),
        gid=os.getgid(),
        user="me",
        home=Path("/nonexistent"),
    )


def test_listeners_are_seen_with_scope_owner_and_program():
    with socket.create_server(("0.0.0.0", 0)) as anywhere, socket.create_server(LOCAL) as here:
        ports = [s.getsockname()[1] for s in (anywhere, here)]
        found = {x.port: x for x in network.listeners(real())}
    wide, local = (found[port] for port in ports)
    assert (wide.scope, local.scope) == (Scope.ANY, Scope.LOOPBACK)
    assert wide.address == "0.0.0.0"
    assert local.address == "127.0.0.1"
    assert wide.uid == os.getuid()
    assert wide.process is not None
    assert wide.process.pid == os.getpid()
    assert wide.process.loads_torch is False or "torch" in sys.modules


LOCAL = ("127.0.0.1", 0)
TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"  # noqa: E501


def row(address, port, state="0A", uid=1000, inode=77):
    return (
        f"   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000"
        f" 00000000 {uid:5d}        0 {inode} 1 0 100 0 0 10 0\n"
    )


def test_the_kernels_tables_are_read(machine):
    host = machine(
        {
            "/proc/self/net/tcp": TCP
            + row("0100007F", 631)
            + row("0400000A", 80)
            + row("0400000A", 81, state="01"),
            "/proc/self/net/tcp6": TCP
            + row("0" * 32, 29500)
            + row("00000000000000000000000001000000", 22)
            + row("0000000000000000FFFF00000100007F", 23),
            "/proc/self/net/udp": TCP
            + row("00000000", 5353, state="07", inode=78)
            + row("0400000A", 40000, state="01", inode=79),
            "/proc/self/net/udp6": TCP,
            "/proc/12/comm": "python\n",
            "/proc/12/maps": "7f00-7f01 r-xp 0 0:0 1 /opt/torch/lib/libtorch_cpu.so\n",
        }
    )
    fds = host.root / "proc/12/fd"
    fds.mkdir()
    (fds / "3").symlink_to("socket:[77]")
    found = {x.port: x for x in network.listeners(host)}
    assert {p: (x.address, x.scope.value) for p, x in found.items()} == {
        631: ("127.0.0.1", "loopback"),
        80: ("10.0.0.4", "address"),
        29500: ("::", "any"),
        22: ("::1", "loopback"),
        23: ("127.0.0.1", "loopback"),
        5353: ("0.0.0.0", "any"),
    }
    assert (found[5353].protocol, found[5353].label) == ("udp", "0.0.0.0:5353/udp")
    assert found[5353].kernel is False, "not root's, so not the kernel's"
    owner = found[29500].process
    assert owner is not None
    assert (owner.loads_torch, owner.name) == (True, "python")


def test_the_interfaces_of_this_namespace_need_no_sys():
    found = {interface.name: interface for interface in network.interfaces(real())}
    assert found["lo"].loopback is True
    for name, interface in found.items():
        for file, value in (
            (f"ipv4/conf/{name}/rp_filter", interface.rp_filter),
            (f"ipv4/conf/{name}/accept_redirects", interface.accept_redirects),
            (f"ipv4/conf/{name}/forwarding", interface.forwarding),
            (f"ipv6/conf/{name}/accept_ra", interface.accept_ra),
            (f"ipv6/conf/{name}/forwarding", interface.forwarding6),
        ):
            path = Path("/proc/sys/net", file)
            if path.exists():
                assert int(path.read_text()) == value, path


# --- system --------------------------------------------------------------------------------------


def test_sysctls_have_an_outcome_each(machine):
    host = machine(
        {"/proc/sys/kernel/yama/ptrace_scope": "2\n", "/proc/sys/fs/protected_fifos": "x"}
    )
    found = system.sysctls(host)
    assert found["kernel.yama.ptrace_scope"].value == 2
    assert found["fs.protected_fifos"].outcome is Outcome.ERROR
    assert found["fs.protected_symlinks"].outcome is Outcome.ERROR, "it may be a container"
    bare = system.sysctls(machine(OUTSIDE))
    assert bare["fs.protected_symlinks"].outcome is Outcome.ABSENT


def test_the_topmost_mount_counts_and_options_lose_their_values(machine):
    host = machine(
        {
            MOUNTS: mount("/tmp", "tmpfs", "rw,nosuid,nodev")
            + mount("/tmp", "tmpfs", "rw,size=9")
            + mount("/home/my\\040data", "nfs4", "rw,sec=krb5p,clientaddr=10.0.0.9")
            + mount("/proc", "proc", "rw")
        }
    )
    found = {m.target: m for m in system.mounts(host)}
    assert found["/tmp"].options == ("rw", "size")
    assert set(found) == {"/proc", "/tmp"}
    assert system.filesystem_of(host, "/home/my data/token") == "nfs4"
    assert system.filesystem_of(host, "/tmp/x") == "tmpfs"


def test_kernel_keeps_security_words_only(machine):
    host = machine(
        {
            "/proc/sys/kernel/osrelease": "6.1.0\n",
            "/proc/cmdline": "root=/dev/sda luks.key=hunter2 mitigations=off lsm=apparmor\n",
            "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
            MOUNTS: mount("/sys/kernel/security", "securityfs", "rw"),
        }
    )
    kernel = system.kernel(host)
    assert kernel.cmdline.value == ("mitigations=off",)
    assert kernel.lockdown.value == "integrity"
    assert kernel.lsm.outcome is Outcome.ABSENT
    hidden = system.kernel(machine({MOUNTS: mount("/", "ext4", "rw")}, root=host.root))
    assert hidden.lsm.outcome is Outcome.ERROR, "securityfs is not mounted: nothing is known"


def test_devices_are_absent_only_where_dev_is_the_kernels_own(machine):
    absent = system.hardware(machine({MOUNTS: mount("/dev", "devtmpfs", "rw"), "/dev/x": ""}))
    assert absent.nvidia_driver.outcome is Outcome.ABSENT
    assert absent.tpm.outcome is Outcome.ABSENT
    assert absent.tee.outcome is Outcome.ABSENT
    inside = system.hardware(machine({MOUNTS: mount("/dev", "tmpfs", "rw")}))
    assert inside.tpm.outcome is Outcome.ERROR
    assert "seen from inside a container" in inside.tpm.reason
    fake = machine({MOUNTS: mount("/dev", "devtmpfs", "rw"), "/dev/tpmrm0": ""})
    assert system.hardware(fake).tpm.outcome is Outcome.ERROR, "a file is no device"


def test_a_device_is_found_whether_or_not_it_may_be_opened(machine):
    host = machine({MOUNTS: mount("/dev", "devtmpfs", "rw"), "/dev/x": ""})
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    os.mknod(host.root / "dev/tpmrm0", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    assert system.hardware(host).tpm.value == "/dev/tpmrm0"


def test_shared_memory_of_training_only(machine):
    host = machine({"/dev/shm/nccl-1": "", "/dev/shm/pulse-2": ""})
    (host.root / "dev/shm/nccl-1").chmod(0o644)
    (found,) = system.shm(host)
    assert (found.name, found.mode) == ("nccl-1", "0644")


# --- paths ---------------------------------------------------------------------------------------


def fact_of(host, role):
    return next(f for f in paths.paths(host) if f.role is role)


def test_the_cache_that_anybody_can_create_is_found(machine):
    """The plain default: torch uses /tmp/torchinductor_USER whoever made it."""
    host = machine({"/tmp/.keep": ""})
    (host.root / "tmp").chmod(0o1777)
    fact = fact_of(host, PathRole.INDUCTOR_CACHE)
    assert fact.path == "/tmp/torchinductor_me"
    assert fact.outcome is Outcome.ABSENT
    good, why = path_is_safe(fact, os.getuid())
    assert good.value is False
    assert "create it first" in why
    # made by its user before anybody else could: safe, because /tmp is sticky
    (host.root / "tmp/torchinductor_me").mkdir(mode=0o700)
    good, _ = path_is_safe(fact_of(host, PathRole.INDUCTOR_CACHE), os.getuid())
    assert good.value is True
    # and not when others may write to it
    (host.root / "tmp/torchinductor_me").chmod(0o777)
    good, why = path_is_safe(fact_of(host, PathRole.INDUCTOR_CACHE), os.getuid())
    assert good.value is False


def test_a_link_on_the_way_is_followed_and_its_target_judged(machine):
    host = machine({"/shared/x": ""}, environ={"TRITON_CACHE_DIR": "/cache/triton"})
    (host.root / "shared").chmod(0o777)
    (host.root / "cache").symlink_to("/shared")
    fact = fact_of(host, PathRole.TRITON_CACHE)
    assert [link.path for link in fact.chain] == ["/", "/cache", "/shared"]
    assert path_is_safe(fact, os.getuid())[0].value is False


def test_links_in_a_circle_end(machine):
    host = machine({"/x": ""}, environ={"TORCH_EXTENSIONS_DIR": "/a/b"})
    (host.root / "a").symlink_to("/a")
    fact = fact_of(host, PathRole.TORCH_EXTENSIONS)
    assert fact.outcome is Outcome.ERROR
    assert path_is_safe(fact, os.getuid())[0].value is None


def test_a_group_with_nobody_else_in_it_is_private(machine):
    uid, gid = os.getuid(), os.getgid()
    files = {
        "/etc/passwd": f"root:x:0:0::/:\nme:x:{uid}:{gid}::/:\nother:x:4242:4242::/:\n",
        "/etc/group": f"mine:x:{gid}:\n",
        "/opt/bin/.keep": "",
    }
    host = machine(files, environ={"PATH": "/opt/bin"})
    (host.root / "opt/bin").chmod(0o775)
    assert path_is_safe(fact_of(host, PathRole.EXECUTABLES), uid)[0].value is True
    shared = machine(files | {"/etc/group": f"mine:x:{gid}:other\n"}, environ={"PATH": "/opt/bin"})
    assert path_is_safe(fact_of(shared, PathRole.EXECUTABLES), uid)[0].value is False
    unknown = machine(files | {"/etc/group": "x:x:1:\n"}, environ={"PATH": "/opt/bin"})
    assert path_is_safe(fact_of(unknown, PathRole.EXECUTABLES), uid)[0].value is None


def test_what_torch_itself_would_use(machine):
    environ = {"TMPDIR": "/scratch", "LOGNAME": "a/b", "TRITON_HOME": "/t", "XDG_CACHE_HOME": "/c"}
    found = {(f.role, f.path) for f in paths.paths(machine(environ=environ))}
    assert (PathRole.INDUCTOR_CACHE, "/scratch/torchinductor_a_b") in found
    assert (PathRole.TRITON_CACHE, "/scratch/torchinductor_a_b/triton") in found
    assert (PathRole.TRITON_CACHE, "/t/.triton/cache") in found
    assert (PathRole.TORCH_EXTENSIONS, "/c/torch_extensions") in found


def test_every_entry_of_a_search_path_and_the_empty_one(machine):
    host = machine(environ={"LD_LIBRARY_PATH": "/a:", "LD_PRELOAD": "/p.so /q.so"})
    found = [(f.role, f.path, f.outcome) for f in paths.paths(host)]
    assert (PathRole.LIBRARIES, ".", Outcome.ERROR) in found
    assert (PathRole.PRELOAD, "/q.so", Outcome.ABSENT) in found


def test_too_many_paths_are_not_judged_in_part(machine):
    host = machine(environ={"PATH": ":".join(f"/d{i}" for i in range(400))})
    assert section(paths.paths, host, 5.0).outcome is Outcome.ERROR


# --- accounts ------------------------------------------------------------------------------------


def test_secrets_are_recorded_by_name_only(machine):
    environ = {
        "HF_TOKEN": "hf_abcdef", "WANDB_API_KEY": "k", "DB_PASSWORD": "p", "NCCL_DEBUG": "WARN",
        "HF_TOKEN_PATH": "/x", "TOKENIZERS_PARALLELISM": "1", "PATH": "/usr/bin", "PWD": "/",
        "EDITOR": "vi", "TORCH_LOGS": "x",
    }  # fmt: skip
    host = machine(environ=environ)
    found = {v.name: v for v in accounts.env(host)}
    secret = {name for name, v in found.items() if v.kind is EnvKind.SECRET}
    assert secret == {"HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD"}
    assert all(found[name].value is None for name in secret)
    assert set(found) == secret | {"NCCL_DEBUG", "PATH", "TORCH_LOGS"}


def test_no_value_of_a_secret_reaches_the_document(now):
    environ = {"HF_TOKEN": "hf_SENTINEL", "AWS_SECRET_ACCESS_KEY": "SENTINEL2", "HOME": "/x"}
    text = collect_node(environ, now=now).to_json()
    assert b"HF_TOKEN" in text
    assert b"SENTINEL" not in text


def test_credential_files_owner_mode_and_filesystem(machine):
    host = machine(
        {
            "/home/me/.netrc": "machine x password SENTINEL\n",
            "/home/me/.ssh/id_ed25519": "",
            "/home/me/.ssh/id_ed25519.pub": "",
            MOUNTS: mount("/home", "nfs4", "rw"),
        }
    )
    (host.root / "home/me/.netrc").chmod(0o640)
    found = {f.path: f for f in accounts.secrets(host)}
    assert found["/home/me/.netrc"].mode == "0640"
    assert found["/home/me/.netrc"].network_filesystem is True
    assert "/home/me/.ssh/id_ed25519.pub" not in found
    assert found["/home/me/.ssh/id_ed25519"].outcome is Outcome.OK
    assert found["/home/me/.aws/credentials"].outcome is Outcome.ABSENT


# --- software ------------------------------------------------------------------------------------


def distribution(folder, name, version, record=(), entry_points=""):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in record))
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def test_packages_and_handlers(tmp_path, machine):
    site = tmp_path / "site-packages"
    distribution(site, "Some_Package", "1.2", entry_points="[torchrun.handlers]\nx = evil.mod:f\n")
    host = machine(search_path=(str(site),))
    assert software.packages(host)["some-package"].version == "1.2"
    (found,) = software.entry_points(host)
    assert (found.name, found.value, found.distribution) == ("x", "evil.mod:f", "some-package")


def test_a_planted_start_up_file_runs_in_every_python_and_is_found(tmp_path, machine):
    """The attack: a sitecustomize in a directory on the path runs before the first line."""
    site = tmp_path / "site-packages"
    distribution(site, "honest", "1.0", record=["honest.pth"])
    (site / "honest.pth").write_text("")
    marker = tmp_path / "ran"
    (site / "sitecustomize.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    environ = {"PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-c", ""], env=environ, check=True, timeout=30)
    assert marker.exists(), "the attack must work where nothing looks"
    found = {
        Path(f.path).name: f.claimed_by
        for f in software.python(machine(search_path=(str(site),))).startup_files
    }
    assert found == {"honest.pth": "honest", "sitecustomize.py": ""}


def test_the_operating_systems_own_start_up_file_is_claimed(tmp_path, machine):
    lib = tmp_path / "root/usr/lib/python3"
    lib.mkdir(parents=True)
    (lib / "sitecustomize.py").write_text("")
    listed = {"/var/lib/dpkg/info/libpython3-stdlib.list": f"{lib}/sitecustomize.py\n"}
    host = machine(listed, search_path=(str(lib),))
    assert [f.claimed_by for f in software.python(host).startup_files] == ["system"]


# --- against the real thing ----------------------------------------------------------------------

STORE = """
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
input()
"""


@pytest.mark.dist
def test_a_stock_tcpstore_that_was_told_loopback_is_found_on_all_addresses(now, fixtures):
    """TCPStore ignores the host that it is given (pytorch#173909); the port is nobody's default."""
    process = subprocess.Popen(
        [sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        facts = collect_node({"HOME": "/nonexistent"}, now=now)
    finally:
        process.communicate("\n", timeout=60)
    result = audit(facts_of([facts]), load_checks(), fixtures.policy, now)
    mine = [f for f in result.of(State.FAIL) if f.subject.endswith(f":{port}]")]
    mine = [f for f in mine if f.check != "ST-FAB-018"]  # that depends on this machine's filters
    assert {f.check for f in mine} == {"ST-RDZ-002", "ST-NET-011"}
    assert all(f.evidence["process"]["loads_torch"] for f in mine)


def test_a_distribution_without_metadata_makes_nothing_else_unknown(tmp_path, machine):
    site = tmp_path / "site-packages"
    distribution(site, "torch", "2.13.0")
    (site / "odd_one-1.0.dist-info").mkdir()
    found = software.packages(machine(search_path=(str(site),)))
    assert {name: one.version for name, one in found.items()} == {"torch": "2.13.0", "odd-one": ""}
