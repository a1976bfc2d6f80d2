# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A TPM's response codes in words.

Source: TCG TPM 2.0 Library, Part 2, 6.6 (TPM_RC). A code of format one carries the number of the
handle, parameter or session that it is about; the layers above the TPM (the kernel's resource
manager) put their number into the bits from 16.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from securetrain.core.errors import AttestationError


class ResponseCode(IntEnum):
    """The codes on which this client acts."""

    SUCCESS = 0
    YIELDED = 0x908
    TESTING = 0x90A
    LOCKOUT = 0x921
    RETRY = 0x922


RETRIED: Final = frozenset({ResponseCode.YIELDED, ResponseCode.TESTING, ResponseCode.RETRY})
"""The TPM asks for the same command once more."""

_FORMAT_ONE: Final = 0x080
_PARAMETER: Final = 0x040
_VERSION_ONE: Final = 0x100
_WARNING: Final = 0x900

_FORMAT_ONE_NAMES: Final = {
    0x01: "ASYMMETRIC",
    0x02: "ATTRIBUTES",
    0x03: "HASH",
    0x04: "VALUE",
    0x05: "HIERARCHY",
    0x07: "KEY_SIZE",
    0x08: "MGF",
    0x09: "MODE",
    0x0A: "TYPE",
    0x0B: "HANDLE",
    0x0C: "KDF",
    0x0D: "RANGE",
    0x0E: "AUTH_FAIL",
    0x0F: "NONCE",
    0x10: "PP",
    0x12: "SCHEME",
    0x15: "SIZE",
    0x16: "SYMMETRIC",
    0x17: "TAG",
    0x18: "SELECTOR",
    0x1A: "INSUFFICIENT",
    0x1B: "SIGNATURE",
    0x1C: "KEY",
    0x1D: "POLICY_FAIL",
    0x1F: "INTEGRITY",
    0x20: "TICKET",
    0x21: "RESERVED_BITS",
    0x22: "BAD_AUTH",
    0x23: "EXPIRED",
    0x24: "POLICY_CC",
    0x25: "BINDING",
    0x26: "CURVE",
    0x27: "ECC_POINT",
}
_VERSION_ONE_NAMES: Final = {
    0x00: "INITIALIZE",
    0x01: "FAILURE",
    0x03: "SEQUENCE",
    0x0B: "PRIVATE",
    0x19: "HMAC",
    0x20: "DISABLED",
    0x21: "EXCLUSIVE",
    0x24: "AUTH_TYPE",
    0x25: "AUTH_MISSING",
    0x26: "POLICY",
    0x27: "PCR",
    0x28: "PCR_CHANGED",
    0x2D: "UPGRADE",
    0x2E: "TOO_MANY_CONTEXTS",
    0x2F: "AUTH_UNAVAILABLE",
    0x30: "REBOOT",
    0x31: "UNBALANCED",
    0x42: "COMMAND_SIZE",
    0x43: "COMMAND_CODE",
    0x44: "AUTHSIZE",
    0x45: "AUTH_CONTEXT",
    0x46: "NV_RANGE",
    0x47: "NV_SIZE",
    0x48: "NV_LOCKED",
    0x49: "NV_AUTHORIZATION",
    0x4A: "NV_UNINITIALIZED",
    0x4B: "NV_SPACE",
    0x4C: "NV_DEFINED",
    0x50: "BAD_CONTEXT",
    0x51: "CPHASH",
    0x52: "PARENT",
    0x53: "NEEDS_TEST",
    0x54: "NO_RESULT",
    0x55: "SENSITIVE",
}
_WARNING_NAMES: Final = {
    0x01: "CONTEXT_GAP",
    0x02: "OBJECT_MEMORY",
    0x03: "SESSION_MEMORY",
    0x04: "MEMORY",
    0x05: "SESSION_HANDLES",
    0x06: "OBJECT_HANDLES",
    0x07: "LOCALITY",
    0x08: "YIELDED",
    0x09: "CANCELED",
    0x0A: "TESTING",
    **{0x10 + number: f"REFERENCE_H{number}" for number in range(7)},
    **{0x18 + number: f"REFERENCE_S{number}" for number in range(7)},
    0x20: "NV_RATE",
    0x21: "LOCKOUT",
    0x22: "RETRY",
    0x23: "NV_UNAVAILABLE",
}

