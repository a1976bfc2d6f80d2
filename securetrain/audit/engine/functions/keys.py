# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about keys and certificates of nodes and authorities."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from securetrain.audit.engine.fields import View
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from securetrain.audit.facts import Reading
    from securetrain.audit.subjects.node.facts.access import Certificate, Identity

_SKEW = timedelta(minutes=15)
"""Between clocks; certificates begin a little before they are made."""

_ID: Final = ("node", "identities", "*")
_CERTIFICATE: Final = (
    *fields(*_ID, of=("path", "role")),
    *fields(*_ID, "certificate", of=("begins", "ends", "key", "digest")),
)
_KEYS: Final = (*_CERTIFICATE, *fields(*_ID, "key", of=("uid", "mode")))


class WeakArgs(Args, frozen=True, kw_only=True):
    """Keys and digests that are too weak."""

    keys: tuple[str, ...]
    digests: tuple[str, ...]


@function("identity.keys_kept", reads=_KEYS)
def keys_kept(view: View, _: NoArgs) -> list[Judgement]:
    """A node's key is its user's alone, and its certificate is in date."""
    found = []
    for identity in _of(view, "node"):
        problems = [_key_problem(view, identity), _date_problem(view, identity.certificate)]
        found.append(_judged(identity, problems))
    return found


@function(
    "identity.authorities_apart",
    reads=(
        *_CERTIFICATE,
        *fields(*_ID, "anchor", of=("begins", "ends", "key", "digest")),
        (*_ID, "fits"),
    ),
)
def authorities_apart(view: View, args: WeakArgs) -> list[Judgement]:
    """No authority's key lies on a node, and what a node trusts is in date and strong."""
    found = []
    for identity in records(view, "identities"):
        if identity.role == "authority":
            problem = "the key of an authority is on a machine that runs jobs"
            found.append(_judged(identity, [(FALSE, problem)]))
            continue
        problems = [_date_problem(view, identity.anchor)]
        problems += [_strength(one, args) for one in (identity.anchor, identity.certificate)]
        if identity.fits is None:
            problems.append((unknown("whether the authority signed the certificate"), ""))
        elif not identity.fits:
            problems.append((FALSE, "the certificate is not the authority's"))
        found.append(_judged(identity, problems))
    return found


@function("identity.sessions_short", reads=_KEYS)
def sessions_short(view: View, _: NoArgs) -> list[Judgement]:
    """A node's certificate lives no longer than the policy allows, and keys of CAs are private."""
    limit = timedelta(minutes=view.policy.identity.certificate_lifetime_minutes)
    found = []
    for identity in records(view, "identities"):
        problems = [_key_problem(view, identity)]
        if identity.role == "node":
            problems.append(_lifetime(identity.certificate, limit))
        found.append(_judged(identity, problems))
    return found


def _of(view: View, role: str) -> "Iterator[Identity]":
    return (one for one in records(view, "identities") if one.role == role)


def _judged(identity: "Identity", problems: list[tuple[Truth, str]]) -> Judgement:
    bad = [why for good, why in problems if good.value is False]
    open_ = [good for good, _ in problems if good.value is None]
    good = FALSE if bad else (open_[0] if open_ else TRUE)
    return Judgement(
        label=identity.label,
        good=good,
        why="; ".join(bad),
        location=identity.location,
        evidence={"role": identity.role},
    )


def _key_problem(view: View, identity: "Identity") -> tuple[Truth, str]:
    key = identity.key.value
    if key is None:
        return unknown(f"{identity.path}: the key: {identity.key.reason}"), ""
    if int(key.mode, 8) & 0o077:
        return FALSE, f"the key has mode {key.mode}"
    if key.uid not in {0, view.document.root("job").uid}:
        return FALSE, f"the key belongs to uid {key.uid}"
    return TRUE, ""


def _date_problem(view: View, certificate: "Reading[Certificate]") -> tuple[Truth, str]:
    if certificate.value is None:
        return unknown(f"the certificate: {certificate.reason}"), ""
    if certificate.value.ends < view.now:
        return FALSE, f"the certificate ended {certificate.value.ends:%Y-%m-%d %H:%M}"
    if certificate.value.begins > view.now + _SKEW:
        return FALSE, f"the certificate begins {certificate.value.begins:%Y-%m-%d %H:%M}"
    return TRUE, ""


def _lifetime(certificate: "Reading[Certificate]", limit: timedelta) -> tuple[Truth, str]:
    if certificate.value is None:
        return unknown(f"the certificate: {certificate.reason}"), ""
    lives = certificate.value.ends - certificate.value.begins
    if lives > limit + _SKEW:
        return FALSE, f"it lives {lives.total_seconds() / 3600:.0f} hours"
    return TRUE, ""


def _strength(certificate: "Reading[Certificate]", args: WeakArgs) -> tuple[Truth, str]:
    if certificate.value is None:
        return unknown(f"a certificate: {certificate.reason}"), ""
    if certificate.value.key in args.keys or certificate.value.digest in args.digests:
        strength = f"{certificate.value.key} {certificate.value.digest}".strip()
        return FALSE, f"{strength} is too weak"
    return TRUE, ""
