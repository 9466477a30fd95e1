"""The gauges of the last snapshot in the API server's ``/metrics``."""

import importlib
from typing import Any, ClassVar, Self


class Gauges:
    """Made once a process, because a registry takes a name once."""

    _known: ClassVar["Gauges | None"] = None

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()
        gauge: Any = importlib.import_module("prometheus_client").Gauge

        def make(name: str, text: str, *labels: str) -> Any:
            return gauge(f"turnpike_engine_{name}", text, labels, multiprocess_mode="mostrecent")

        self._state = make("state", "1: how the plugin, and each feature, is now.", "of", "state")
        self._blocks = make("blocks", "KV blocks by what they are used for.", "state")
        self._requests = make("requests", "Requests by place and class.", "place", "class")
        self._feature = make("feature", "What each feature has done since the start.", "feature", "what")
        self._acted = make("acted", "How often each feature changed what vLLM would have done.", "feature")
        self._saved = make("saved_seconds", "Prefill that each feature saved, estimated.", "feature")

    @classmethod
    def known(cls) -> Self:
        if cls._known is None:
            cls._known = cls()
        return cls._known  # type: ignore[return-value]

    def show(self, snapshot: dict[str, Any]) -> None:
        now = {("plugin", snapshot.get("state", "absent")), *snapshot.get("features", {}).items()}
        for gone in self._shown - now:
            self._state.labels(*gone).set(0)
        for each in now:
            self._state.labels(*each).set(1)
        self._shown = now
        if "blocks" not in snapshot:
            return
        for state, count in snapshot["blocks"].items():
            self._blocks.labels(state).set(count)
        for place in ("running", "waiting"):
            for name, count in snapshot[place].items():
                self._requests.labels(place, name).set(count)
        for feature, counts in snapshot["counters"].items():
            for what, count in counts.items():
                self._feature.labels(feature, what).set(count)
        for feature, count in snapshot["acted"].items():
            self._acted.labels(feature).set(count)
        for feature, saved_s in snapshot["saved_s"].items():
            self._saved.labels(feature).set(saved_s)
