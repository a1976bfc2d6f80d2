# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pytest

from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence.appraiser import APPRAISERS, Appraiser, SoftwareAppraiser
from securetrain.evidence.selfreport import SELF_ASSERTED_TYPE
from tests.attest.collateral import case
from tests.attest.worlds import MANIFEST, Machine, World
from tests.evidence.tpm.forge import NOW
from tests.tables import forgeries
from tests.vocabulary import refused


def test_without_reference_values_a_node_only_speaks_for_itself():
    assert list(APPRAISERS) == [SELF_ASSERTED_TYPE]
    appraiser = APPRAISERS[SELF_ASSERTED_TYPE]
    claims = appraiser.read(MANIFEST)
    assert claims.manifest == MANIFEST
    assert claims.node is None
    appraisal = appraiser.appraise(claims, case(bytes(32), NOW, NOW))
    assert appraisal.tier is NodeTier.SELF_ASSERTED
    assert appraisal.lease is None, "there is nothing to renew"
    assert appraiser.reference_values == ""


def test_it_opens_no_tpm_and_challenges_none():
    machine = Machine()
    appraiser: Appraiser = SoftwareAppraiser()
    assert appraiser.open(machine.keys(), "node-0", NOW) is None
    opening = World(machine).appraiser.open(machine.keys(), "node-0", NOW)
    with pytest.raises(NotImplementedError):
        appraiser.credential(opening, b"", bytes)


@forgeries("body", b"", b"{}", MANIFEST + b" ", MANIFEST[:-1])
def test_a_body_that_is_no_self_report(body):
    refused(AttestationError, "ST-ATTS-001", SoftwareAppraiser().read, body)
