# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The client of a launcher's signing socket, and the frames, against launchers that lie."""

import base64
import os
import socket
import threading
from contextlib import contextmanager

import pytest

from securetrain.core import canonical
from securetrain.core.errors import RuntimeRefusal
from securetrain.identity import signing
from securetrain.identity.keys import PrivateKey
from securetrain.identity.signing import LIMITS, Ask, LauncherKey, SigningSocket, Welcome
from securetrain.launch.signing import service as signing_keys
from tests.tables import each, items
from tests.vocabulary import refused

WELCOME = Welcome(run_id="job-1", rank=3, world_size=4)
GOOD = signing.frame(signing.Reply.DONE, canonical.encode(WELCOME))


@each("ask", *Ask)
def test_a_header_is_judged_before_its_body_is_taken(ask):
    limit = LIMITS[ask]
    assert signing.parse_header(signing.HEADER.pack(ask.encode(), limit)) == (ask, limit)
    with pytest.raises(RuntimeRefusal) as caught:
        signing.parse_header(signing.HEADER.pack(ask.encode(), limit + 1))
    assert caught.value.code == "ST-RUNT-032"


@each("letter", b"X", b"+", b"\0", b"\xff", b"h")
def test_an_unknown_letter(letter):
    refused(RuntimeRefusal, "ST-RUNT-032", signing.parse_header, signing.HEADER.pack(letter, 0))


def test_a_question_above_its_limit_is_not_sent(tmp_path):
    client = SigningSocket(path=tmp_path / "nobody")
    refused(RuntimeRefusal, "ST-RUNT-032", client.write, bytes(LIMITS[Ask.EVENT] + 1))


def test_a_launcher_that_is_gone(tmp_path):
    tmp_path.joinpath("x").touch()
    for name in ("missing", "x"):
        refused(RuntimeRefusal, "ST-RUNT-035", SigningSocket(path=tmp_path / name).welcome)


@contextmanager
def answering(path, *replies):
    """Something that answers as no launcher does."""
    with socket.socket(socket.AF_UNIX) as listener:
        signing.through_folder(path, listener.bind)
        listener.listen()

        def serve():
            for reply in replies:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(4096)
                    peer.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield SigningSocket(path=path, timeout=10)
        thread.join()


@items(
    "reply",
    b"",
    b"+\0\0\0\x02{}",
    b"+\xff\xff\xff\xff",
    b"-\0\0\0\x02{}",
    signing.frame(signing.Reply.REFUSED, b'{"code":"ST-IDEN-001","fix":"","what":""}'),
    signing.frame(signing.Reply.REFUSED, b'{"code":"ST-RUNT-999","fix":"","what":""}'),
)
def test_a_reply_that_no_launcher_gives(tmp_path, reply):
    with answering(tmp_path / "s", reply) as client, pytest.raises(RuntimeRefusal) as caught:
        client.welcome()
    client.close()
    assert caught.value.code == "ST-RUNT-035"


def test_a_signature_that_is_not_the_launchers(tmp_path):
    key, other = PrivateKey.generate(), PrivateKey.generate()
    said = {"keyid": key.key_id, "sig": base64.b64encode(other.sign(b"m")).decode()}
    reply = signing.frame(signing.Reply.DONE, canonical.dumps(said))
    with answering(tmp_path / "s", reply) as client, pytest.raises(RuntimeRefusal) as caught:
        client.sign(Ask.RANK, b"m", key.public)
    client.close()
    assert caught.value.code == "ST-RUNT-035"


def test_a_launcher_signs_with_a_pair(tmp_path):
    """Workers have no key; what they have signed outlives the curve too, or is refused."""
    pair, other = PrivateKey.generate_pair(), PrivateKey.generate_pair()
    assert pair.companion is not None
    assert other.companion is not None

    def reply(companion):
        said = {"keyid": pair.key_id, "sig": base64.b64encode(pair.sign(b"m")).decode()}
        if companion is not None:
            said["companion"] = base64.b64encode(companion.sign(b"m")).decode()
        return signing.frame(signing.Reply.DONE, canonical.dumps(said))

    spki = [base64.b64encode(one.public.spki).decode() for one in (pair, pair.companion)]
    with answering(tmp_path / "s", reply(pair.companion)) as client:
        made = dict(LauncherKey.of(client, Ask.HEAD, *spki).sign_all(b"m"))
    assert made.keys() == {pair.key_id, pair.companion.key_id}
    pair.public.verify(made[pair.key_id], b"m")
    pair.companion.public.verify(made[pair.companion.key_id], b"m")
    client.close()
    for number, wrong in enumerate((None, other.companion)):
        with answering(tmp_path / f"s{number}", reply(wrong)) as client:
            key = LauncherKey.of(client, Ask.HEAD, *spki)
            with pytest.raises(RuntimeRefusal) as caught:
                key.sign(b"m")
        client.close()
        assert caught.value.code == "ST-RUNT-035"
    whole = signing_keys.signed(pair, b"m", whole=True)
    assert signing_keys.signed(pair, b"m").companion == ""
    pair.companion.public.verify(base64.b64decode(whole.companion), b"m")


def test_a_connection_that_was_idle_is_made_again(tmp_path):
    with answering(tmp_path / "s", GOOD, GOOD) as client:
        assert client.welcome() == WELCOME
        assert client.welcome() == WELCOME, "asked once"
        client._welcome = None
        assert client.welcome() == WELCOME, "over a new connection: the launcher closed the first"
    client.close()


def test_a_forked_child_makes_a_connection_of_its_own(tmp_path):
    with answering(tmp_path / "s", GOOD, GOOD) as client:
        assert client.welcome() == WELCOME
        client._lock.acquire()  # as another thread of the parent might hold it
        child = os.fork()
        if child == 0:
            os._exit(0 if client.welcome() == WELCOME and client._owner == os.getpid() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client._lock.release()
    client.close()


def test_a_reply_above_its_limit_is_not_taken(tmp_path):
    with (
        answering(tmp_path / "s", b"+\xff\xff\xff\xff") as client,
        pytest.raises(RuntimeRefusal, match="a reply of 4294967295 bytes"),
    ):
        client.welcome()
    client.close()
