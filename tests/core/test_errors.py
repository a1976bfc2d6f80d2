# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The error tree: stable codes, picklable, one clear text."""

import errno
import pickle
import re

import pytest

from securetrain.core import errors
from securetrain.core.codes import CODES, ExitCode
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError, os_error
from tests.tables import items

FAMILIES = [
    getattr(errors, name)
    for name in dir(errors)
    if isinstance(getattr(errors, name), type)
    and issubclass(getattr(errors, name), SecureTrainError)
    and getattr(errors, name) is not SecureTrainError
]


def test_every_code_belongs_to_exactly_one_error_class():
    for code in CODES.values():
        owners = [cls for cls in FAMILIES if code.family in cls.families]
        assert len(owners) == 1, code.id


NAMES = {"Google", "AMD's", "NCCL's", "NVML", "Secure"}
"""What a title may begin with in capitals."""


def test_codes_have_four_letter_families_and_a_title():
    for code in CODES.values():
        assert re.fullmatch(r"ST-[A-Z]{4}-\d{3}", code.id)
        assert code.title
        first = code.title.split()[0]
        assert first[0].islower() or first in NAMES


@pytest.mark.parametrize("family", ["CKPT", "DATA"])
def test_artifact_codes_carry_their_exit_code(family):
    for code in CODES.values():
        if code.family == family and code.id != "ST-DATA-160":
            expected = int(code.id[-3:]) // 10
            assert code.exit == expected, code.id


def test_an_error_names_what_where_and_fix():
    error = UsageError("ST-USAG-001", "bad flag", "--nproc", "use a number")
    assert str(error) == "ST-USAG-001: bad flag\n  where: --nproc\n  fix:   use a number"
    assert error.exit_code is ExitCode.USAGE
    assert error.to_dict()["code"] == "ST-USAG-001"


@pytest.mark.parametrize("cls", FAMILIES)
def test_errors_survive_pickling(cls):
    code = next(c.id for c in CODES.values() if c.family in cls.families)
    error = cls(code, "what", "where", "fix")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert again.to_dict() == error.to_dict()


def test_a_code_of_another_family_is_a_programming_error():
    with pytest.raises(AssertionError):
        UsageError("ST-CKPT-130", "what")
    with pytest.raises(AssertionError):
        IntegrityError("ST-CKPT-999", "what")


@items(
    "number, code",
    (errno.ENOSPC, "ST-USAG-006"),
    (errno.EDQUOT, "ST-USAG-006"),
    (errno.EADDRINUSE, "ST-USAG-003"),
    (errno.EACCES, "ST-USAG-002"),
)
def test_os_errors_become_one_clear_error(number, code):
    error = os_error(OSError(number, "text"), "some/file")
    assert error.code == code
    assert error.where == "some/file"
    assert error.fix
