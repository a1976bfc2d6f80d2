# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta
from typing import Any

from securetrain.identity.job_ca import check_leaf
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.spiffe import Role
from securetrain.rendezvous.coordinator.reception import Reception

HOUR = timedelta(hours=1)


def test_the_coordinators_certificate_is_renewed_at_half_its_life(job, tools):
    now, made = tools.now(), []
    key = PrivateKey.generate(KeyKind.P256)

    def make(identity: Any) -> Any:
        made.append(identity)
        return f"context {len(made)}"

    reception = Reception(ca=job.ca, key=key, lifetime=HOUR, clock=lambda: now, make=make)
    assert made == [], "nothing is issued before somebody comes"
    contexts: list[Any] = []
    for minutes in (0, 29, 30, 59, 60, 200):
        now = tools.now() + timedelta(minutes=minutes)
        contexts.append(reception.context())
        leaf = made[-1].certificate
        assert check_leaf(leaf, job.ca.certificate, Role.COORDINATOR, now).job == job.name
    numbers = [1, 1, 2, 2, 3, 4]
    assert contexts == [f"context {number}" for number in numbers]
    assert {identity.key.key_id for identity in made} == {key.key_id}
