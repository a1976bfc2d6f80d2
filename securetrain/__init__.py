# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""securetrain: a security-hardened runtime and auditor for distributed PyTorch training.

One policy file, three enforcers: ``securetrain run`` enforces it while a job runs,
``securetrain audit`` checks a cluster against it before, and ``securetrain verify`` proves
afterwards that an artifact was made under it.
"""

__version__ = "0.2.0"


def secret(name: str) -> bytes:
    """Read a named secret in a worker of ``securetrain run``.

    Args:
        name: As in ``node.secrets`` of the policy.

    Raises:
        RuntimeRefusal: ST-RUNT-036 when this process was not given it.
    """
    from securetrain.core import secret as read  # noqa: PLC0415 - the package itself loads nothing

    return read(name)
