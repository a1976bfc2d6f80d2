# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import os
import pwd

import pytest

from securetrain.core.errors import UsageError
from securetrain.launch.sandbox.user import FIRST_UID, NUM_UIDS, choose_user, reserve
from tests.vocabulary import refused


@pytest.mark.parametrize("asked", ["root", "0", "no-such-user", str(1 << 31), "-1"])
def test_users_that_workers_are_not(asked):
    refused(UsageError, "ST-USAG-001", choose_user, asked, None)


def test_a_user_that_is_asked_for():
    nobody = pwd.getpwnam("nobody")
    assert (choose_user("nobody", None).uid, choose_user("nobody", None).gid) == (
        nobody.pw_uid,
        nobody.pw_gid,
    )
    assert choose_user("12345", None).uid == 12345


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_of_the_script(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    os.chown(script, 4242, 4242)
    assert choose_user("", script).uid == 4242
    assert choose_user("12345", script).uid == 12345
    os.chown(script, 0, 0)
    found = choose_user("", script)
    assert FIRST_UID <= found.uid < FIRST_UID + NUM_UIDS
    assert found.reservation is not None
    found.reservation.close()


def test_two_jobs_are_two_users():
    drawn = iter([7, 7, 8])
    first = reserve(lambda _uid: False, lambda _: next(drawn))
    second = reserve(lambda _uid: False, lambda _: next(drawn))
    assert (first.uid, second.uid) == (FIRST_UID + 7, FIRST_UID + 8)
    for user in (first, second):
        assert user.reservation is not None
        user.reservation.close()


def test_a_user_with_a_process_is_taken():
    drawn = iter([1, 2])
    user = reserve(lambda uid: uid == FIRST_UID + 1, lambda _: next(drawn))
    assert user.uid == FIRST_UID + 2
    assert user.reservation is not None
    user.reservation.close()
    refused(UsageError, "ST-USAG-001", reserve, lambda _uid: True, lambda _: 0)


def test_the_range_is_nobodys():
    """systemd: containers end at 1879048191, foreign ids begin at 2147352576."""
    assert FIRST_UID > 1879048191
    assert FIRST_UID + NUM_UIDS < 2147352576
    assert not [u for u in pwd.getpwall() if FIRST_UID <= u.pw_uid < FIRST_UID + NUM_UIDS]
