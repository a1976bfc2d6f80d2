# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Functions about what a node can prove."""

from securetrain.audit.engine.fields import Missing, View, resolve
from securetrain.audit.engine.function import Judgement, NoArgs, fields, function
from securetrain.audit.engine.kleene import FALSE, TRUE, unknown
from securetrain.core.vocabulary import NodeTier


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
