# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values that a person edits: rules, ends, endorsement keys, and their difference."""

import json
from datetime import timedelta

import msgspec
import pytest

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.compare_values import Difference, compare, compare_files
from securetrain.attest.fleet.edit_values import revoke_eks, set_fields
from securetrain.attest.fleet.values import change_values, put_nodes, remove, retire
from securetrain.attest.session import reference_file
from securetrain.attest.session.reference_file import write_reference_values
from securetrain.attest.session.state import MemoryState
from securetrain.core.errors import AttestationError, UsageError
from securetrain.core.vocabulary import NodeTier
from securetrain.evidence import EnrolledNode, ImageGroup
from securetrain.evidence.staged import in_force, next_end
from securetrain.evidence.tee import Product
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.testing.bootlog import Boot
from tests import vocabulary
from tests.attest.fleet.test_values import OPERATOR, SIGNED_BY, Watched, change, later
from tests.attest.worlds import Machine, reference_values
from tests.evidence.tpm.forge import NOW
from tests.tables import each

TCB = {"bootloader": 3, "tee": 0, "snp": 8, "microcode": 115}


@pytest.fixture
def world(tmp_path):
    return Watched(tmp_path)


@pytest.fixture(scope="module")
def values():
    return reference_values(Machine("node-0"), Machine("node-1"), groups={"a.1": ImageGroup()})


def refused(code, call, *args, error=UsageError, **how):
    return vocabulary.refused(error, code, call, *args, **how)


# Until a day.


@pytest.mark.forgery
def test_an_old_kernel_is_refused_from_its_day_on(world):
    """Nobody signs anything then, and the file may even be gone."""
    end, kernel = NOW + timedelta(minutes=1), world.values.boot.boot_applications[-1]
    change(world, lambda old: retire(old, [kernel], until=end))
    later(world)
    world.join()
    world.now = end - timedelta(seconds=1)
    later(world)
    assert not world.ask()[0].full, "the control: it is accepted, and a renewal sends no log"
    world.join()
    world.path.unlink()
    world.now = end
    later(world)
    assert world.ask()[0].full
    assert world.refused("ST-ATTS-213").where.startswith("PCR 4")
    world.refused("ST-ATTS-213", world.machines[1])
    assert world.state.revocations() == []


@pytest.mark.forgery
def test_a_join_is_judged_by_the_clock_and_not_by_when_the_file_was_read(world):
    kernel = world.values.boot.boot_applications[-1]
    change(world, lambda old: retire(old, [kernel], until=NOW + timedelta(minutes=1)))
    later(world)
    world.join()
    world.verifier.watch = None
    world.now += timedelta(minutes=1)
    world.refused("ST-ATTS-213", world.machines[1])


def test_old_and_new_are_both_accepted_until_then(world):
    old_kernel = world.values.boot.boot_applications[-1]
    first, second = world.machines
    second.boot(Boot(kernel=b"kernel 6.9"))
    newer = reference_values(second).boot
    end = NOW + timedelta(days=3)

    def roll_out(values):
        both = {
            name: tuple(dict.fromkeys((*getattr(values.boot, name), *getattr(newer, name))))
            for name in ("boot_applications", "loaded_files")
        }
        boot = msgspec.structs.replace(values.boot, **both)
        return retire(msgspec.structs.replace(values, boot=boot), [old_kernel], until=end)

    change(world, roll_out)
    later(world)
    world.join(first)
    world.join(second)
    world.now = end
    later(world)
    world.refused("ST-ATTS-213", first)
    world.join(second)


def test_an_end_is_of_one_group(values):
    boot = values.boot
    grouped = msgspec.structs.replace(values, groups={"a.1": ImageGroup(boot=boot)})
    kernel, end = boot.boot_applications[-1], NOW + timedelta(days=1)
    made = retire(grouped, [kernel], until=end)
    assert made.until == {"": {kernel: end}, "a.1": {kernel: end}}
    only = msgspec.structs.replace(made, until={"a.1": {kernel: end}})
    over = in_force(only, end)
    assert kernel not in over.group("a.1").boot.boot_applications
    assert over.boot == boot
    assert in_force(only, end - timedelta(seconds=1)) == only
    assert (next_end(only, NOW), next_end(only, end)) == (end, None)


