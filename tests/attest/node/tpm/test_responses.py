# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
import pickle

from securetrain.attest.node.tpm.responses import Response, ResponseCode, refusal
from tests.tables import each


@each(
    "code, text",
    (0x921, "TPM_RC_LOCKOUT (0x921)"),
    (0x922, "TPM_RC_RETRY (0x922)"),
    (0x902, "TPM_RC_OBJECT_MEMORY (0x902)"),
    (0x910, "TPM_RC_REFERENCE_H0 (0x910)"),
    (0x91E, "TPM_RC_REFERENCE_S6 (0x91e)"),
    (0x101, "TPM_RC_FAILURE (0x101)"),
    (0x143, "TPM_RC_COMMAND_CODE (0x143)"),
    (0x1DF, "TPM_RC_INTEGRITY (0x1df, parameter 1)"),
    (0x2C4, "TPM_RC_VALUE (0x2c4, parameter 2)"),
    (0x18B, "TPM_RC_HANDLE (0x18b, handle 1)"),
    (0x98E, "TPM_RC_AUTH_FAIL (0x98e, session 1)"),
    (0x9A2, "TPM_RC_BAD_AUTH (0x9a2, session 1)"),
    (0x09D, "TPM_RC_POLICY_FAIL (0x9d)"),
    (0xB0143, "TPM_RC_COMMAND_CODE (0xb0143)"),
    (0x01E, "an unknown response code (0x1e)"),
    (0x1FF, "an unknown response code (0x1ff, parameter 1)"),
)
def test_codes_have_names(code, text):
    assert str(Response(code)) == text


def test_a_lockout_has_a_code_of_its_own():
    error = refusal(ResponseCode.LOCKOUT, "Quote", "/dev/tpmrm0")
    assert error.code == "ST-ATTS-154"
    assert "TPM2_Quote" in error.what
    assert "TPM_RC_LOCKOUT" in error.what
    assert error.where == "/dev/tpmrm0"
    assert "tpm2_dictionarylockout" in error.fix


@each(
    "code, fix",
    (0x101, "power-cycle"),
    (0x9A2, "tpm2_changeauth"),
    (0x98E, "tpm2_changeauth"),
    (0x902, "/dev/tpmrm0"),
    (0x085, "firmware's setup"),
    (0x143, "update"),
    (0x184, "Part 3"),
)
def test_a_refusal_says_what_to_do(code, fix):
    error = refusal(code, "Create", "tpm")
    assert error.code == "ST-ATTS-153"
    assert fix in error.fix
    assert error.response == code


@each(
    "code, is_about", (0x1DF, True), (0x2C4, True), (0x18B, False), (0x98E, False), (0x921, False)
)
def test_what_was_sent_is_told_from_who_sent_it(code, is_about):
    assert refusal(code, "Load", "tpm").about_parameter is is_about


def test_a_refusal_travels_between_processes():
    error = refusal(0x1DF, "Load", "tpm")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.what, copy.response) == (error.code, error.what, 0x1DF)
