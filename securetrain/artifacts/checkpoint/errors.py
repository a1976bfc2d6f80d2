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
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError, os_error

P = ParamSpec("P")
R = TypeVar("R")


def refusing(code: str, fix: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Turn what torch raises about a state dict into `code`, and OSError into ST-CKPT-200.

    Args:
        code: the usage code that ValueError, RuntimeError and their like become.
        fix: what the person can do.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except SecureTrainError:
                raise
            except OSError as error:
                if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                    raise os_error(error, str(error.filename or "")) from error
                raise IntegrityError(
                    "ST-CKPT-200",
                    str(error.strerror or error),
                    str(error.filename or ""),
                    "check the disk and the permissions; nothing half-written was kept",
                ) from error
            except (ValueError, RuntimeError, KeyError, TypeError, AssertionError) as error:
                raise UsageError(code, f"{error}", fix=fix) from error
            except Exception as error:
                raise UsageError("ST-USAG-010", f"{type(error).__name__}: {error}") from error

        return wrapper

    return decorate


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
