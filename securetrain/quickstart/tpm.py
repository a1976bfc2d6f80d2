# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``quickstart --tpm``: the same story with a software TPM that is challenged when it joins.

A real swtpm with a manufacturer of its own is made in the run directory, boots a made-up machine,
and is enrolled: reference values are signed, and a policy that names them takes the place of
``dev``. Everything then runs as it would with hardware. It proves the machinery only; the label
is TEST-ONLY wherever a person can see it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from securetrain.core.files import make_private_dir
from securetrain.identity.keys import PrivateKey
from securetrain.launch import node_name
from securetrain.quickstart.story_state import Story
from securetrain.testing import Machine, reference_values, write_policy

FOLDER: Final = "tpm"
LIFETIME: Final = timedelta(days=7)


@contextmanager
def software_tpm(story: Story) -> Iterator[None]:
    """Switch the machine on, enroll it, and let the story use its policy and attester.

    Raises:
        UsageError: ST-USAG-004 when swtpm is not installed.
    """
    folder = make_private_dir(make_private_dir(story.options.run_dir) / FOLDER)
    with Machine(folder / "machine", node_name()) as machine:
        machine.boot()
        operator = PrivateKey.generate()
        operator.save(folder / "operator.pem")
        values = reference_values([machine], story.clock(), lifetime=LIFETIME)
        story.policy_name = str(write_policy(folder, values, operator))
        story.attester = machine.write_settings(folder / "attester.json")
        yield
