# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""torch's elastic agent in the launcher's process, and members that it loses."""
