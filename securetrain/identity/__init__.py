# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys, certificates, DSSE envelopes, in-toto statements and the trust root."""
