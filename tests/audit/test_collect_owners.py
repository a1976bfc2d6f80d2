# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A user namespace hides who owns a file; what was told of it is believed as little as possible."""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from securetrain.audit.subjects.node.collect import host as owners
from securetrain.audit.subjects.node.collect.host import Host
from tests.network.ordinary_user import AS_USER, ENVIRONMENT, USER, interpreter
from tests.vocabulary import needs, ran

OVERFLOW = owners.overflow_uid()


def without_root() -> list[str]:
    """Files of several users are made, and Python is started as one of them."""
    if os.geteuid() != 0:
        return ["user id 0"]
    return [] if interpreter() else ["an interpreter that an ordinary user may start"]


def info(uid=OVERFLOW, dev=1, ino=2, ctime=3):
    return SimpleNamespace(st_uid=uid, st_dev=dev, st_ino=ino, st_ctime_ns=ctime)


def host(told):
    return Host(
        environ={},
        search_path=(),
        uid=0,
        gid=0,
        user="u",
        home=Path("/"),
        root_owned=owners.decode_root_files(told, inside=True),
    )


def test_what_root_owns_is_roots_inside():
    told = owners.encode_root_files([info(uid=0), info(uid=0, ino=9), info(uid=1000, ino=5)])
    inside = host(told)
    assert inside.owner(info()) == 0
    assert inside.owner(info(ino=9)) == 0
    assert told[owners.VARIABLE].count(",") == 1


@pytest.mark.parametrize(
    "other",
    [
        info(ino=5),  # a stranger's: it was seen, and not root's
        info(ino=7),  # never seen
        info(dev=8),
        info(ctime=4),  # given to somebody else since, or replaced
    ],
)
def test_a_strangers_file_stays_one(other):
    inside = host(owners.encode_root_files([info(uid=0), info(uid=1000, ino=5)]))
    assert inside.owner(other) == OVERFLOW


def test_a_file_of_a_known_user_is_no_other_ones():
    assert host(owners.encode_root_files([info(uid=0)])).owner(info(uid=1000)) == 1000


def test_nothing_is_believed_outside():
    told = owners.encode_root_files([info(uid=0)])
    assert owners.decode_root_files(told, inside=False) == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1:2",
        "1:2:3,",
        "1:2:3,../x",
        "1:2:3\n",
        "G:2:3",
        "1:2:3," * 20_000,
        "1" * 17 + ":2:3",
    ],
)
def test_what_is_malformed_tells_nothing(text):
    assert owners.decode_root_files({owners.VARIABLE: text}, inside=True) == frozenset()


def test_too_much_tells_nothing():
    assert owners.encode_root_files([info(uid=0, ino=n) for n in range(20_000)]) == {
        owners.VARIABLE: ""
    }


@pytest.fixture
def shared_folder():
    """One that an ordinary user may look into."""
    with tempfile.TemporaryDirectory(prefix="owners-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


# argv: the paths that are looked at. Says who owns each, as a collector inside sees it.
LOOK = """
import json, sys
from datetime import UTC, datetime
from securetrain.audit.subjects.node.collect.node import collect_node
facts = collect_node({"PATH": ":".join(sys.argv[1:]), "HOME": "/"}, now=datetime.now(UTC))
found = {link.path: link.uid for fact in facts.node.paths.value for link in fact.chain}
print(json.dumps([found[path] for path in sys.argv[1:]]))
"""
TELL = """
import json, sys
from securetrain.audit.subjects.node.collect.node import root_files_variable
print(json.dumps(root_files_variable({"PATH": ":".join(sys.argv[1:]), "HOME": "/"})))
"""


@pytest.mark.netns
@needs(without_root)
def test_in_a_real_user_namespace_roots_files_are_roots_and_a_strangers_are_not(shared_folder):
    mine, strangers = shared_folder / "mine", shared_folder / "strangers"
    for path, uid in ((mine, USER), (strangers, USER + 1)):
        path.mkdir(mode=0o755)
        os.chown(path, uid, uid)
    paths = ["/usr", str(mine), str(strangers)]

    def run(code, *before, **env):
        done = ran(
            [*AS_USER, *before, str(interpreter()), "-c", code, *paths],
            env={**ENVIRONMENT, **env},
            cwd="/",
        )
        return json.loads(done.stdout)

    inside = ("unshare", "--user", "--map-root-user", "--")
    told = run(TELL)
    assert run(LOOK, *inside) == [OVERFLOW, 0, OVERFLOW], "nobody told it: all are strangers'"
    assert run(LOOK, *inside, **told) == [0, 0, OVERFLOW]
    assert run(LOOK, **told) == [0, USER, USER + 1], "outside it sees for itself"
    # It was root's when it was told, and is a stranger's now.
    os.chown(shared_folder, 0, 0)
    paths = [str(shared_folder)]
    told = run(TELL)
    assert run(LOOK, *inside, **told) == [0]
    os.chown(shared_folder, USER + 1, USER + 1)
    assert run(LOOK, *inside, **told) == [OVERFLOW]
