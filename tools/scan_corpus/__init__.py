# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files to try scanners on: crafted ones, and ordinary ones that libraries write."""
