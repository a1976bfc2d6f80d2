# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Check that threat models are backed by checks, code, drills and tests.

Examples:
  securetrain threats verify
  securetrain threats verify training-cluster --json
  securetrain threats verify our-site.yaml

Exit codes: 0 everything that the models refer to exists; 1 something dangles; 2 a model is
malformed; 3 nothing dangles, but the tests are not installed here and were not looked at.
"""

from pathlib import Path

from securetrain.cli.clock import now
from securetrain.cli.command import VerbGroup, verb
from securetrain.report import Document

command = VerbGroup(__name__, __doc__, {"": ("verify",)})


@verb()
def verify(*, models: tuple[str, ...]) -> Document:
    """Follow every threat to its controls, checks, codes, enforcing code, drills and tests.

    MODELS are files or names of shipped models. Without any, all shipped models are verified, and
    refusal codes, checks and drills that none of them cites are problems too.
    """
    import securetrain
    from securetrain.audit import load_checks
    from securetrain.drills import DRILLS
    from securetrain.threats import SourceTree, load_model, locate, page, shipped_models
    from securetrain.threats import verify as verify_models

    paths = [locate(name) for name in models] or list(shipped_models())
    report = verify_models(
        [load_model(path) for path in paths],
        load_checks(),
        DRILLS,
        SourceTree.of(Path(securetrain.__file__).parent),
        now().date(),
        complete=not models,
    )
    return page(report)
