# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Each control of the Pod Security Standards at good, bad and open values, wherever it stands."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.engine.check import compile_check
from securetrain.audit.engine.findings import worst_states
from securetrain.audit.sources import catalogue
from securetrain.audit.sources.catalogue import load_checks
from securetrain.audit.subjects.kubernetes.collect.collect import collect_manifests
from securetrain.audit.subjects.kubernetes.standards import controls, rows
from securetrain.core.vocabulary import State
from securetrain.policy.load import load_policy
from tests.audit.conftest import NOW

HARDENED = load_policy("hardened").policy
LISTS = ("containers", "initContainers", "ephemeralContainers")
OPEN = "{{ .Values.x }}"
GOOD = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
BAD = {"boolean": ["true", "false"], "integer": ["0", "80"], "text": ["Unconfined"]}
WINDOWS = {"os": {"name": "windows"}}
LEFT_OUT = {"seccompProfile_baseline"}  # what it refuses the restricted one refuses
EVERY = load_checks()
CHECKS = [one for one in EVERY if one.spec.call and one.spec.call.fn == "pods.secured"]


def asked(control):
    """The checks that ask for a control."""
    return [one for one in CHECKS if one.spec.call and control in one.spec.call.args["controls"]]


def put(where, path, value):
    """Set a field; a step with ``[*]`` is the one element of a list."""
    step, _, below = path.partition(".")
    key = step.removesuffix("[*]")
    if below and key == step:
        put(where.setdefault(key, {}), below, value)
    elif below:
        where[key] = [{}]
        put(where[key][0], below, value)
    else:
        where[key] = value if key == step else [value]


def pod(place, path, value, **more):
    """A pod that the standards take, but for one value: its own, or of a list of containers."""
    one = {"name": "c", "image": "x", "securityContext": json.loads(json.dumps(GOOD))}
    spec = {"containers": [one], **more}
    if place in LISTS[1:]:
        spec[place] = [{**json.loads(json.dumps(one)), "name": "d"}]
    put(spec if place == "pod" else spec[place][0], path, value)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def state(tmp_path, document, checks):
    """The worst that these checks say of it."""
    path = tmp_path / "pod.yaml"
    path.write_text(json.dumps(document))
    result = audit(facts_of(collect_manifests([path], now=NOW)), checks, HARDENED, NOW)
    said = worst_states(one for one in result.findings if one.check.startswith("ST-K8S"))
    return {State.PASS, *said.values()}


def typed(kind, word):
    return json.loads(word) if kind in {"boolean", "integer"} else word


def values(row):
    """A value that a row takes, if it takes one, and one that it does not."""
    good = [one for one in (*(row.allowed or ("1000",)), *row.contains) if row.takes(one)]
    bad = [one for one in BAD.get(row.type, ["SYS_TIME"]) if not row.takes(one)]
    return good[:1], bad[0]


def test_every_control_is_asked_for():
    assert {one for one in controls() if not asked(one)} == LEFT_OUT


@pytest.mark.parametrize("control", sorted(controls()))
def test_a_control_at_its_good_bad_and_open_values(control, tmp_path, subtests):
    checks = asked(control) or asked("seccompProfile_restricted")
    for row in controls()[control].settings:
        if row.of not in {"pod", "container"}:
            continue
        good, bad = values(row)
        for place in ["pod"] if row.of == "pod" else LISTS:
            with subtests.test(f"{place} {row.path}"):
                taken = [typed(row.type, one) for one in good]
                unset = row.undefined == "allowed" and row.type != "capability"
                for value in (*taken, None) if unset and asked(control) else taken:
                    document = pod(place, row.path, value)
                    assert state(tmp_path, document, checks) == {State.PASS}, value
                document = pod(place, row.path, typed(row.type, bad))
                assert State.FAIL in state(tmp_path, document, checks)
                for path in (row.path, row.path.rpartition(".")[0].removesuffix("[*]")):
                    if path and path != "securityContext":
                        there = state(tmp_path, pod(place, path, OPEN), checks)
                        assert State.UNKNOWN in there, path


@pytest.mark.parametrize("place", LISTS)
def test_what_has_to_be_set_fails_where_it_is_not(place, tmp_path, subtests):
    for path, row in rows("container").items():
        control = next(
            name for name, one in controls().items() if row in one.settings and asked(name)
        )
        if row.undefined == "allowed":
            continue
        with subtests.test(path):
            assert State.FAIL in state(tmp_path, pod(place, path, None), asked(control))
            if row.undefined == "inherited":
                passed = pod(place, path, None)
                put(passed["spec"], path, typed(row.type, (row.allowed or ("",))[0]))
                assert state(tmp_path, passed, asked(control)) == {State.PASS}


@pytest.mark.parametrize(
    ("control", "path", "value", "sparing"),
    [
        ("allowPrivilegeEscalation", "securityContext", {}, WINDOWS),
        ("capabilities_restricted", "securityContext.capabilities", {}, WINDOWS),
        ("procMount", "securityContext.procMount", "Unmasked", {"hostUsers": False}),
        ("runAsUser", "securityContext.runAsUser", 0, {"hostUsers": False}),
    ],
)
def test_a_pod_that_a_control_spares_is_not_judged_by_it(control, path, value, sparing, tmp_path):
    checks = [tune(one, controls=(control,)) for one in asked(control)[:1]]
    document = pod("containers", path, value)
    assert State.FAIL in state(tmp_path, document, checks)
    document["spec"] |= sparing
    assert state(tmp_path, document, checks) == {State.PASS}
    document["spec"] |= {"os": {"name": OPEN}} if sparing is WINDOWS else {"hostUsers": OPEN}
    assert State.UNKNOWN in state(tmp_path, document, checks)