def test_what_is_taken_out_at_once_has_no_end_any_more(values):
    kernel = values.boot.boot_applications[-1]
    staged = retire(values, [kernel], until=NOW + timedelta(days=1))
    assert retire(staged, [kernel]).until == {}
    refused("ST-USAG-001", retire, values, ["ff" * 32], until=NOW)


# Rules.


def test_rules_are_set(values):
    made = set_fields(
        values,
        [
            f"snp.min_tcb.Genoa={json.dumps(TCB)}",
            "snp.min_tcb.Genoa.snp=22",
            f"snp.measurements+={'ab' * 48}",
            "snp.any_chip=true",
            "boot.unjudged+=[1,5]",
        ],
        NOW,
    )
    assert made.snp.min_tcb[Product.GENOA].snp == 22
    assert made.snp.min_tcb[Product.GENOA].microcode == 115
    assert made.snp.measurements == ("ab" * 48,)
    assert made.snp.any_chip
    assert made.boot.unjudged == (1, 5)
    assert made.nodes is values.nodes
    less = set_fields(made, ["boot.unjudged-=1", 'snp.min_tcb-="Genoa"'], NOW)
    assert (less.boot.unjudged, less.snp.min_tcb) == ((5,), {})


def test_rules_of_a_group_and_of_a_node_are_set(values):
    made = set_fields(values, ["boot.unjudged=[1]"], NOW, group="a.1")
    assert (made.groups["a.1"].boot.unjudged, made.boot.unjudged) == ((1,), ())
    own = json.dumps(["ab" * 32])
    made = set_fields(values, ["group=a.1", f"own.5={own}"], NOW, node="node-1")
    assert made.nodes["node-1"].group == "a.1"
    assert made.nodes["node-1"].own == {"5": ("ab" * 32,)}
    assert made.nodes["node-0"] == values.nodes["node-0"]


def test_a_value_in_a_file(values, tmp_path):
    file = tmp_path / "tokens.json"
    issuer = {"profile": "gca", "keys": {"keys": []}}
    file.write_text(json.dumps({"issuers": {"https://issuer.example/": issuer}}))
    vocabulary.refused(
        UsageError, "ST-USAG-001", set_fields, values, [f"tokens=@{file}"], NOW, says="issuers"
    )
    file.write_text('{"issuers": {}, "issuers": {}}')
    refused("ST-USAG-008", set_fields, values, [f"tokens=@{file}"], NOW)
    file.write_text('{"issuers": {}}')
    assert set_fields(values, [f"tokens=@{file}"], NOW).tokens.issuers == {}


@each(
    "text, said",
    ("version=9", "'version'"),
    ("expires=2099-01-01T00:00:00Z", "'expires'"),
    ("nodes={}", "'nodes'"),
    ("unproven={}", "'unproven'"),
    ("snp.admin=true", "admin"),
    ("snp.any_chip=1", "bool"),
    ("snp.measurements+=abcd", "snp"),
    ("snp.measurements-=abcd", "not all"),
    ("snp.any_chip.deep=1", "no fields"),
    ("snp.any_chip+=1", "neither"),
    ('boot={"firmware": [', "VALUE"),
    ("boot", "FIELD=VALUE"),
    ("=1", "FIELD=VALUE"),
    ("groups.a={}", "'groups'"),
    ("boot.unjudged=[24]", "boot"),
)
def test_what_is_not_in_the_schema_is_refused(values, text, said):
    error = refused("ST-USAG-001", set_fields, values, [text], NOW)
    assert said in f"{error.what} {error.fix}" or said == "VALUE"


def test_a_group_in_a_group_is_refused(values):
    """Image groups are flat: there is no circle to follow."""
    refused("ST-USAG-001", set_fields, values, ["group=a.1"], NOW, group="a.1")
    refused("ST-USAG-001", set_fields, values, ["boot.groups={}"], NOW, group="a.1")
    refused("ST-USAG-001", set_fields, values, ["boot.unjudged=[]"], NOW, group="b")
    refused("ST-USAG-001", set_fields, values, ["group=b"], NOW, node="node-0")
    refused("ST-USAG-001", set_fields, values, ["group=a.1"], NOW, node="node-9")
    refused("ST-USAG-001", set_fields, values, ["ek_names=[]"], NOW, node="node-0")


