# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hand named secrets to a training script, before it starts: in the worker's own process.

Rules:

1. each is put into a memory file, whose number is in ``SECURETRAIN_SECRET_<NAME>_FD``; a script
   reads it with ``securetrain.secret(NAME)``, or as a file of that number;
2. where the policy says ``hand_over: environment`` the variable is set too, without a newline at
   the end. It is set after this process has started, so that ``/proc/PID/environ`` does not show it
   here; it does in every program that the script starts;
3. one that is withheld is said, and the script goes on: reading it is refused.
"""

import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from securetrain.core import hold_secret, secret_variable, undumped
from securetrain.core.errors import RuntimeRefusal, SecureTrainError
from securetrain.policy.schema import Secret


def hand_over(
    rules: Mapping[str, Secret],
    signer: str,
    environ: MutableMapping[str, str],
    rank: int,
) -> None:
    """Get this worker's secrets from its launcher.

    Args:
        rules: The policy's.
        signer: The launcher's socket.
        environ: This process's variables.
        rank: This worker's, for what is said.
    """
    if not rules:
        return
    undumped()
    # Imports cryptography, which a worker without secrets does without.
    from securetrain.identity.signing import shared_socket  # noqa: PLC0415

    for name, rule in rules.items():
        try:
            value = shared_socket(Path(signer)).secret(name)
            environ[secret_variable(name)] = str(hold_secret(name, value))
            if rule.variable:
                environ[rule.variable] = _text(name, value)
        except (SecureTrainError, OSError) as error:
            sys.stderr.write(f"securetrain rank {rank}: the secret {name} is not here: {error}\n")
            sys.stderr.flush()


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode().removesuffix("\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise RuntimeRefusal(
            "ST-RUNT-036",
            f"{name} is no text, which a variable has to be",
            "node.secrets",
            "hand_over: descriptor",
        )
    return text
