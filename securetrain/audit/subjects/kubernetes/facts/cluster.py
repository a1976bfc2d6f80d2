# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about a cluster as far as a set of files shows it: all that is no single workload.

The rules are those of `workload.py`.
"""

from typing import Annotated

from securetrain.audit.facts import MAY_BE_EMPTY, ONLY_FAULTS, Body, Fact, Place, Reading


class Namespace(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A namespace that a workload of the files stands in, or that the files declare."""

    name: str
    workloads: int
    """How many workloads of the files stand in it."""
    pod_security: Reading[str]
    """The label ``pod-security.kubernetes.io/enforce``; ``absent`` when the Namespace has none;
    ``error`` when no Namespace of that name is among the files."""
    signatures: Reading[bool]
    """Whether a policy of admission among the files refuses images without a signature there;
    ``error`` when no policy about signatures is among the files, or it is not known whom it
    covers."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class Entrance(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A way to a pod from outside the cluster, or a Service that is none.

    One for each Service, each Ingress, route or virtual service, each ``hostPort`` of a container
    (of a pod that is not on the host's network), and each Service that a Ray kind asks its operator
    for. It stands at what opens it: the Service's type.
    """

    name: str
    """Kind, namespace and name, as in ``Service/train/master``; for a hostPort the workload's, the
    container and the port."""
    kind: str
    """``Service``, ``Ingress``, ``HTTPRoute``, ``VirtualService``, ``Route``, ``hostPort``, or the
    kind whose operator makes a Service."""
    type: Reading[str]
    """Of a Service: ``ClusterIP`` (the default), ``NodePort``, ``LoadBalancer``, ``ExternalName``,
    ``externalIPs``; for all others their kind."""
    open: Reading[bool]
    """Whether it leads in from outside: `type` is none of ClusterIP and ExternalName."""
    ports: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """Numbers and names."""
    reaches: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """Pods of workloads of the files that it selects, as ``PyTorchJob/train/llama/Master``."""
    purpose: Reading[str]
    """What is behind it, the worst of all its ports: ``rendezvous`` (a master or launcher, or a
    port of one), ``dashboard`` (Ray's, TensorBoard, MLflow, ...), ``notebook``, ``training``
    (another pod of a training kind), ``other``; by ports, pods with their images, and names."""

    @property
    def label(self) -> str:
        """Its name."""
        return self.name


class Admission(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy of admission that judges pod specs, or a webhook."""

    name: str
    """Kind and name."""
    engine: str
    """``kyverno``, ``gatekeeper``, ``validatingadmissionpolicy`` or ``webhook``."""
    missed: Reading[Annotated[tuple[str, ...], MAY_BE_EMPTY]]
    """Kinds of workloads of the files that it does not match, while it matches some kind that holds
    pods and not Pod itself: ``PyTorchJob``. Empty when it misses none."""
    failure_policy: Reading[str]
    """Of a webhook: ``Fail`` (the default) or ``Ignore``; ``absent`` for a policy of an engine."""

    @property
    def label(self) -> str:
        """Kind and name."""
        return self.name


class StoredSecret(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value that stands in a Secret of the files, or a secret in a ConfigMap; never the value."""

    name: str
    """``Secret/train/hf``: kind, namespace, name."""
    key: str
    kind: Reading[str]
    """One of `SecretKind`, or ``secret`` for any value of a Secret that is no placeholder;
    ``templated`` for one that a template sets."""
    length: int

    @property
    def label(self) -> str:
        """Name and key."""
        return f"{self.name}/{self.key}"


class Said(Place, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An object for which an expression does not hold, or of which it says nothing."""

    object: str
    """As in assets: ``jobs/a.yaml#2``."""
    field: str
    """The field that decided, which is what `at` is the place of: ``spec.containers[0].image``."""
    holds: Reading[bool]
    """ok False, or not ok and why."""


class Asked(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of a site's expressions, which must hold of every object of its kinds."""

    digest: str
    """SHA-256 of the expression and the kinds."""
    objects: int
    """Objects that it was asked of."""
    said: Annotated[tuple[Said, ...], MAY_BE_EMPTY]

    @property
    def label(self) -> str:
        """The digest."""
        return self.digest


class Cluster(Fact, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All objects of the files together."""

    name: str
    namespaces: Annotated[tuple[Namespace, ...], MAY_BE_EMPTY]
    entrances: Annotated[tuple[Entrance, ...], MAY_BE_EMPTY]
    admissions: Annotated[tuple[Admission, ...], MAY_BE_EMPTY]
    secrets: Annotated[tuple[StoredSecret, ...], ONLY_FAULTS]
    kinds: Annotated[tuple[str, ...], MAY_BE_EMPTY]
    """Kinds of the workloads, each once."""
    objects: Annotated[tuple[Asked, ...], MAY_BE_EMPTY] = ()
    """What a site's expressions say of the objects; one that is not in here was not asked."""


class ClusterFacts(Body, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="cluster"):
    """A facts document about one cluster."""

    cluster: Cluster

    @property
    def asset(self) -> str:
        """The cluster, by the name that was given; ``files`` when none was."""
        return f"cluster:{self.cluster.name}"
