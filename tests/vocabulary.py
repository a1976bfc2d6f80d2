# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words that tests of all rooms share."""

import random
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from securetrain.core import read_stat
from securetrain.core.errors import SecureTrainError
from securetrain.identity.keys import PublicKey
from securetrain.identity.trust import Revoked, RoleKeys, TrustDocument, TrustRole, key_table

E = TypeVar("E", bound=BaseException)
S = TypeVar("S", bound=msgspec.Struct)
_CODE: Final = re.compile(r"ST-[A-Z]{3,4}-[0-9]{3}")


def refused(
    kind: type[E],
    why: str,
    call: Callable[..., object],
    /,
    *args: Any,
    says: str = "",
    names: str | None = None,
    **named: Any,
) -> E:
    """Call it, which must end with an error of that kind; give the error.

    A test may go through a table with it: what was not refused is named by its arguments.

    Args:
        why: The error's code; or words that it must say, as a regular expression.
        says: What stands in the error's `what`.
        names: The error's `where`, all of it.
    """
    try:
        call(*args, **named)
    except kind as error:
        is_code = isinstance(error, SecureTrainError) and _CODE.fullmatch(why)
        found = getattr(error, "code", "") == why if is_code else re.search(why, str(error))
        assert found, f"not {why!r}: {args} {named}: {error}"  # noqa: PT017 - it is given
        assert not says or says in getattr(error, "what", ""), error  # noqa: PT017
        assert names is None or getattr(error, "where", None) == names, error  # noqa: PT017
        return error
    pytest.fail(f"not refused: {args} {named}")


def outcome(command: Sequence[object], **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, whatever that is."""
    how = {"capture_output": True, "text": True, "timeout": 300, **how}
    return subprocess.run([*map(str, command)], check=False, **how)


def ran(command: Sequence[object], **how: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, which must be a good one; what it said."""
    done = outcome(command, **how)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def pip_for(python: Path) -> list[str]:
    """What installs into an environment that has no pip: to give it one takes three seconds."""
    return [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]


def changed(value: S, /, **fields: Any) -> S:
    """A structure with other fields; a mapping for one that is a structure changes fields of it."""
    inner = {
        name: changed(getattr(value, name), **new)
        for name, new in fields.items()
        if isinstance(new, Mapping) and isinstance(getattr(value, name), msgspec.Struct)
    }
    found: S = msgspec.structs.replace(value, **{**fields, **inner})
    return found


def free_port() -> int:
    """A port that nobody has on any address of this machine, to be bound later, on any of them.

    It lies below those that the kernel gives to connections: none takes it meanwhile, and who
    connects to it in vain is never connected to itself. This process claims it until it ends, so
    that no other worker, and no other suite on this machine, is given it, too.
    """
    for port in random.SystemRandom().sample(range(10_000, 20_000), 100):
        claim = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            claim.bind(f"\0securetrain-tests-port-{port}")
            with socket.create_server(("", port)):  # refused where one of all addresses listens
                claim.detach()  # open until the process ends, and nobody warns of it
                return port
        claim.close()
    raise OSError("100 ports were tried, and all are in use")


def is_running(pid: int) -> bool:
    """Tell whether there is such a process, and no zombie."""
    found = read_stat(pid)
    return found is not None and found.state != "Z"


def is_below(pid: int, ancestor: int) -> bool:
    """Tell whether a process is a child of another, or a child's child."""
    while pid > 1:
        found = read_stat(pid)
        if found is None:
            return False
        pid = found.parent
        if pid == ancestor:
            return True
    return False


def outside(inner: int, launcher: int) -> int:
    """The number by which this process knows one of a launcher's sandbox."""
    parents, inside = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(
                line.split(":", 1)
                for line in status.read_bytes().decode(errors="replace").splitlines()
            )
        except (FileNotFoundError, ProcessLookupError):
            continue
        pid = int(status.parent.name)
        parents[pid] = int(lines["PPid"])
        inside[pid] = int(lines["NSpid"].split()[-1])
    for pid, number in inside.items():
        ancestor = pid
        while ancestor in parents and ancestor != launcher:
            ancestor = parents[ancestor]
        if number == inner and ancestor == launcher != pid:
            return pid
    raise LookupError(inner)


def trust_document(
    roles: Mapping[TrustRole, Sequence[PublicKey]],
    created: datetime,
    expires: datetime,
    *,
    two_of: TrustRole | None = TrustRole.OPERATOR,
    revoked: Sequence[Revoked] = (),
    log_origin: str = "",
    apart: bool | UnsetType = UNSET,
) -> TrustDocument:
    """An unsigned trust root in which one role, if it is there, needs two of its keys."""
    return TrustDocument(
        version=1,
        created=created,
        expires=expires,
        keys=key_table([key for keys in roles.values() for key in keys]),
        roles={
            role: RoleKeys(
                [key.key_id for key in keys],
                2 if role is two_of else 1,
                apart=apart if role is TrustRole.NODE else UNSET,
            )
            for role, keys in roles.items()
        },
        revoked=list(revoked),
        log_origin=log_origin,
    )


def needs(*lacking: Callable[[], list[str]]) -> pytest.MarkDecorator:
    """Skip a test where something lacks that one of `lacking` lists.

    They are asked when the first such test is about to run, since most of them start programs, and
    collecting tests must not.
    """
    return pytest.mark.needs.with_args(*lacking)


def skip_where_something_lacks(item: pytest.Item) -> None:
    """Do what `needs` promises; `conftest.py` calls it before every test."""
    lacking = [
        one for mark in item.iter_markers("needs") for ask in mark.args for one in _asked(ask)
    ]
    if lacking:
        pytest.skip(f"this needs: {'; '.join(lacking)}")


@cache
def _asked(ask: Callable[[], list[str]]) -> list[str]:
    return ask()
