# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about one workload: a Kubernetes object of any kind that holds pod templates.

Rules:

1. values are *effective*: what the pod passes on to its containers is resolved, and so are defaults
   of Kubernetes; such a reading is ``ok``, its reason says "not set", and its place is the block
   that lacks it. ``absent`` is left for what has no default;
2. what a template leaves open is ``templated``, and the reason names the variable. An open rest of
   a collection (a block that a template inserts) is an element of its own whose every reading is
   ``templated``; an open rest of a mapping makes ``templated`` what that mapping lacks;
3. what stands under a template's condition is ``templated`` when the condition lies inside the
   container or pod, and ordinary when it covers the container or pod as a whole;
4. a value of a wrong type (``privileged: "yes"``) is ``error``;
5. no value of a secret is in here: names, classes and lengths.
"""

from enum import StrEnum
from typing import Annotated

from securetrain.audit.facts import (
    MAY_BE_EMPTY,
    ONLY_FAULTS,
    Body,
    Place,
    Reading,
    Runtime,
    SecretKind,
)


class Pair(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A label, an annotation, or a key of a node selector."""

    name: Reading[str]
    text: Reading[str]

    @property
    def label(self) -> str:
        """Its name."""
        return self.name.value or ""


class Setting(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A field that the Pod Security Standards restrict, of a pod or of one container.

    One that stands nowhere is here where it has to be set (``absent``, at the block that lacks it);
    one that a template may set, or an operator, is in the setting of the mapping above it.
    """

    field: str
    """The way to it, as in ``securityContext.capabilities.add[*]``, an annotation's name, or empty
    for whatever does not stand there."""
    text: Reading[str]
    """A capability is in capitals and without ``CAP_``; a profile is ``User`` for a process that is
    held as any of its user's."""


class Source(StrEnum):
    """The source of an environment variable's value."""

    LITERAL = "literal"
    SECRET = "secret"  # noqa: S105 - the name of a source
    CONFIG_MAP = "configMap"
    FIELD = "field"
    """The pod's own fields and resources (``fieldRef``, ``resourceFieldRef``)."""
    FILE = "file"


class Variable(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An environment variable of a container; the last of its name, which is the one that counts.

    One that ``envFrom`` adds as a whole has ``name`` open (``error``: it lies in another object)
    unless the ConfigMap is among the files, whose variables are then here.
    """

    name: Reading[str]
    source: Reading[Source]
    text: Reading[str]
    """The value, where it is a literal and no secret; ``denied`` for a secret, whose value is not
    kept; ``error`` where it lies in another object."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name.value or ""


class SecretLiteral(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A secret that stands in the file: in ``env``, ``command`` or ``args``. Never its value.

    One fails where ``kind`` is there (``exists``).
    """

    name: str
    """The variable or option, as in ``HF_TOKEN`` or ``--api-key``; else the word's number."""
    kind: Reading[SecretKind]
    """``templated`` for one of a secret's name whose value a template sets."""
    length: int
    """Of the value in characters; 0 for one that a template sets."""
    where: str
    """``env``, ``command`` or ``args``."""

    @property
    def label(self) -> str:
        """The place in the container, and its name."""
        return f"{self.where}/{self.name}"


class Mount(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A volume's mount in a container."""

    path: Reading[str]
    """In the container: absolute, without ``..``, ``//`` and a slash at the end."""
    host_path: Reading[str]
    """The host's path that is seen there, subPath included; ``absent`` for other kinds, and
    ``error`` when the pod has no volume of that name."""

    @property
    def label(self) -> str:
        """The path in the container."""
        return self.path.value or ""


class Volume(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A volume of a pod (for a StatefulSet also a claim template)."""

    name: Reading[str]
    kind: Reading[str]
    """The key that Kubernetes uses: ``hostPath``, ``emptyDir``, ``persistentVolumeClaim``,
    ``secret``, ``configMap``, ``projected``, ``nfs``, ``csi``, ... (``emptyDir`` when none)."""
    host_path: Reading[str]
    """Absolute, without ``..``, ``//`` and a slash at the end (``/`` for the root); ``absent`` for
    other kinds."""
    medium: Reading[str]
    """Of an emptyDir: ``Memory``, ``HugePages``, ... or an empty string (the node's disk);
    ``absent`` for other kinds."""
    size_limit: Reading[str]
    """Of an emptyDir, as written; ``absent`` when there is none, and for other kinds."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name.value or ""


class Port(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A port that a container declares."""

    number: Reading[int]
    name: Reading[str]
    """``absent`` when it has none."""
    host_port: Reading[int]
    """``absent`` when it has none; under ``hostNetwork`` the number itself."""

    @property
    def label(self) -> str:
        """The number."""
        return str(self.number.value or "")


class Role(StrEnum):
    """The list of the pod that a container stands in."""

    MAIN = "containers"
    INIT = "initContainers"
    EPHEMERAL = "ephemeralContainers"


class Container(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One container of a pod, of any of its three lists."""

    name: str
    """As written, with the template's text when it is one; ``#1`` for the first without a name."""
    role: Role
    image: Reading[str]
    """As written; ``absent`` when there is none (an operator or a default will set it)."""
    repository: Reading[str]
    """Registry and path, without tag and digest: ``docker.io/library/python``."""
    digest: Reading[str]
    """``sha256:...``; ``absent`` when the image has none."""
    settings: Annotated[tuple[Setting, ...], MAY_BE_EMPTY]
    """What the pod passes on is the pod's."""
    env: Annotated[tuple[Variable, ...], MAY_BE_EMPTY]
    visible_devices: Reading[str]
    """NVIDIA_VISIBLE_DEVICES of `env`; ``absent`` when it is not set."""
    secrets: Annotated[tuple[SecretLiteral, ...], ONLY_FAULTS]
    """Secrets that stand in the file, in environment and arguments."""
    mounts: Annotated[tuple[Mount, ...], MAY_BE_EMPTY]
    ports: Annotated[tuple[Port, ...], MAY_BE_EMPTY]
    claims_gpu: Reading[bool]
    """Whether it asks for a GPU: a limit or request of ``nvidia.com/...``, ``amd.com/gpu``,
    ``gpu.intel.com/...``, or a claim."""
    claims_rdma: Reading[bool]
    """Whether it asks for an RDMA device (``rdma/...``, ``*/roce``, ``*/infiniband``, ``*/efa``,
    ``nvidia.com/*rdma*``, ``intel.com/*rdma*``), or has a claim."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class Right(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A right of a service account: one rule of a role that is bound to it, at the rule's place."""

    role: str
    """``Role/NAME`` or ``ClusterRole/NAME``."""
    binding: str
    """``RoleBinding/NAME`` or ``ClusterRoleBinding/NAME``."""
    everywhere: bool
    """Whether it counts in every namespace (bound by a ClusterRoleBinding)."""
    verbs: tuple[str, ...]
    resources: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """With subresource, as in ``pods/exec``; without groups; ``*`` for all."""
    dangerous: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """What it allows of: ``create pods`` (also by controllers and training kinds), ``exec into
    pods``, ``read secrets``, ``change rights``, ``impersonate``, ``create tokens``, ``reach
    nodes``, ``everything``."""

    @property
    def label(self) -> str:
        """The role."""
        return self.role


class Account(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The service account of a pod."""

    name: Reading[str]
    """``default`` when the pod names none."""
    token_mounted: Reading[bool]
    """automountServiceAccountToken of the pod, else of the account if it is among the files, else
    True."""
    rights: Reading[Annotated[tuple[Right, ...], ONLY_FAULTS]]
    """Of all bindings among the files, of the account and of its groups. ``error`` when no binding
    at all is among the files, or when one's role is not (built-in ClusterRoles are known)."""


class Isolation(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Network policies that select a pod, in one direction.

    A policy counts when its namespace and labels select the pod (labels that the kind's operator
    adds included) and when it has no rule that allows everything.
    """

    limited: Reading[bool]
    """ok True at the policy; ok False at the pod: no policy among the files selects it, or one
    allows everything; ``templated`` or ``error`` when a policy, the namespace or a label is open,
    or a file that has the word NetworkPolicy could not be read."""
    policies: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """``NetworkPolicy/NAMESPACE/NAME`` of those that select it."""


class NodeLabel(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A label without which a node does not get the pod."""

    text: Reading[str]
    """``KEY=VALUE``, of nodeSelector or of the node affinity that is required."""


class Pod(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pod template."""

    role: str
    """What the object calls it: ``Worker``, ``Launcher``, ``head``, a replicated job's, task's or
    group's name; empty when the object has one. Two of one name are told apart by ``#2``."""
    pointer: str
    """The path of its spec in the object, as in ``/spec/template/spec``."""
    labels: Annotated[tuple[Pair, ...], MAY_BE_EMPTY]
    settings: Annotated[tuple[Setting, ...], MAY_BE_EMPTY]
    runtime_class: Reading[str]
    """``absent`` when it has none."""
    node_labels: Annotated[tuple[NodeLabel, ...], MAY_BE_EMPTY]
    account: Account
    ingress: Isolation
    egress: Isolation
    containers: tuple[Container, ...]
    """Of all three lists."""
    volumes: Annotated[tuple[Volume, ...], MAY_BE_EMPTY]

    @property
    def label(self) -> str:
        """Its role, or the path of its spec."""
        return self.role or self.pointer


class Ray(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The access to a Ray cluster."""

    auth: Reading[str]
    """``token`` or ``disabled``, of ``authOptions.mode``, else of RAY_AUTH_MODE (or
    RAY_AUTH_TOKEN with a value) of the head; ``disabled`` when neither is there, ``absent`` for a
    RayJob or RayService that selects a cluster by ``clusterSelector``."""


class Workload(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One object with pod templates, or a container that something else starts."""

    kind: str
    """As written, as in ``PyTorchJob``; empty when a template decides it."""
    api_version: Reading[str]
    """``absent`` when it has none."""
    group: str
    """The group of the API version, as in ``kubeflow.org``; empty for the core's."""
    name: Reading[str]
    """``absent`` when it has none (or generateName, which is then in the reason)."""
    namespace: Reading[str]
    """``default`` when it has none."""
    labels: Annotated[tuple[Pair, ...], MAY_BE_EMPTY]
    rendered: Reading[bool]
    """ok True for plain YAML and what helm or kustomize rendered; ``templated`` when it was read
    from a template's text, with the number of open places."""
    runtime: Reading[Runtime]
    inside: str
    """What holds it: ``ConfigMap/launch launch.yaml`` or ``here-document``; empty for a file."""
    pods: tuple[Pod, ...]
    ray: Reading[Ray]
    """``absent`` for what is no Ray kind."""

    @property
    def label(self) -> str:
        """Kind and name."""
        return f"{self.kind}/{self.name.value or ''}"


class WorkloadFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="workload"):
    """A facts document about one workload."""

    file: str
    """The file, and in it the object: ``jobs/a.yaml#2``, ``#2/items[3]`` of a List,
    ``#2/KEY#1`` in a ConfigMap's string, ``run.sh#1`` for the first here-document of a script."""
    workload: Workload

    @property
    def asset(self) -> str:
        """The object in its file."""
        return f"manifest:{self.file}"

    @property
    def title(self) -> str:
        """Kind and name, and what holds it where that is no file."""
        inside = f" in {self.workload.inside}" if self.workload.inside else ""
        return f"{self.workload.label}{inside}"
