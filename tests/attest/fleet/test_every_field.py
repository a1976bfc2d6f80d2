# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Nothing that an edition says is lost on any path that copies it, whatever field it is in.

Each field of the documents has a value here that is not its default; a new field fails the first
test until it has one, and is in every other test from then on. A staged roll-out once dropped what
an image group says of PCR 11 to 15, and nothing noticed.
"""

import itertools
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec

from securetrain.attest.fleet.bundle import key_text, make_question
from securetrain.attest.fleet.compare_values import compare
from securetrain.attest.fleet.edit_values import revoke_eks, set_fields
from securetrain.attest.fleet.enrollment import Enrollment, Roots, enroll
from securetrain.attest.fleet.ima_values import ImaChange, set_ima
from securetrain.attest.fleet.images import accept_images
from securetrain.attest.fleet.values import change_values, put_nodes, remove, retire
from securetrain.attest.session.fleet_state import FleetState
from securetrain.attest.session.reference_file import read_reference_values, write_reference_values
from securetrain.attest.session.state import FileState, MemoryState
from securetrain.evidence import EnrolledNode, ImageGroup, ReferenceValues, Remembered
from securetrain.evidence.gpu import GpuReference
from securetrain.evidence.inventory import INLINE_NODES, PagesRoot
from securetrain.evidence.staged import entries_of, in_force, without_entries
from securetrain.evidence.tee.paravisor import ParavisorReference
from securetrain.evidence.tee.snp_rules import SnpReference
from securetrain.evidence.tee.tdx import TdxReference
from securetrain.evidence.token_profiles import TokenProfile
from securetrain.evidence.tokens import TokenIssuer, TokenReference
from securetrain.evidence.tpm import BootReference, ImaReference, LateReference, TpmReference
from securetrain.evidence.tpm.bootrules import merge
from securetrain.evidence.tpm.late import merge_late
from securetrain.evidence.tpm.runtime_policy import ViolationMode, ViolationRule
from securetrain.evidence.tpm.secureboot import PolicyVariable
from securetrain.identity.keys import PrivateKey
from tests.attest.worlds import MAKER_CA, Machine, World, bundle_of, reference_values
from tests.evidence.tee import forge_google as google
from tests.evidence.tpm import lateboots as uki
from tests.evidence.tpm.forge import NOW
from tests.rsa_keys import rsa_key
from tests.tables import each

POLICY_KEY, OTHER_KEY = (uki.pem(rsa_key(2048, number)) for number in (5, 6))
KEY = PrivateKey.generate()
SIGNED_BY = (key_text(KEY.public),)
END = NOW + timedelta(days=1)
_numbers = itertools.count(1)


def digest():
    """Another one each time, so that what goes and what stays can be told apart."""
    return f"{next(_numbers):064x}"


def boots():
    return BootReference(
        registers={"2": (digest(),)},
        unjudged=(3,),
        firmware=(digest(),),
        variables={PolicyVariable.DB: (digest(),)},
        authorities=(digest(),),
        allow_unprotected_dma=True,
        boot_applications=(digest(),),
        boot_commands=(f"a command {digest()}",),
        kernel_command_lines=(f"/vmlinuz {digest()}",),
        loaded_files=(digest(),),
        owner_keys=(digest(),),
    )


def late_values():
    return LateReference(
        registers={"13": (digest(),)},
        unjudged=(15,),
        policy_keys=(POLICY_KEY,),
        retired=(digest(),),
        sections={".linux": (digest(),)},
        words={"12": (f"root={digest()}",)},
        digests={"14": (digest(),)},
        machine_ids=("ab" * 16,),
        any_machine_id=True,
        volume_keys=1,
    )


def group():
    # A guest's registers are RTMRs of SHA-384.
    guest = BootReference(firmware=("cd" * 48,))
    return ImageGroup(boot=boots(), tdx_boot=guest, late=late_values())


def node(machine):
    return EnrolledNode(
        ek_names=(machine.ek_name,),
        chips=("ab" * 64,),
        devices=("ab" * 8,),
        group="g",
        own={"1": (digest(),), "5": (digest(),)},
        vms=("11111111-2222-3333-4444-555555555555",),
    )


MACHINE, OTHER = Machine("node-0"), Machine("node-1")
PLAIN = ReferenceValues(version=1, issued=NOW, expires=NOW)


def everything():
    own = group()
    return ReferenceValues(
        version=7,
        issued=NOW - timedelta(hours=1),
        expires=NOW + timedelta(days=30),
        nodes={"node-0": node(MACHINE), "node-1": node(OTHER)},
        pages=PagesRoot(nodes=2, pages_size=2, table_size=2, table="ab" * 32),
        tpm=TpmReference(roots=(MAKER_CA.pem,), revoked=("000b" + "ef" * 32,)),
        ima=ImaReference(
            policy=None, violations=(ViolationRule(paths="/tmp/.*", mode=ViolationMode.LOG),)
        ),
        snp=SnpReference(chip_ids=("ab" * 64,)),
        tdx=TdxReference(ppids=("ab" * 16,)),
        paravisor=ParavisorReference(any_vm=True),
        google=google.reference(any_vm=True),
        gpu=GpuReference(devices=("ab" * 8,)),
        tokens=TokenReference(
            issuers={"https://issuer.example/": TokenIssuer(profile=TokenProfile.EAR)}
        ),
        groups={"g": group()},
        unproven={"g": ("node-9",)},
        until={"g": {digest(): END}},
        **msgspec.structs.asdict(own),
    )


FULL = everything()
VALUES = msgspec.structs.replace(FULL, pages=None)


def unlike_its_default(struct, plain):
    return [f for f in struct.__struct_fields__ if getattr(struct, f) == getattr(plain, f)]


def changes(before, after):
    """Each change as a place and what went there."""
    return {(one.where, one.old) for one in compare(before, after)}


def places(before, after):
    return {where for where, _ in changes(before, after)}


def test_every_field_has_a_value_here():
    assert unlike_its_default(FULL, PLAIN) == []
    for one in (FULL.group(""), FULL.groups["g"]):
        assert unlike_its_default(one, ImageGroup()) == []
        assert unlike_its_default(one.boot, BootReference()) == []
        assert unlike_its_default(one.late, LateReference()) == []
    assert unlike_its_default(FULL.nodes["node-0"], EnrolledNode()) == []


def test_the_group_without_a_name_has_every_field():
    assert msgspec.structs.asdict(FULL.group("")) == {
        name: getattr(FULL, name) for name in ImageGroup.__struct_fields__
    }


def test_a_difference_in_any_field_is_found():
    bare = msgspec.structs.replace(PLAIN, version=8)
    found = {where.split(".", 1)[0] for where in places(bare, FULL)}
    assert found == set(ReferenceValues.__struct_fields__) - {"pages"}
    one = msgspec.structs.replace(FULL, nodes={"node-0": EnrolledNode()})
    two = msgspec.structs.replace(FULL, nodes={"node-0": FULL.nodes["node-0"]})
    found = {where.split(".")[2] for where in places(one, two)}
    assert found == set(EnrolledNode.__struct_fields__)


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


def test_every_entry_of_a_boot_can_end():
    """A list that staged roll-outs do not know would keep an old kernel in."""
    for name in ("", "g"):
        late = FULL.group(name).late
        never = {*late.policy_keys, *late.retired, *late.machine_ids}
        listed = set(strings(msgspec.to_builtins(FULL.group(name))))
        assert entries_of(FULL.group(name)) == listed - never


@each("name", "", "g")
def test_what_ends_takes_nothing_with_it(name):
    for entry in sorted(entries_of(VALUES.group(name))):
        for over in (
            without_entries(VALUES, {entry}, [name]),
            in_force(msgspec.structs.replace(VALUES, until={name: {entry: END}}), END),
        ):
            gone = {
                (where, old)
                for where, old in changes(VALUES, over)
                if not where.startswith("until.")
            }
            assert {old for _, old in gone} == {entry}
            assert all(where.startswith("groups.g.") is bool(name) for where, _ in gone)
            assert in_force(VALUES, END - timedelta(seconds=1)) is VALUES


def edits() -> dict[str, Any]:
    kernel = VALUES.boot.boot_applications[0]
    later = END + timedelta(days=1)
    return {
        "retire": (retire, ([kernel],), {"boot.boot_applications"}),
        "stage": (retire, ([kernel],), {"until."}, {"until": later}),
        "remove": (remove, (["node-1"],), {"nodes.node-1"}),
        "put": (put_nodes, ({"node-2": EnrolledNode(group="g")},), {"nodes.node-2"}),
        "set": (set_fields, (["snp.any_chip=true"], NOW), {"snp.any_chip"}),
        "set of a group": (
            set_fields,
            (["boot.unjudged=[1]"], NOW),
            {"groups.g.boot.unjudged"},
            {"group": "g"},
        ),
        "set of a node": (
            set_fields,
            (['devices=["0000000000000001"]'], NOW),
            {"nodes.node-1.devices"},
            {"node": "node-1"},
        ),
        "revoke": (revoke_eks, (["ek:000b" + "12" * 32],), {"tpm.revoked"}),
        "images": (
            accept_images,
            (),
            {"groups.g.late.policy_keys", "groups.g.late.retired"},
            {"keys": [OTHER_KEY], "retired": ["12" * 32], "group": "g"},
        ),
        "images without a group": (
            accept_images,
            (),
            {"late.policy_keys"},
            {"keys": [OTHER_KEY], "retired": [], "group": ""},
        ),
        "ima": (set_ima, (ImaChange(violations=()), NOW), {"ima.violations"}),
    }


@each("name", *edits())
def test_an_edit_changes_what_it_is_for(name):
    change, arguments, expected, *how = edits()[name]
    made = change(VALUES, *arguments, **(how[0] if how else {}))
    found = places(VALUES, made)
    assert found
    assert all(any(where.startswith(one) for one in expected) for where in found), found


def test_an_edition_that_is_written_and_read_is_the_same(tmp_path):
    path, state = tmp_path / "values.json", MemoryState()
    write_reference_values(path, VALUES, KEY)
    assert read_reference_values(path, SIGNED_BY, state).values == VALUES
    how: dict[str, Any] = {
        "key": KEY,
        "signed_by": SIGNED_BY,
        "now": NOW,
        "lifetime": None,
        "state": state,
    }
    made = change_values(path, lambda old: old, **how)
    assert places(VALUES, made) == {"version", "issued"}


def test_an_edition_in_pages_is_the_same(tmp_path):
    path, state = tmp_path / "values.json", MemoryState()
    nodes = {f"node-{n}": VALUES.nodes["node-0"] for n in range(INLINE_NODES + 1)}
    write_reference_values(path, msgspec.structs.replace(VALUES, nodes=nodes), KEY)
    read = read_reference_values(path, SIGNED_BY, state).values
    assert dict(read.nodes.items()) == nodes
    heads = [msgspec.structs.replace(one, nodes={}, pages=None) for one in (read, VALUES)]
    assert heads[0] == heads[1]
    how: dict[str, Any] = {
        "key": KEY,
        "signed_by": SIGNED_BY,
        "now": NOW,
        "lifetime": None,
        "state": state,
    }
    made = change_values(path, lambda old: remove(old, ["node-5"]), **how)
    del nodes["node-5"]
    assert dict(made.nodes.items()) == nodes


@each("name", "", "g")
def test_enrolling_adds_and_takes_nothing_away(name):
    """Other hardware of the node, other groups, ends and rules stay what they were."""
    known = msgspec.structs.replace(VALUES.nodes["node-0"], group=name)
    old = msgspec.structs.replace(VALUES, nodes={**VALUES.nodes, "node-0": known})
    asked = make_question(
        bundle_of(MACHINE), World(values=reference_values(MACHINE)).appraiser, NOW
    )
    one = Enrollment(
        bundle=bundle_of(MACHINE, answer_to=asked), learn_boot=True, secret=asked, group=name
    )
    made = enroll(old, [one], roots=Roots(), now=NOW).values
    gone = {(where, was) for where, was in changes(old, made) if was}
    assert {where for where, _ in gone} <= {"version", "issued", "expires"}
    learned = {where for where, was in changes(old, made) if not was and "nodes." not in where}
    prefix = f"groups.{name}." if name else ""
    assert f"{prefix}boot.boot_applications" in learned
    assert all(one.startswith((f"{prefix}boot.", f"{prefix}late.")) for one in learned), learned


def test_joined_boots_have_what_each_has():
    full = boots(), late_values()
    assert merge([full[0], BootReference()]) == merge([BootReference(), full[0]]) == full[0]
    for other in (None, LateReference()):
        assert merge_late(other, full[1]) == full[1]
    assert merge_late(full[1], LateReference()) == full[1]


LAST = Remembered(
    ek_name="ek:000b" + "ab" * 32,
    ak_name="000b" + "cd" * 32,
    node="node-0",
    clock=11,
    reset_count=12,
    restart_count=13,
    firmware=(1 << 64) - 1,
    seen="2026-06-01T12:00:00Z",
    boot="a boot",
    uptime=14,
    entries=15,
    pcr10="ef" * 32,
)


def test_a_clock_is_kept_and_taken_over_whole(tmp_path):
    assert all(getattr(LAST, one.name) for one in msgspec.structs.fields(Remembered))
    with closing(FileState(tmp_path / "old.sqlite")) as old:
        old.remember(LAST)
        assert old.past(LAST.ek_name) == [LAST]
        with closing(FleetState(tmp_path / "fleet")) as state:
            state.adopt(old)
    with closing(FleetState(tmp_path / "fleet")) as again:
        assert again.past(LAST.ek_name) == [LAST]
