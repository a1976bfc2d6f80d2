# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A software TPM with a manufacturer of its own: for tests, and for a tour without hardware.

::

    with SoftwareTpm(folder) as tpm:
        tpm.boot(boot.digests(), measure_files({}, boot.registers()))
        agent = TpmAgent(folder / "agent", address=tpm.address)

swtpm speaks the TPM's own protocol, and swtpm_setup gives it endorsement keys (RSA-2048 and P-384)
with certificates of a local CA: everything but the hardware is real, so that what is proven holds
for nobody who can read this machine's disk. Verifiers label such a node test-only unless its CA is
enrolled.

Rules: absolute paths only (swtpm may change its directory); a process that was left behind, because
its parent was killed, is found by its pid file and ended before another starts; a power cut is
SIGKILL, which is all that a TPM hears of one.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

from securetrain.attest.node import Tpm
from securetrain.core import read_stat
from securetrain.core.errors import UsageError
from securetrain.core.files import make_private_dir, read_file
from securetrain.evidence.tpm import Hash
from securetrain.testing.measurement_lists import Measurement

COMMANDS: Final = ("swtpm", "swtpm_setup", "swtpm_localca")
_IMA_PCR: Final = 10
_SETUP_TIMEOUT: Final = 120.0
_START_TIMEOUT: Final = 20.0
_PROBE: Final = 1.0
_POLL: Final = 0.01
_SOCKET_PATH_LIMIT: Final = 100
"""Less than the 107 bytes that fit into a sockaddr_un."""
_PEM_LIMIT: Final = 64 << 10


def missing_commands() -> tuple[str, ...]:
    """The commands that are not installed."""
    return tuple(name for name in COMMANDS if shutil.which(name) is None)


