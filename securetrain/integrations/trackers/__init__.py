# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A run, followed by W&B, MLflow and OpenTelemetry.

``reading`` -> ``story`` -> ``delivery`` -> one of ``otlp``, ``mlflow``, ``wandb``; see `following`.
"""
