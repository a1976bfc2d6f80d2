# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Errors across ranks.

torch wraps what a rank raised in a `CheckpointException`, which is a BaseException that
`except Exception` misses, and sends it to every rank in a pickle. Rules: every step of ours raises
nothing but SecureTrainError, so that nothing else travels; and the caller of `save` or `load` gets
the original error, on every rank.
"""

import errno
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch.distributed.checkpoint.api import CheckpointException

from securetrain.core import CODES
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError

P = ParamSpec("P")
R = TypeVar("R")


def refusing(code: str, fix: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn what torch raises about a state dict into `code`, and what the disk says into its name.

    Args:
        code: the usage code that ValueError, RuntimeError and their like become.
        fix: what the person can do.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except SecureTrainError as error:
                cause = error.__cause__
                if isinstance(error, UsageError) and isinstance(cause, OSError):
                    # A small file's writer calls it the usage of a file.
                    raise _of_disk(cause, error.where) from cause
                raise
            except OSError as error:
                raise _of_disk(error, str(error.filename or "")) from error
            except (ValueError, RuntimeError, KeyError, TypeError, AssertionError) as error:
                raise UsageError(code, f"{error}", fix=fix) from error
            except Exception as error:
                raise UsageError("ST-USAG-010", f"{type(error).__name__}: {error}") from error

        return wrapper

    return decorate


def _of_disk(error: OSError, where: str) -> IntegrityError:
    """Name a disk's error for what it is, with the exit code of I/O."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        quota = "the quota is used up" if error.errno == errno.EDQUOT else ""
        return IntegrityError("ST-CKPT-202", quota, where)
    return IntegrityError(
        "ST-CKPT-200",
        str(error.strerror or error),
        where,
        "check the disk and the permissions; nothing half-written was kept",
    )


def unwrap(failure: CheckpointException) -> BaseException:
    """The error to raise instead: the refusal of the lowest rank that refused."""
    for rank in sorted(failure.failures):
        error = failure.failures[rank][0]
        if isinstance(error, SecureTrainError) and error.code in CODES:
            return error
    rank, (error, _) = min(failure.failures.items(), key=lambda item: item[0])
    if isinstance(error, KeyboardInterrupt):
        return error
    return UsageError("ST-USAG-010", f"{type(error).__name__}: {error}", f"rank {rank}")
