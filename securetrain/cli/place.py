# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""An argument that names a directory of this machine, or the URL of one in an object store."""

from pathlib import Path

import click


class Place(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4
    """Takes ``runs/r1/checkpoints/step-100`` and ``s3://bucket/step-100`` apart."""

    name = "path"

    def convert(
        self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """A URL as it stands; anything else, and what is local in any case, is a path."""
        del param, ctx
        if isinstance(value, Path):
            return value
        from securetrain.artifacts.tree.storage import local_path

        return local_path(value) or value
