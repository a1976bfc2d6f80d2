# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import contextlib
import os
import socket
import tempfile
import threading
import tty
from pathlib import Path

import pytest

from securetrain.attest.node.tpm import transport
from securetrain.attest.node.tpm.transport import RESPONSE_LIMIT, connect
from securetrain.core.errors import AttestationError, UsageError
from tests.tables import each, forgeries, items
from tests.vocabulary import refused

COMMAND = bytes.fromhex("80010000000c0000014500 00".replace(" ", ""))
GOOD = bytes.fromhex("80010000000a00000000")


def response(size: int, data: bytes = b"") -> bytes:
    return b"\x80\x01" + size.to_bytes(4, "big") + bytes(4) + data


@contextlib.contextmanager
def server(*answers: bytes | None, family: int = socket.AF_UNIX):
    """Answers one command after the other; None closes the connection instead."""
    with tempfile.TemporaryDirectory(prefix="st-") as folder, socket.socket(family) as listening:
        if family == socket.AF_UNIX:
            listening.bind(f"{folder}/tpm")
            address = f"unix:{folder}/tpm"
        else:
            listening.bind(("127.0.0.1", 0))
            address = f"tcp:127.0.0.1:{listening.getsockname()[1]}"
        listening.listen(1)
        stop = threading.Event()

        def serve():
            with contextlib.suppress(OSError):
                stream, _ = listening.accept()
                with stream:
                    for answer in answers:
                        stream.recv(4096)
                        if answer is None:
                            return
                        stream.sendall(answer)
                    stop.wait(10)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield address
        finally:
            stop.set()
            thread.join(5)


@each("family", socket.AF_UNIX, socket.AF_INET)
def test_a_socket_carries_commands(family):
    long = response(4000, bytes(3990))
    with server(GOOD, long, family=family) as address:
        channel = connect(address, 5)
        assert channel.where == address
        assert not channel.managed
        assert channel.exchange(COMMAND, 5) == GOOD
        assert channel.exchange(COMMAND, 5) == long
        channel.close()
        channel.close()


def test_a_response_may_come_in_pieces():
    ours, theirs = socket.socketpair()
    channel = transport.Stream(ours.detach(), "pair", managed=False)
    data = response(2000, bytes(1990))

    def drip():
        theirs.recv(100)
        for start in (0, 3, 9, 11, 1000):
            theirs.sendall(data[start : {0: 3, 3: 9, 9: 11, 11: 1000, 1000: 2000}[start]])

    thread = threading.Thread(target=drip)
    thread.start()
    assert channel.exchange(COMMAND, 5) == data
    thread.join()
    channel.close()
    theirs.close()


def test_the_largest_response_is_read():
    data = response(RESPONSE_LIMIT, bytes(RESPONSE_LIMIT - 10))
    with server(data) as address:
        channel = connect(address, 5)
        assert channel.exchange(COMMAND, 5) == data
        channel.close()


@forgeries(
    "id, answer, says",
    ("short-header", response(9), "9 bytes"),
    ("zero", response(0), "0 bytes"),
    (
        "over-limit",
        response(RESPONSE_LIMIT + 1, bytes(RESPONSE_LIMIT - 9)),
        f"{RESPONSE_LIMIT + 1} bytes",
    ),
    ("four-gigabytes", response(0xFFFFFFFF), "4294967295 bytes"),
    ("trailing", GOOD + b"\0", "11 bytes in a response that says it has 10"),
    ("two-at-once", response(12, bytes(20)), "30 bytes in a response that says it has 12"),
    ("flood", bytes(RESPONSE_LIMIT + 100), "0 bytes"),
)
def test_a_response_that_lies_about_its_size_is_refused(answer, says):
    with server(answer) as address:
        channel = connect(address, 5)
        error = refused(AttestationError, "ST-ATTS-152", channel.exchange, COMMAND, 5)
        assert says in error.what
        assert error.where == address


@forgeries(
    "id, answer, says",
    ("silence", b"", "in time"),
    ("truncated-header", GOOD[:9], "in time"),
    ("truncated-body", response(100, bytes(89)), "in time"),
    ("closed", None, "closed the connection after 0 bytes"),
)
def test_silence_is_no_answer(answer, says):
    with server(answer) as address:
        channel = connect(address, 5)
        error = refused(AttestationError, "ST-ATTS-151", channel.exchange, COMMAND, 0.1, says=says)
        assert "power-cycle" in error.fix


def test_a_channel_is_not_used_again_after_a_time_out():
    # The late response to the first command would be taken for the second one's.
    with server(b"", GOOD) as address:
        channel = connect(address, 5)
        for says in ("in time", "closed after an earlier failure"):
            refused(AttestationError, "ST-ATTS-151", channel.exchange, COMMAND, 0.1, says=says)


