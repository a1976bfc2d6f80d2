# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""securetrain: a security-hardened runtime and auditor for distributed PyTorch training.

One policy file, three enforcers: ``securetrain run`` enforces it while a job runs,
``securetrain audit`` checks a cluster against it before, and ``securetrain verify`` proves
afterwards that an artifact was made under it.
"""

__version__ = "0.1.0"
