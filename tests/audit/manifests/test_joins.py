# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What other objects say of a workload: policies, rights, ways in, admission."""

import pytest

from securetrain.audit.documents import facts_of
from securetrain.audit.engine.audit import audit
from securetrain.audit.facts import Outcome
from securetrain.audit.sources.catalogue import load_checks
from securetrain.core.vocabulary import State
from tests.audit.conftest import NOW
from tests.tables import each

JOB = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: w, namespace: train}
spec:
  tasks:
  - name: master
    template:
      metadata: {labels: {app: llm}}
      spec:
        serviceAccountName: runner
        containers: [{name: c, image: x}]
---
"""
POLICY = """\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: n, namespace: %s}
spec: %s
---
"""
DENY = "{podSelector: {}, policyTypes: [Ingress, Egress]}"


@pytest.fixture
def limits(read):
    def go(text):
        pod = read(JOB + text).workloads[0].pods[0]
        return pod.ingress.limited.value, pod.egress.limited.value

    return go


@pytest.mark.parametrize(
    ("namespace", "spec", "expected"),
    [
        ("train", DENY, (True, True)),
        ("other", DENY, (False, False)),
        ("train", "{podSelector: {}}", (True, False)),
        ("train", "{podSelector: {}, policyTypes: [Egress]}", (False, True)),
        ("train", "{podSelector: {matchLabels: {app: llm}}, egress: []}", (True, True)),
        ("train", "{podSelector: {matchLabels: {app: web}}}", (False, False)),
        ("train", "{podSelector: {matchLabels: {volcano.sh/job-name: w}}}", (True, False)),
        (
            "train",
            "{podSelector: {matchExpressions: [{key: app, operator: In, values: [llm]}]}}",
            (True, False),
        ),
        (
            "train",
            "{podSelector: {matchExpressions: [{key: app, operator: Exists}]}}",
            (True, False),
        ),
        (
            "train",
            "{podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}",
            (False, False),
        ),
        ("train", "{podSelector: {}, ingress: [{}]}", (False, False)),
        ("train", "{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}", (True, False)),
        (
            "train",
            "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}",
            (False, False),
        ),
        (
            "train",
            "{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}]}]}",
            (False, False),
        ),
        ("'{{ ns }}'", DENY, (None, None)),
        ("train", "{podSelector: {matchLabels: {app: '{{ app }}'}}}", (None, False)),
    ],
)
def test_a_policy_isolates_what_it_selects(limits, namespace, spec, expected):
    assert limits(POLICY % (namespace, spec)) == expected


def test_a_policy_that_allows_everything_undoes_the_others(limits):
    both = POLICY % ("train", DENY) + POLICY % ("train", "{podSelector: {}, ingress: [{}]}")
    assert limits(both) == (False, True)


def test_a_selector_of_calico_leaves_the_answer_open(limits):
    text = (POLICY % ("train", "{selector: app == 'llm'}")).replace(
        "networking.k8s.io/v1", "projectcalico.org/v3"
    )
    assert limits(text)[0] is None


def test_a_file_that_was_not_read_may_have_the_policy(limits):
    assert limits("kind: NetworkPolicy\nspec: {\n") == (None, None)
    assert limits("kind: Other\nspec: {\n") == (False, False)


RBAC = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: b, namespace: train}
roleRef: {kind: %s, name: %s}
subjects: [%s]
---
"""
RUNNER = "{kind: ServiceAccount, name: runner}"
ROLE = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: r, namespace: train}
rules:
- {apiGroups: [""], resources: [%s], verbs: [%s]}
---
"""


@pytest.fixture
def rights(read):
    def go(text):
        return read(JOB + text).workloads[0].pods[0].account.rights

    return go


def dangers(reading):
    return [name for one in reading.value for name in one.dangerous]


@pytest.mark.parametrize(
    ("resources", "verbs", "expected"),
    [
        ("pods", "get, list", []),
        ("pods", "create", ["create pods"]),
        ("pods/exec", "create", ["exec into pods"]),
        ("secrets", "list", ["read secrets"]),
        ("secrets", "create", []),
        ("pytorchjobs", "patch", ["create pods"]),
        ("rolebindings", "create", ["change rights"]),
        ("serviceaccounts/token", "create", ["create tokens"]),
        ("configmaps", "'*'", []),
    ],
)
def test_rights_that_no_training_job_needs(rights, resources, verbs, expected):
    found = rights(ROLE % (resources, verbs) + RBAC % ("Role", "r", RUNNER))
    assert dangers(found) == expected
    assert [one.at.line for one in found.value] == [17]


def test_rights_come_by_groups_and_by_roles_that_every_cluster_has(rights):
    group = "{kind: Group, name: 'system:serviceaccounts:train'}"
    assert dangers(rights(RBAC % ("ClusterRole", "cluster-admin", group))) == ["everything"]
    assert dangers(rights(RBAC % ("ClusterRole", "view", RUNNER))) == []
    assert dangers(rights(RBAC % ("ClusterRole", "edit", "{kind: User, name: bob}"))) == []


@each(
    "id, rules, dangerous",
    ("all of a template", "{{ toYaml .Values.rules }}", None),
    ("a verb of a template", "[{verbs: ['{{ .v }}'], resources: [secrets]}]", None),
    ("verbs of a template", "[{verbs: {{ .v }}, resources: [secrets]}]", None),
    ("resources of a template", "[{verbs: [get], resources: ['{{ .r }}']}]", None),
    ("more of a template", '\n- verbs: [get]\n  {{- include "x" . }}', None),
    ("too many", "[" + 201 * "{verbs: [get], resources: [pods]}, " + "]", None),
    ("others add to it", "[]\naggregationRule: {}", None),
    ("a danger beside", "[{verbs: ['{{ .v }}']}, {verbs: [get], resources: [secrets]}]", True),
)
def test_rules_that_a_template_decides_are_no_rights_that_are_known(rights, rules, dangerous):
    role = ROLE.partition("rules:")[0] + f"rules: {rules}\n---\n"
    found = rights(role + RBAC % ("Role", "r", RUNNER))
    assert found.outcome is (Outcome.OK if dangerous else Outcome.ERROR)
    assert not dangerous or [one.dangerous for one in found.value] == [(), ("read secrets",)]


@each(
    "id, role, subject",
    ("the subject", "r", "{kind: ServiceAccount, name: '{{ .x }}'}"),
    ("all subjects", "r", "{{ .x }}"),
    ("the role", "'{{ .x }}'", "{kind: ServiceAccount, name: another}"),
)
def test_a_binding_that_a_template_decides_may_be_of_the_account(rights, role, subject):
    found = rights(ROLE % ("pods", "get") + RBAC % ("Role", role, subject))
    assert found.outcome is Outcome.ERROR
    assert found.reason.startswith("RoleBinding/b: ")


def test_without_bindings_or_a_role_rights_are_not_known(rights):
    assert rights("").outcome is Outcome.ERROR
    unknown = rights(RBAC % ("ClusterRole", "custom", RUNNER))
    assert unknown.outcome is Outcome.ERROR
    assert "ClusterRole/custom" in unknown.reason
    assert rights("kind: RoleBinding\nx: {\n").outcome is Outcome.ERROR


def test_bindings_and_policies_join_within_one_repository(collect, tmp_path):
    """What stands in another checkout is of another cluster, and frees or condemns nobody here."""
    rights = {}
    for kind in ("apart", "together"):
        for name, text in (("a", JOB), ("b", RBAC % ("ClusterRole", "cluster-admin", RUNNER))):
            (tmp_path / kind / name).mkdir(parents=True)
            (tmp_path / kind / name / "x.yaml").write_text(text)
            if kind == "apart":
                (tmp_path / kind / name / ".git").mkdir()
        (workload,) = collect(tmp_path / kind).workloads
        rights[kind] = workload.pods[0].account.rights
    assert rights["apart"].outcome is Outcome.ERROR
    assert rights["together"].value[0].dangerous == ("everything",)


def test_one_rule_that_many_pods_get_is_one_finding(collect, tmp_path, fixtures):
    several = JOB + "---\n" + JOB.replace("name: w", "name: v")
    (tmp_path / "a.yaml").write_text(several + RBAC % ("ClusterRole", "cluster-admin", RUNNER))
    facts = facts_of(collect(tmp_path).bodies)
    result = audit(facts, load_checks(), fixtures.policy, NOW)
    (found,) = [one for one in result.of(State.FAIL) if one.check == "ST-K8S-015"]
    (other,) = found.evidence["also"].values()
    assert other.startswith("manifest:")
    tokens = [one for one in result.of(State.FAIL) if one.check == "ST-K8S-014"]
    assert ["also" in one.evidence for one in tokens] == [False, False]


def test_the_account_may_keep_its_token_to_itself(read):
    account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: runner, namespace: train}\n"
    mounted = read(JOB + account).workloads[0].pods[0].account.token_mounted
    assert mounted.value is True
    text = account + "automountServiceAccountToken: false\n"
    assert read(JOB + text).workloads[0].pods[0].account.token_mounted.value is False


def test_ways_in_are_joined_with_what_they_reach(read):
    service = (
        "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: train}\n"
        "spec: {type: %s, selector: {%s}, ports: [{port: 80}]}\n---\n"
    )
    route = (
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i, namespace: train}\n"
        "spec: {defaultBackend: {service: {name: s, port: {number: 80}}}}\n"
    )
    found = read(JOB + service % ("NodePort", "app: llm") + route).cluster.entrances
    assert [(one.kind, one.open.value, one.purpose.value) for one in found] == [
        ("Service", True, "rendezvous"),
        ("Ingress", True, "rendezvous"),
    ]
    assert found[0].reaches == ("Job/train/w/master",)
    assert found[0].at.line == 16
    (closed,) = read(JOB + service % ("ClusterIP", "app: llm")).cluster.entrances
    assert closed.open.value is False
    (other,) = read(JOB + service % ("NodePort", "app: web")).cluster.entrances
    assert other.purpose.value == "other"
    (opened,) = read(JOB + service % ("'{{ type }}'", "app: web")).cluster.entrances
    assert opened.open.outcome is Outcome.TEMPLATED


def test_a_route_stands_where_it_names_the_worst_of_what_it_leads_to(read):
    text = (
        JOB
        + """\
