# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ground floor: errors, codes, vocabulary, canonical JSON, hash trees and safe files.

Nothing here knows of policies, networks or torch.
"""
