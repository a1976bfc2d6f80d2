# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The name and the digest that a bundle signs, against those that were asked for.

A bundle has no run, step or version, and whoever gives the key or identity that must have signed it
has said who its signer is: to expect any of these is an error, never a question passed over. A
bundle of release 0.2 has no name and no digest either, and meets no expectation.
"""

from typing import Any, cast

from securetrain.artifacts.model.oms.manifest import PREDICATE_0_1
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.tree.problems import Problem
from securetrain.core import canonical
from securetrain.core.errors import UsageError

_LIMIT = 64 << 20


def check_bundle(expect: Expectation | None, payload: bytes, where: str) -> list[Problem]:
    """Compare a bundle's verified and well-formed payload with what is expected.

    Raises:
        UsageError: ST-USAG-001 when something is expected that no bundle has.
    """
    if expect is None:
        return []
    alien = [
        field
        for field in ("run", "step", "dataset", "policy", "min_step", "min_version", "signer")
        if getattr(expect, field) is not None
    ]
    if alien:
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(alien).replace('_', ' ')} of a Model Signing bundle cannot be expected",
            where,
            "expect its name or digest; the signer is whom the given key or identity names",
        )
    statement = cast("dict[str, Any]", canonical.loads(payload, limit=_LIMIT))
    if statement["predicateType"] == PREDICATE_0_1:
        what = (
            "a bundle of release 0.2 signs no name and no digest of the whole, which was expected"
        )
        return [Problem(code="ST-OMSB-127", what=what)]
    subject = statement["subject"][0]
    name, digest = subject["name"], subject["digest"]["sha256"]
    problems = []
    if expect.name is not None and expect.name != name:
        what = f"its name is {name}, {expect.name} was expected"
        problems.append(Problem(code="ST-OMSB-126", what=what))
    if expect.digest is not None and expect.digest != digest:
        what = f"its digest is {digest}, {expect.digest} was expected"
        problems.append(Problem(code="ST-OMSB-127", what=what))
    return problems
