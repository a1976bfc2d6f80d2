# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from securetrain.core.errors import IdentityError
from securetrain.identity.spiffe import Role, SpiffeId
from tests.tables import each
from tests.vocabulary import refused

_NAMES = st.text("abcXYZ019._-", min_size=1, max_size=64)


@given(st.text("abc019._-", min_size=1, max_size=20), _NAMES, _NAMES)
def test_round_trip(domain, job, node):
    for spiffe in (SpiffeId(domain, job, Role.NODE, node), SpiffeId(domain, job, Role.COORDINATOR)):
        assert SpiffeId.parse(str(spiffe)) == spiffe


@each(
    "text",
    "",
    "spiffe://d/job/j/node/",
    "spiffe://d/job/j/node/n/",
    "spiffe://d/job/j/node/n\n",
    "spiffe://d/job/j/node/n/coordinator",
    "spiffe://d/job/j/coordinator/x",
    "spiffe://d/job/j/Coordinator",
    "spiffe://D/job/j/coordinator",
    "spiffe://d:1/job/j/coordinator",
    "spiffe://d/job/a/b/coordinator",
    "spiffe://d/job/j/node/a%2fb",
    "spiffe://d/job/j/node/n?x",
    "spiffe://d/job/j/node/n#x",
    "spiffe://user@d/job/j/node/n",
    "http://d/job/j/node/n",
    "spiffe://d/job/" + "j" * 65 + "/coordinator",
)
def test_refused(text):
    refused(IdentityError, "ST-IDEN-006", SpiffeId.parse, text)


@given(st.text(max_size=80))
def test_any_text_is_an_id_that_prints_the_same_or_a_refusal(text):
    try:
        found = SpiffeId.parse(text)
    except IdentityError:
        return
    assert str(found) == text


def test_a_node_named_coordinator_is_a_node():
    assert SpiffeId.parse(str(SpiffeId("d", "j", Role.NODE, "coordinator"))).role is Role.NODE