apiVersion: v1
kind: Service
metadata: {name: s, namespace: train}
spec: {selector: {app: llm}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: train}
spec:
  rules:
  - http:
      paths:
      - backend: {service: {name: web, port: {number: 80}}}
      - backend:
          service:
            name: s
            port: {number: 80}
"""
    )
    _, route = read(text).cluster.entrances
    assert route.purpose.value == "rendezvous"
    assert text.splitlines()[route.at.line - 1].strip() == "name: s"


SIGNED = {
    "kyverno": (
        "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: k}\n"
        "spec: {validationFailureAction: %s, rules: [{match: {any: [{resources: "
        "{kinds: [Pod]%s}}]}, verifyImages: [{imageReferences: ['*']}]}]}\n---\n"
    ),
    "sigstore": (
        "apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\n"
        "metadata: {name: c}\nspec: {mode: %s}\n---\n"
    ),
    "space": "apiVersion: v1\nkind: Namespace\nmetadata: {name: train%s}\n---\n",
    "ratify": (
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n"
        "metadata: {name: ratify-hook}\n---\n"
    ),
}
LABELLED = SIGNED["space"] % ", labels: {policy.sigstore.dev/include: 'true'}"


@pytest.mark.parametrize(
    ("group", "kind", "missed"),
    [("batch.volcano.sh", "pytorchjobs", ()), ("kubeflow.org", "trainjobs", ()),
     ("batch", "cronjobs", ("Job",)), ("apps", "deployments", ("Job",)),
     ("'*'", "cronjobs", ("Job",)), ("'{{ .Values.group }}'", "cronjobs", None)],
)  # fmt: skip
def test_a_webhook_about_its_operators_own_kinds_overlooks_no_other(read, group, kind, missed):
    hook = (
        SIGNED["ratify"]
        .replace("ratify-hook}", "own}")
        .replace(
            "\n---",
            (f"\nwebhooks: [{{rules: [{{apiGroups: [{group}], resources: [{kind}]}}]}}]\n---"),
        )
    )
    (found,) = read(JOB + hook).cluster.admissions
    assert found.missed.value == missed


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        (SIGNED["kyverno"] % ("Enforce", ""), True),
        (SIGNED["kyverno"] % ("Audit", ""), False),
        (SIGNED["kyverno"] % ("Enforce", ", namespaces: [tr*]"), True),
        (SIGNED["kyverno"] % ("Enforce", ", namespaces: [other]"), False),
        (SIGNED["kyverno"] % ("Enforce", ", namespaceSelector: {a: b}"), None),
        (SIGNED["sigstore"] % "enforce", None),
        (SIGNED["sigstore"] % "enforce" + LABELLED, True),
        (SIGNED["sigstore"] % "warn" + LABELLED, False),
        (SIGNED["sigstore"] % "enforce" + SIGNED["space"] % "", False),
        (SIGNED["sigstore"] % "'{{ mode }}'" + LABELLED, None),
        (SIGNED["ratify"], True),
    ],
)
def test_who_admits_images_that_nobody_signed(read, text, wanted):
    (space,) = read(JOB + text).cluster.namespaces
    assert space.signatures.value is wanted


def test_admission_misses_kinds_that_it_does_not_name(read):
    policy = (
        "apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: k}\nspec:\n  rules:\n"
        "  - match: {any: [{resources: {kinds: [%s]}}]}\n"
    )
    text = JOB.replace("kind: Job", "kind: PyTorchJob")
    assert read(text + policy % "Deployment, Job").cluster.admissions[0].missed.value == (
        "PyTorchJob",
    )
    assert read(text + policy % "Pod").cluster.admissions[0].missed.value == ()
    assert read(text + policy % "ConfigMap").cluster.admissions == ()
    assert read(text + policy % "'{{ kinds }}'").cluster.admissions[0].missed.outcome is (
        Outcome.TEMPLATED
    )


def test_namespaces_say_what_they_enforce(read):
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: train%s}\n"
    (none,) = read(JOB).cluster.namespaces
    assert none.pod_security.outcome is Outcome.ERROR
    (bare,) = read(JOB + space % "").cluster.namespaces
    assert bare.pod_security.outcome is Outcome.ABSENT
    label = ", labels: {pod-security.kubernetes.io/enforce: restricted}"
    (labelled,) = read(JOB + space % label).cluster.namespaces
    assert labelled.pod_security.value == "restricted"


def test_secrets_that_stand_in_objects(read):
    secret = (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"
        "data: {a: aHVudGVyMjJodW50ZXI=, b: ''}\nstringData: {c: <fill in>, d: '{{ d }}'}\n"
    )
    found = read(secret)
    kinds = {one.key: one.kind.outcome for one in found.cluster.secrets}
    assert kinds == {"a": Outcome.OK, "d": Outcome.TEMPLATED}
    assert all(b"hunter" not in body.to_json() for body in found.bodies)
