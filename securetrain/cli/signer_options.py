# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The options that name who signs: a key, or with ``--keyless`` an identity."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from securetrain.cli.options import KEY_FORMS, file_option


def signer_options(function: Callable[..., int]) -> Callable[..., int]:
    """Give a verb the options; it gets ``key_name``, as `identity.open_signer` takes it."""

    @click.option(
        "--key",
        "key_name",
        help=f"Private key: {KEY_FORMS}.",
    )
    @click.option(
        "--keyless",
        is_flag=True,
        help="Sign by identity instead of with a key: a Sigstore instance vouches for it.",
    )
    @file_option(
        "--identity-token",
        help="--keyless: the file of the OIDC token. Default: what the CI system offers.",
    )
    @file_option(
        "--trust-config",
        help="--keyless: the trust configuration of a private instance. Default: the public one.",
    )
    @wraps(function)
    def with_signer(
        *positional: Any,
        key_name: str | None,
        keyless: bool,
        identity_token: Path | None,
        trust_config: Path | None,
        **given: Any,
    ) -> int:
        if keyless == (key_name is not None):
            raise click.UsageError("give either --key or --keyless")
        if not keyless and (identity_token or trust_config):
            raise click.UsageError("--identity-token and --trust-config belong to --keyless")
        name = key_name or keyless_name(identity_token, trust_config)
        return function(*positional, key_name=name, **given)

    return with_signer


def keyless_name(token: Path | None, config: Path | None) -> str:
    """The name of a keyless signer."""
    given = {"token": token, "config": config}
    query = "&".join(f"{name}={quote(str(path))}" for name, path in given.items() if path)
    return f"keyless:?{query}" if query else "keyless:"
