# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""MLflow: a launch is a run, steps are metrics, labels and the last checkpoint are tags.

The client is used and not ``mlflow.start_run``: that one adds the user's name, the script's path
and its git commit as tags. The server is where MLflow's own variables say
(``MLFLOW_TRACKING_URI``).
"""

import json
import os
from collections.abc import Sequence
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from securetrain.integrations.trackers.items import Began, Ended, Item, Measured, Span

EXPERIMENT: Final = "securetrain"
KEY: Final = "securetrain.key"
_PER_CALL: Final = 900
"""MLflow takes up to 1,000 metrics at once."""
_STATUS: Final = {"succeeded": "FINISHED", "interrupted": "KILLED"}


class Mlflow:
    """The tracker."""

    def __init__(self, client: Any = None) -> None:
        """Take a client; one of MLflow's own settings where there is none."""
        self._client: Any = client or MlflowClient()
        self._run = ""
        self._began: Began | None = None
        self._events: list[dict[str, Any]] = []
        self._refusals = 0

    def give(self, items: Sequence[Item]) -> None:
        """Log items."""
        metrics: list[Metric] = []
        tags: dict[str, str] = {}
        for item in items:
            match item:
                case Began():
                    self._begin(item)
                case Measured():
                    at = int(1000 * (item.time or 0))
                    metrics += [Metric(k, v, at, item.step) for k, v in item.values.items()]
                    clean = float(item.verdict in {"clean", "unwatched"})
                    metrics.append(Metric("step_clean", clean, at, item.step))
                    tags["securetrain.verdict"] = item.verdict
                case Span(name="step"):
                    pass
                case Span():
                    self._events.append(
                        {"time": item.begin, "until": item.end, "name": item.name, **item.said}
                    )
                    self._refusals += bool(item.code)
                    if item.code:
                        tags["securetrain.last-refusal"] = item.code
                    if item.name == "save" and "digest" in item.said:
                        tags["securetrain.checkpoint"] = str(item.said["digest"])
                case Ended():
                    tags["securetrain.labels"] = ", ".join(item.labels)
                    tags["securetrain.refusals"] = str(self._refusals)
        self._log(metrics, tags)
        self._end([item for item in items if isinstance(item, Ended)])

    def close(self) -> None:
        """Do nothing: every call has been answered."""

    def _begin(self, item: Began) -> None:
        """Make the run, or find it where it was told before."""
        if self._began == item:
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        place = found.experiment_id if found else self._client.create_experiment(name)
        key = f"{item.run}/{item.number}"
        query = f"tags.`{KEY}` = '{key.replace(chr(39), '')}'"
        runs = self._client.search_runs([place], query, max_results=1)
        if runs:
            self._run = runs[0].info.run_id
        else:
            made = self._client.create_run(
                place, start_time=int(1000 * item.time), tags={KEY: key}, run_name=item.run
            )
            self._run = made.info.run_id
            params = [Param(k, str(v)) for k, v in item.said.items()]
            self._client.log_batch(self._run, params=params)
        self._began, self._events, self._refusals = item, [], 0

    def _log(self, metrics: list[Metric], tags: dict[str, str]) -> None:
        if not self._run:
            return
        for at in range(0, len(metrics), _PER_CALL):
            self._client.log_batch(self._run, metrics=metrics[at : at + _PER_CALL])
        if tags:
            said = [RunTag(key, value) for key, value in tags.items()]
            self._client.log_batch(self._run, tags=said)

    def _end(self, ends: Sequence[Ended]) -> None:
        if not ends or not self._run:
            return
        text = "".join(json.dumps(one) + "\n" for one in self._events)
        self._client.log_text(self._run, text, "securetrain/events.jsonl")
        last = ends[-1]
        if last.outcome:
            status = _STATUS.get(last.outcome, "FAILED")
            self._client.set_terminated(self._run, status, int(1000 * last.time))
