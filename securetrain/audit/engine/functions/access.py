# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about who can log in, and about keys and certificates of nodes and authorities."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.kleene import FALSE, TRUE, Truth, truth, unknown
from securetrain.audit.subjects.node.facts.access import Reach
from securetrain.core.vocabulary import NodeTier

if TYPE_CHECKING:
    from collections.abc import Callable

    from securetrain.audit.facts import Reading
    from securetrain.audit.subjects.node.facts.access import Certificate, Identity
    from securetrain.audit.subjects.node.facts.node import SshdOption

_DEFAULTS: Final = {
    "permitrootlogin": "prohibit-password",
    "passwordauthentication": "yes",
    "kbdinteractiveauthentication": "yes",
    "permitemptypasswords": "no",
    "usepam": "no",
}
"""What sshd uses where its files are silent (sshd_config(5), 7.0 and later)."""
_CLOSED: Final = {
    "permitrootlogin": ("no", "prohibit-password", "without-password", "forced-commands-only"),
    "passwordauthentication": ("no",),
    "kbdinteractiveauthentication": ("no",),
    "permitemptypasswords": ("no",),
}


@function(
    "identity.sshd_closed",
    reads=(
        ("node", "sshd", "options"),
        *fields("node", "sshd", "options", "*", of=("name", "value", "match", "path", "line")),
    ),
)
def sshd_closed(view: View, _: NoArgs) -> list[Judgement]:
    """For everybody, and in every Match block, root needs a key and nobody gets in by a password.

    Keyboard-interactive is a password by another name where PAM answers it; where the files say
    nothing of it, it counts only with PAM.
    """
    options: tuple[SshdOption, ...] = resolve(view, ("node", "sshd", "options"))
    shared = {option.name: option for option in options if not option.match}
    pam = shared["usepam"].value if "usepam" in shared else _DEFAULTS["usepam"]
    silent = "kbdinteractiveauthentication" if pam != "yes" else ""
    return [
        *(_login(name, shared.get(name), is_silent_closed=name == silent) for name in _CLOSED),
        *(_login(one.name, one) for one in options if one.match and one.name in _CLOSED),
    ]


def _login(name: str, option: "SshdOption | None", *, is_silent_closed: bool = False) -> Judgement:
    value = option.value if option else _DEFAULTS[name]
    place = f"{option.path}:{option.line}" if option else "sshd's default"
    match = f"Match {option.match}" if option and option.match else ""
    return Judgement(
        label=f"{name} of {match}" if match else name,
        good=truth(value in _CLOSED[name] or (is_silent_closed and option is None)),
        why=f"'{value}' ({place})" + (f" for {match}" if match else ""),
        location=option.location if option else None,
        evidence={name: value, "from": place},
    )


class SudoArgs(Args, frozen=True, kw_only=True):
    """The commands that need a password."""

    reach: tuple[Reach, ...]


@function(
    "identity.sudo_asks",
    reads=fields("node", "sudo", "*", of=("who", "applies", "reach", "path", "line")),
)
def sudo_asks(view: View, args: SudoArgs) -> list[Judgement]:
    """The job's user becomes no other without a password, but for commands that are named."""
    found = []
    for rule in records(view, "sudo"):
        if rule.reach not in args.reach:
            continue
        good, why = FALSE, f"{rule.who} may run {rule.reach} commands without a password"
        if rule.applies is None:
            good, why = unknown(f"whether {view.document.root('job').user} is in {rule.who}"), ""
        found.append(
            Judgement(
                label=rule.label,
                good=good,
                why=why,
                location=rule.location,
                evidence={"reach": rule.reach.value, "from": f"{rule.path}:{rule.line}"},
            )
        )
    return found


@function("attestation.possible", reads=fields("node", "hardware", of=("tpm", "tee")))
def attestation_possible(view: View, _: NoArgs) -> list[Judgement]:
    """The device that the policy's tier needs is there, or an exception is in date.

    The last day of an exception is inclusive. The device's own evidence is admission's to verify;
    this only finds the machine that would be refused.
    """
    policy = view.policy.node
    exception = policy.allow_self_asserted
    until = exception.until if exception else None
    why = "the policy makes no exception"
    if exception is not None:
        if until is None or view.now.date() <= until:
            return [Judgement(label="", good=TRUE)]
        why = f"the exception's last day was {until}"
    match policy.min_tier:
        case NodeTier.TEE | NodeTier.TEE_GPU:
            device = "tee"
        case NodeTier.VTPM | NodeTier.TPM:
            device = "tpm"
        case NodeTier.TEST_ONLY | NodeTier.SELF_ASSERTED | NodeTier.CLOUD_TOKEN:
            return [Judgement(label="", good=TRUE)]  # no device of this machine stands behind it
        case _:
            raise ValueError(policy.min_tier)
    found = resolve(view, ("node", "hardware", device))
    if isinstance(found, Missing) and found.definite:
        good, why = FALSE, f"{found.reason}; {why}"
    elif isinstance(found, Missing):
        good = unknown(found.reason)
    else:
        good, why = TRUE, ""
    return [Judgement(label="", good=good, why=why, evidence={"min_tier": policy.min_tier.value})]


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
    return [
        _judged(one, [_key_problem(view, one), _date_problem(view, one.certificate)])
        for one in records(view, "identities")
        if one.role == "node"
    ]


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


def _certificate_problem(
    certificate: "Reading[Certificate]", problem: "Callable[[Certificate], str]"
) -> tuple[Truth, str]:
    """The problem that a certificate has, where it was read."""
    if certificate.value is None:
        return unknown(f"the certificate: {certificate.reason}"), ""
    why = problem(certificate.value)
    return (FALSE, why) if why else (TRUE, "")


def _date_problem(view: View, certificate: "Reading[Certificate]") -> tuple[Truth, str]:
    def problem(one: "Certificate") -> str:
        if one.ends < view.now:
            return f"the certificate ended {one.ends:%Y-%m-%d %H:%M}"
        is_early = one.begins > view.now + _SKEW
        return f"the certificate begins {one.begins:%Y-%m-%d %H:%M}" if is_early else ""

    return _certificate_problem(certificate, problem)


def _lifetime(certificate: "Reading[Certificate]", limit: timedelta) -> tuple[Truth, str]:
    def problem(one: "Certificate") -> str:
        lives = one.ends - one.begins
        hours = lives.total_seconds() / 3600
        return f"it lives {hours:.0f} hours" if lives > limit + _SKEW else ""

    return _certificate_problem(certificate, problem)


def _strength(certificate: "Reading[Certificate]", args: WeakArgs) -> tuple[Truth, str]:
    def problem(one: "Certificate") -> str:
        is_weak = one.key in args.keys or one.digest in args.digests
        return f"{one.key} {one.digest}".strip() + " is too weak" if is_weak else ""

    return _certificate_problem(certificate, problem)