def tune(check, **args):
    """A check that asks for something else."""
    call = replace(check.spec.call, args=check.spec.call.args | args)
    return compile_check(replace(check.spec, call=call), check.source)


NAMES = ("container.apparmor.security.beta.kubernetes.io/c",)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("runtime/default", State.PASS),
        ("localhost/mine", State.PASS),
        ("unconfined", State.FAIL),
        (OPEN, State.UNKNOWN),
    ],
)
def test_the_annotation_that_came_before_the_field_counts(value, wanted, tmp_path):
    document = pod("pod", "hostNetwork", None)
    document["metadata"]["annotations"] = {NAMES[0]: value}
    assert wanted in state(tmp_path, document, asked("appArmorProfile"))


@pytest.mark.parametrize(
    ("volume", "failed"),
    [
        ({"hostPath": {"path": "/data"}}, {"ST-K8S-032"}),
        ({"hostPath": {"path": "/var/lib/etcd"}}, {"ST-K8S-032", "ST-K8S-005"}),
        ({"nfs": {"server": "s", "path": "/"}}, {"ST-K8S-041"}),
        ({"cephfs": {}}, {"ST-K8S-041"}),
        ({"unheardOf": {}}, {"ST-K8S-041"}),
        ({"emptyDir": {}}, set()),
        ({"ephemeral": {}}, set()),
        ({"image": {}}, set()),
    ],
)
def test_kinds_of_volumes(volume, failed, tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text(json.dumps(pod("pod", "volumes", [{"name": "v", **volume}])))
    result = audit(facts_of(collect_manifests([path], now=NOW)), EVERY, HARDENED, NOW)
    found = {one.check for one in result.of(State.FAIL) if "volumes[" in one.subject}
    assert found == failed


SYSTEM = (
    *(
        "/",
        "/var",
        "/opt",
        "/etc",
        "/usr",
        "/run/munge",
        "/home",
        "/root",
        "/home/a",
        "/opt/cni/bin",
    ),
    *("/etc/cni/net.d", "/var/lib", "/var/lib/etcd", "/var/lib/kubelet/pods", "/etc/cron.d"),
    *(
        "/var/spool/cron",
        "/etc/systemd/system",
        "/run/systemd",
        "/home/a/.ssh",
        "/home/a/.kube/config",
    ),
    *("/var/lib/containerd", "/dev", "/dev/sda", "/proc", "/sys", "/data/../etc", "/var/run/munge"),
)
RUNTIME = ("/run", "/var/run", "/run/containerd/containerd.sock", "/var/run/docker.sock")
ORDINARY = (
    *("/data", "/mnt/weights", "/raid", "/scratch/a", "/opt/models", "/home/a/data", "/local"),
    *(
        "/dev/gdrdrv",
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/infiniband",
        "/dev/infiniband/uverbs0",
    ),
    *("/dev/kfd", "/dev/dri", "/dev/hugepages", "/usr/local/nvidia/lib64", "/var/data"),
)


@pytest.mark.parametrize(
    ("paths", "check"), [(SYSTEM, "ST-K8S-005"), (RUNTIME, "ST-K8S-006"), (ORDINARY, "")]
)
def test_which_paths_of_the_node_are_critical(paths, check, tmp_path, subtests):
    critical = [one for one in EVERY if one.id in {"ST-K8S-005", "ST-K8S-006"}]
    for one in paths:
        with subtests.test(one):
            document = pod("pod", "volumes", [{"name": "v", "hostPath": {"path": one}}])
            (tmp_path / "pod.yaml").write_text(json.dumps(document))
            bodies = collect_manifests([tmp_path / "pod.yaml"], now=NOW)
            result = audit(facts_of(bodies), critical, HARDENED, NOW)
            assert {found.check for found in result.of(State.FAIL)} == ({check} if check else set())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_bad_value_is_never_passed_whatever_else_is_open(data, tmp_path_factory):
    """A hole beside a literal hides nothing."""
    names = sorted(one for one in controls() if asked(one))
    control = data.draw(st.sampled_from(names))
    drawn = [one for one in controls()[control].settings if one.of in {"pod", "container"}]
    if not drawn or control == "restrictedVolumes":
        return
    row = data.draw(st.sampled_from(drawn))
    place = "pod" if row.of == "pod" else data.draw(st.sampled_from(LISTS))
    bad = None if row.contains else typed(row.type, values(row)[1])
    document = pod(place, row.path, bad)
    other = data.draw(st.sampled_from(sorted(rows("pod"))))
    if not row.path.startswith(other.partition(".")[0]) and not other.startswith(("os", "hostU")):
        put(document["spec"], other.partition("[")[0].partition(".")[0], OPEN)
    folder = tmp_path_factory.mktemp("drawn")
    assert State.FAIL in state(folder, document, asked(control))


def test_a_table_that_was_changed_is_not_what_was_signed(monkeypatch):
    signed = catalogue.Pins.of(HARDENED, CHECKS, None)
    lax = {name: one for name, one in controls().items() if name != "privileged"}
    monkeypatch.setattr(catalogue, "controls", lambda: lax)
    assert catalogue.Pins.of(HARDENED, CHECKS, None).checks != signed.checks
