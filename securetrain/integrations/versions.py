# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The frameworks that hooks were tested with, at which versions.

Rules:

1. a hook asks here before it imports anything of its framework. The version is read from the
   package's metadata, which runs none of its code;
2. of a version that was not tested nobody knows which of its seams moved, and a hook that is never
   called protects nothing. Another release series (major.minor) than the tested one is refused;
3. docs/reference/compatibility.md has the results of the tests at exact versions.
"""

import importlib
import importlib.metadata
from types import ModuleType
from typing import Final

from packaging.version import InvalidVersion, Version

from securetrain.core.errors import UsageError

TESTED: Final = {
    "accelerate": "1.15.0",
    "deepspeed": "0.19.8",
    "lightning": "2.6.6",
    "torchtitan": "0.3.0",
    "mlflow-skinny": "3.17.2",
    "mosaicml-streaming": "0.13.0",
    "opentelemetry-exporter-otlp-proto-http": "1.45.2",
    "opentelemetry-sdk": "1.45.2",
    "transformers": "5.23.0",
    "wandb": "0.31.0",
    "webdataset": "1.0.2",
}
"""The version of every distribution that the tests ran with, by its name at the index."""

_MODULES: Final[dict[str, str]] = {
    "mlflow-skinny": "mlflow",
    "mosaicml-streaming": "streaming",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry-sdk": "opentelemetry.sdk",
}
"""What is imported, where it is not called as the distribution."""


def framework(distribution: str) -> ModuleType:
    """Import a framework, if it is here and of a release series that was tested.

    Raises:
        UsageError: ST-USAG-004 when it is absent, ST-USAG-019 when its version was not tested.
    """
    wanted, found = TESTED[distribution], present(distribution)
    if _series(found) != _series(wanted):
        raise UsageError(
            "ST-USAG-019",
            f"{distribution} {found} is installed; {wanted} was tested",
            fix=f"pip install '{distribution}=={wanted}', in an environment of its own where it"
            " disturbs others",
        )
    return importlib.import_module(_MODULES.get(distribution, distribution))


def present(distribution: str) -> str:
    """The version of a framework that is installed, whichever it is; imports nothing.

    Raises:
        UsageError: ST-USAG-004 when it is absent.
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "ST-USAG-004",
            f"{distribution} is not installed",
            fix=f"pip install '{distribution}=={TESTED[distribution]}'",
        ) from None


def _series(version: str) -> tuple[int, int] | str:
    """Major and minor number; what is no version equals only itself."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return version
    return parsed.major, parsed.minor