def test_a_deadline_that_has_passed_sends_nothing():
    ours, theirs = socket.socketpair()
    channel = transport.Stream(ours.detach(), "pair", managed=False)
    refused(AttestationError, "ST-ATTS-151", channel.exchange, COMMAND, 0)
    assert theirs.recv(100) == b""
    theirs.close()


def test_a_connection_that_breaks_while_writing():
    ours, theirs = socket.socketpair()
    theirs.close()
    channel = transport.Stream(ours.detach(), "pair", managed=False)
    refused(AttestationError, "ST-ATTS-151", channel.exchange, COMMAND, 1, says="Broken pipe")


def test_a_device_is_opened_and_talked_to():
    controller, device = os.openpty()
    tty.setraw(device)
    name = os.ttyname(device)

    def serve():
        os.read(controller, 100)
        os.write(controller, GOOD)

    thread = threading.Thread(target=serve)
    thread.start()
    channel = connect(name, 5)
    assert channel.managed
    assert channel.exchange(COMMAND, 5) == GOOD
    thread.join()
    channel.close()
    os.close(device)
    os.close(controller)


def failing_open(error: OSError):
    def fail(*_, **__):
        raise error

    return fail


@items(
    "id, error, what, fix",
    (
        "absent",
        FileNotFoundError(2, "No such file or directory"),
        "there is no TPM",
        "firmware's setup",
    ),
    ("no-device", OSError(19, "No such device"), "there is no TPM", "dmesg"),
    ("no-address", OSError(6, "No such device or address"), "there is no TPM", "dmesg"),
    ("permission", PermissionError(13, "Permission denied"), "cannot be opened", "usermod -aG tss"),
    (
        "not-permitted",
        PermissionError(1, "Operation not permitted"),
        "cannot be opened",
        "usermod -aG tss",
    ),
    ("busy", OSError(16, "Device or resource busy"), "cannot be opened", "/dev/tpmrm0"),
)
def test_a_device_that_cannot_be_opened_says_what_to_do(monkeypatch, error, what, fix):
    monkeypatch.setattr(os, "open", failing_open(error))
    found = refused(AttestationError, "ST-ATTS-150", connect, "/dev/tpmrm0", 1)
    assert found.where == "/dev/tpmrm0"
    assert what in found.what
    assert error.strerror in found.what
    assert fix in found.fix


def test_a_file_is_not_a_device(tmp_path):
    path = tmp_path / "tpm"
    path.write_bytes(GOOD)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    refused(AttestationError, "ST-ATTS-150", connect, str(path), 1, says="not a device")
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_no_software_tpm_listens(tmp_path):
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    port = closed.getsockname()[1]
    closed.close()
    for address in (f"unix:{tmp_path}/none", f"tcp:127.0.0.1:{port}"):
        error = refused(AttestationError, "ST-ATTS-150", connect, address, 1, names=address)
        assert "start swtpm" in error.fix


@each(
    "address, says",
    ("", "not an address"),
    ("tpmrm0", "not an address"),
    ("swtpm:/run/tpm", "not an address"),
    ("tcp:192.0.2.1:2321", "must be on this machine"),
    ("tcp:0.0.0.0:2321", "must be on this machine"),
    ("tcp:[2001:db8::1]:2321", "must be on this machine"),
    ("tcp:localhost:2321", "numeric host"),
    ("tcp:127.0.0.1", "numeric host"),
    ("tcp:127.0.0.1:", "not a port"),
    ("tcp:127.0.0.1:0", "not a port"),
    ("tcp:127.0.0.1:65536", "not a port"),
    ("tcp:127.0.0.1:-1", "not a port"),
    ("tcp:127.0.0.1:\N{SUPERSCRIPT TWO}", "not a port"),
    ("tcp:127.0.0.1:x", "not a port"),
)
def test_addresses_that_are_refused(address, says):
    error = refused(UsageError, "ST-USAG-001", connect, address, 1, says=says, names=address)
    assert "tcp:127.0.0.1:PORT" in error.fix


def test_loopback_of_version_6():
    with socket.socket(socket.AF_INET6) as listening:
        try:
            listening.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listening.listen(1)
        channel = connect(f"tcp:[::1]:{listening.getsockname()[1]}", 1)
        channel.close()


def test_an_interrupted_exchange_closes_the_channel(monkeypatch):
    ours, theirs = socket.socketpair()
    channel = transport.Stream(ours.detach(), "pair", managed=False)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(channel, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        channel.exchange(COMMAND, 1)
    refused(AttestationError, "ST-ATTS-151", channel.exchange, COMMAND, 1)
    theirs.close()


def test_a_path_may_be_long():
    refused(AttestationError, "ST-ATTS-150", connect, "unix:" + "x" * 200, 1)
    assert Path("/dev/null").exists()
