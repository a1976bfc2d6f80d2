# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""OpenSSF Model Signing bundles: other people's verifiers accept ours, and we accept theirs.

Source: OpenSSF Model Signing specification v1.0
(https://github.com/ossf/model-signing-spec) and Sigstore bundle v0.3
(https://github.com/sigstore/protobuf-specs).
"""