class SoftwareTpm:
    """One machine's TPM, kept in a folder: started again, it is the same TPM."""

    def __init__(self, folder: Path, *, ca: Path | None = None, tcp: bool = False) -> None:
        """Make the TPM when the folder holds none.

        Args:
            folder: of this TPM alone.
            ca: folder of the manufacturer; TPMs that share it have one root. Default: its own.
            tcp: listen on a free port of the loopback instead of a socket file.

        Raises:
            UsageError: ST-USAG-004 when swtpm is not installed, ST-USAG-002 when it fails.
        """
        if absent := missing_commands():
            raise UsageError(
                "ST-USAG-004",
                f"not installed: {', '.join(absent)}",
                "software TPM",
                "install the packages swtpm and swtpm-tools: 'apt-get install swtpm swtpm-tools'"
                " (Debian, Ubuntu) or 'dnf install swtpm swtpm-tools' (Fedora, RHEL)",
            )
        self._folder = make_private_dir(folder.resolve())
        self._state = make_private_dir(self._folder / "state")
        self._ca = make_private_dir((ca or folder / "ca").resolve())
        self._pid_file = self._folder / "swtpm.pid"
        self._log = self._folder / "swtpm.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._sockets: Path | None = None
        self._port = _free_port() if tcp else 0
        self.address = ""
        """For `Tpm.open`, while it runs."""
        if not any(self._state.glob("*.permall")):
            self._manufacture()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def root_certificate(self) -> str:
        """PEM of the manufacturer's root."""
        return read_file(self._ca / "swtpm-localca-rootca-cert.pem", _PEM_LIMIT).decode()

    @property
    def issuer_certificate(self) -> str:
        """PEM of the CA that issued the endorsement key certificates."""
        return read_file(self._ca / "issuercert.pem", _PEM_LIMIT).decode()

    @property
    def pid(self) -> int:
        """Of the process, while it runs; else 0."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Switch it on; it is in use when this returns.

        Raises:
            UsageError: ST-USAG-002 when it does not come up, with the end of its log.
        """
        if self._process is not None:
            return
        self._end_leftover()
        server = self._server()
        command = [
            *("swtpm", "socket", "--tpm2"),
            *("--tpmstate", f"dir={self._state}"),
            *("--server", server),
            *("--flags", "not-need-init,startup-clear"),
            *("--pid", f"file={self._pid_file}"),
            *("--log", f"file={self._log},truncate"),
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._wait_until_up()
        except BaseException:
            self.power_cut()
            raise

    def stop(self) -> None:
        """Shut the machine down in order; a second time does nothing."""
        if self._process is None:
            return
        with contextlib.suppress(Exception), Tpm.open(self.address, _START_TIMEOUT) as tpm:
            tpm.shutdown()
        self._end(signal.SIGTERM)

    def power_cut(self) -> None:
        """Switch it off without a word."""
        self._end(signal.SIGKILL)

    def reboot(self, *, orderly: bool = True) -> None:
        """Switch it off and on: registers are zero, and the reset count goes up."""
        if orderly:
            self.stop()
        else:
            self.power_cut()
        self.start()

    def boot(
        self, digests: Iterable[tuple[int, bytes]] = (), files: Iterable[Measurement] = ()
    ) -> None:
        """Extend registers as firmware, boot loader and IMA do while a machine boots."""
        with Tpm.open(self.address, _START_TIMEOUT) as tpm:
            for pcr, digest in digests:
                tpm.pcr_extend(pcr, [(Hash.SHA256, digest)])
            for entry in files:
                tpm.pcr_extend(_IMA_PCR, [(Hash.SHA256, entry.extends)])

    def _manufacture(self) -> None:
        """Make endorsement keys, certificates and, the first time, the CA."""
        command = [
            *("swtpm_setup", "--tpm2", "--tpm-state", str(self._state)),
            *("--config", str(self._write_configuration())),
            *("--create-ek-cert", "--lock-nvram", "--pcr-banks", "sha256", "--overwrite"),
        ]
        try:
            result = subprocess.run(
                command, capture_output=True, timeout=_SETUP_TIMEOUT, check=False, cwd=self._folder
            )
        except subprocess.TimeoutExpired as error:
            raise self._failed("swtpm_setup does not end") from error
        if result.returncode != 0:
            output = (result.stdout + result.stderr).decode(errors="replace").strip()
            raise self._failed(f"swtpm_setup failed: {output[-500:]}")

    def _write_configuration(self) -> Path:
        """Configuration of swtpm_setup and of its CA; returns the former."""
        authority = self._folder / "localca.conf"
        authority.write_text(
            f"statedir = {self._ca}\n"
            f"signingkey = {self._ca}/signkey.pem\n"
            f"issuercert = {self._ca}/issuercert.pem\n"
            f"certserial = {self._ca}/certserial\n"
        )
        options = self._folder / "localca.options"
        options.write_text(
            "--platform-manufacturer securetrain\n"
            "--platform-version 1.0\n"
            "--platform-model software-tpm\n"
        )
        setup = self._folder / "setup.conf"
        setup.write_text(
            f"create_certs_tool={shutil.which('swtpm_localca')}\n"
            f"create_certs_tool_config={authority}\n"
            f"create_certs_tool_options={options}\n"
            "active_pcr_banks = sha256\n"
        )
        return setup

    def _server(self) -> str:
        """The argument of --server; our address goes with it."""
        if self._port:
            self.address = f"tcp:127.0.0.1:{self._port}"
            return f"type=tcp,port={self._port},bindaddr=127.0.0.1"
        path = self._folder / "tpm.sock"
        if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
            self._sockets = self._sockets or Path(tempfile.mkdtemp(prefix="securetrain-tpm-"))
            path = self._sockets / "tpm.sock"
        path.unlink(missing_ok=True)
        self.address = f"unix:{path}"
        return f"type=unixio,path={path},mode=0600"

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT
        while self._process.poll() is None and time.monotonic() < deadline:
            with (
                contextlib.suppress(Exception),
                Tpm.open(self.address, _PROBE) as tpm,
            ):
                tpm.pcr_update_counter()
                return
            time.sleep(_POLL)
        log = self._log.read_text(errors="replace")[-500:] if self._log.exists() else ""
        raise self._failed(f"swtpm did not come up: {log.strip() or 'nothing in its log'}")

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(_START_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._pid_file.unlink(missing_ok=True)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None

    def _end_leftover(self) -> None:
        """End a swtpm of this very folder that outlived its parent; never another process."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return
        if f"dir={self._state}".encode() not in command.split(b"\0"):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _START_TIMEOUT
        while _is_running(pid) and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _failed(self, what: str) -> UsageError:
        fix = f"see {self._log}; remove the folder to begin anew"
        return UsageError("ST-USAG-002", what, str(self._folder), fix)


def _is_running(pid: int) -> bool:
    """Return whether a process still does anything: a zombie does not."""
    try:
        found = read_stat(pid)
    except OSError:
        return False
    return found is not None and found.state != "Z"


def _free_port() -> int:
    """A port that the kernel gives to no connection before swtpm has it."""
    for port in random.SystemRandom().sample(range(10_000, 20_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("100 ports were tried, and all are in use")