def test_rules_that_no_appraiser_can_be_made_of(values):
    pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    refused(
        "ST-ATTS-018",
        set_fields,
        values,
        [f"tpm.roots+={json.dumps(pem)}"],
        NOW,
        error=AttestationError,
    )


# Endorsement keys.


@pytest.mark.forgery
def test_a_revoked_endorsement_key_is_out_at_the_next_renewal(world):
    first, second = world.machines
    world.join(first)
    world.join(second)
    change(world, lambda old: revoke_eks(old, [f"ek:{first.ek_name}"]))
    later(world)
    world.refused("ST-ATTS-109", first)
    world.refused("ST-ATTS-012", Machine("node-7", tpm=second.tpm))
    world.join(second)


def test_what_cannot_be_revoked(values):
    name = next(iter(values.nodes.values())).ek_names[0]
    made = revoke_eks(values, [name])
    for bad in ("node-0", "ek:00", f"ek:{name[:-1]}", name.upper()):
        refused("ST-USAG-001", revoke_eks, values, [bad])
    refused("ST-USAG-001", revoke_eks, made, [name])


# Signed again.


@pytest.mark.parametrize("kind", list(KeyKind))
def test_a_successors_key_signs_again(world, kind):
    """The policy names both, and the coordinator goes on."""
    successor = PrivateKey.generate(kind)
    made = change_values(
        world.path,
        lambda old: old,
        key=successor,
        signed_by=SIGNED_BY,
        now=world.now,
        lifetime=timedelta(days=90),
        state=world.state,
    )
    assert (made.version, made.expires) == (2, NOW + timedelta(days=90))
    later(world)
    world.join()
    assert world.heard == ["ST-ATTS-009"], "its policy does not name the new key: nothing is taken"


@pytest.mark.forgery
def test_values_that_end_during_a_job_are_signed_again(world):
    assert world.join().tier is NodeTier.TPM
    world.now = NOW + timedelta(days=30)
    later(world)
    world.refused("ST-ATTS-009")
    change(world, lambda old: old, lifetime=timedelta(days=30))
    later(world)
    assert world.join().tier is NodeTier.TPM
    assert world.heard[-1] == "read"


# The difference of two editions.


def test_every_change_is_a_line(values):
    kernel = values.boot.boot_applications[-1]
    new = set_fields(retire(values, [kernel]), ["snp.any_chip=true"], NOW)
    new = put_nodes(remove(new, ["node-1"]), {"node-2": EnrolledNode(group="a.1")})
    found = set(compare(values, new))
    assert Difference("boot.boot_applications", kernel, "") in found
    assert Difference("snp.any_chip", "false", "true") in found
    lines = {one.where: (bool(one.old), bool(one.new)) for one in found}
    assert lines["nodes.node-1"] == (True, False)
    assert lines["nodes.node-2"] == (False, True)
    assert {one.old for one in found if one.where.startswith("boot.")} == {kernel}
    assert len(lines) == 5
    assert list(compare(new, new)) == []


def test_the_last_edition_is_kept_and_compared(world, monkeypatch):
    refused("ST-USAG-002", lambda: list(compare_files(None, world.path, SIGNED_BY)))
    change(world, lambda old: remove(old, ["node-1"]))
    first = list(compare_files(None, world.path, SIGNED_BY))
    assert {one.where for one in first} == {"version", "issued", "nodes.node-1"}
    monkeypatch.setattr(reference_file, "INLINE_NODES", 0)
    change(world, lambda old: put_nodes(old, {"node-5": EnrolledNode(chips=("ab" * 64,))}))
    change(world, lambda old: remove(old, ["node-5"]))
    (gone,) = (
        one for one in compare_files(None, world.path, SIGNED_BY) if one.where.startswith("nodes")
    )
    assert (gone.where, gone.new) == ("nodes.node-5", "")
    foreign = PrivateKey.generate()
    refused(
        "ST-ATTS-009",
        lambda: list(compare_files(None, world.path, [key_text(foreign.public)])),
        error=AttestationError,
    )


def test_two_files_are_compared(world, tmp_path):
    other = tmp_path / "other.json"
    change(world, lambda old: remove(old, ["node-1"]), state=MemoryState())
    write_reference_values(other, world.values, OPERATOR)
    found = {one.where for one in compare_files(other, world.path, SIGNED_BY)}
    assert "nodes.node-1" in found
