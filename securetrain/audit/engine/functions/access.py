# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about who can log in."""

from typing import TYPE_CHECKING, Final

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Args, Judgement, NoArgs, fields, function, records
from securetrain.audit.engine.kleene import FALSE, TRUE, truth, unknown
from securetrain.audit.subjects.node.facts.access import Reach
from securetrain.core.vocabulary import NodeTier

if TYPE_CHECKING:
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
    found = []
    for name, closed in _CLOSED.items():
        option = shared.get(name)
        value = option.value if option else _DEFAULTS[name]
        silent = name == "kbdinteractiveauthentication" and option is None and pam != "yes"
        place = f"{option.path}:{option.line}" if option else "sshd's default"
        evidence = {name: value, "from": place}
        good = truth(value in closed or silent)
        found.append(
            Judgement(
                label=name,
                good=good,
                why=_said(value, place),
                location=option.location if option else None,
                evidence=evidence,
            )
        )
    for option in options:
        if option.match and option.name in _CLOSED:
            place = f"{option.path}:{option.line}"
            why = f"{_said(option.value, place)} for Match {option.match}"
            good = truth(option.value in _CLOSED[option.name])
            label = f"{option.name} of Match {option.match}"
            evidence = {option.name: option.value, "from": place}
            where = option.location
            found.append(
                Judgement(label=label, good=good, why=why, location=where, evidence=evidence)
            )
    return found


def _said(value: str, place: str) -> str:
    return f"'{value}' ({place})"


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