_AUTH_FIX: Final = (
    "the endorsement hierarchy has a password or policy of its own: reset it with"
    " 'tpm2_changeauth -c endorsement', or clear the TPM in the firmware's setup"
)
_FIXES: Final = {
    "FAILURE": "the TPM is in failure mode: power-cycle the machine",
    "INITIALIZE": "the TPM was not started up: power-cycle the machine",
    "REBOOT": "reboot the machine",
    "BAD_AUTH": _AUTH_FIX,
    "AUTH_FAIL": _AUTH_FIX,
    "AUTH_UNAVAILABLE": _AUTH_FIX,
    "HIERARCHY": "switch the endorsement hierarchy on in the firmware's setup",
    "DISABLED": "switch the endorsement hierarchy on in the firmware's setup",
    "LOCALITY": "this command is not allowed to an operating system",
    "OBJECT_MEMORY": "use the resource manager, /dev/tpmrm0; no other program may hold keys loaded",
    "SESSION_MEMORY": "use the resource manager, /dev/tpmrm0",
    "SESSION_HANDLES": "another program leaks TPM sessions; stop it, or reboot the machine",
    "COMMAND_CODE": "update the TPM's firmware: it lacks this command",
    "LOCKOUT": (
        "wait until the lockout ends, or clear it with 'tpm2_dictionarylockout -c'; shut machines"
        " down in order, since every cut of power may count as a failed try"
    ),
}


@dataclass(frozen=True, slots=True)
class Response:
    """A response code, taken apart."""

    code: int

    @property
    def bare(self) -> int:
        """Without the layer, and without what a code of format one is about."""
        code = self.code & 0xFFFF
        return code & 0x0BF if code & _FORMAT_ONE else code

    @property
    def name(self) -> str:
        """As in the specification, without TPM_RC_; empty when it is not there."""
        low = self.code & 0x7F
        if self.code & _FORMAT_ONE:
            return _FORMAT_ONE_NAMES.get(self.code & 0x3F, "")
        if self.code & _WARNING == _WARNING:
            return _WARNING_NAMES.get(low, "")
        return _VERSION_ONE_NAMES.get(low, "") if self.code & _VERSION_ONE else ""

    @property
    def about(self) -> str:
        """The handle, parameter or session that a code of format one is about."""
        number = self.code >> 8 & 0xF
        if not self.code & _FORMAT_ONE or not number:
            return ""
        if self.code & _PARAMETER:
            return f"parameter {number}"
        return f"session {number - 8}" if number & 8 else f"handle {number}"

    def __str__(self) -> str:
        name = f"TPM_RC_{self.name}" if self.name else "an unknown response code"
        about = f", {self.about}" if self.about else ""
        return f"{name} (0x{self.code:x}{about})"


class TpmRefusalError(AttestationError):
    """The TPM refused a command."""

    def __init__(self, code: str, what: str, where: str, fix: str, response: int = 0) -> None:
        """Keep the response code beside the four texts of every error."""
        super().__init__(code, what, where, fix)
        self.response = response

    @property
    def about_parameter(self) -> bool:
        """Tell whether what was sent is at fault, not who sent it or the state of the TPM."""
        return Response(self.response).about.startswith("parameter")


def refusal(code: int, command: str, where: str) -> TpmRefusalError:
    """The error for a response code other than success: ST-ATTS-153, or ST-ATTS-154 in lockout."""
    response = Response(code)
    return TpmRefusalError(
        "ST-ATTS-154" if response.bare == ResponseCode.LOCKOUT else "ST-ATTS-153",
        f"the TPM refused TPM2_{command}: {response}",
        where,
        _FIXES.get(response.name, ""),
        code,
    )
