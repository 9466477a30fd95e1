"""The gateway's watch over its replicas: membership, health and signals of engines.

Each member is watched as long as it is one. Changes go to the brain and to observers.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from gateway.config import Config
from gateway.core import events as ev
from gateway.domain.engine import EngineSignals
from gateway.domain.ids import ReplicaId
from gateway.server.admin.loaded_references import LoadedReferences
from gateway.server.proxy.driver import Driver
from gateway.server.replicas.members import Members
from gateway.server.runtime.tasks import TaskGroup
from gateway.server.telemetry import Telemetry
from gateway.upstream.engine_watch import EngineWatch
from gateway.upstream.health_probes import HealthChecks
from gateway.upstream.local_faults import LocalFaults
from gateway.upstream.replica import Replica


class ReplicaWatch:
    def __init__(
        self,
        config: Config,
        references: LoadedReferences,
        driver: Driver,
        telemetry: Telemetry,
        *,
        clock: Callable[[], float],
        local_faults: LocalFaults,
    ) -> None:
        self._driver = driver
        self._telemetry = telemetry
        self.members = Members(config, references, clock=clock, local_faults=local_faults, send=driver.send)
        # By name. They come and go.
        self.replicas = self.members.replicas
        self.health = HealthChecks(
            self.replicas,
            config.upstream,
            on_up=lambda facts: driver.send(ev.ReplicaCameUp(facts)),
            on_down=self._went_down,
            on_late=self._went_down,
            has_several_pools=len(config.pools) > 1,
            named_models=[model.name for model in config.models],
        )
        self._engines = EngineWatch(
            self.replicas,
            config.upstream,
            abilities=self.health.abilities,
            on_report=self._engine_reported,
            on_plugin=telemetry.plugins.__setitem__,
            is_looked_at=lambda: telemetry.views.is_looked_at,
        )
        self._tasks = TaskGroup()
        self._watchers: dict[ReplicaId, tuple[asyncio.Task[None], ...]] = {}

    def open(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self.members.open(tasks, self._joined, self._left)

    def apply_config(self, config: Config, references: LoadedReferences) -> None:
        self.health.apply_config(
            config.upstream,
            has_several_pools=len(config.pools) > 1,
            named_models=[model.name for model in config.models],
        )
        self._engines.apply_config(config.upstream)
        self.members.apply_config(config, references)

    async def close(self) -> None:
        """To be called when the tasks have ended."""
        await self.health.close()
        await self._engines.close()
        self.members.close()

    def _joined(self, replica: Replica) -> None:
        self._watchers[replica.id] = (
            self._tasks.supervise("health checks", partial(self.health.watch, replica), of=replica.id),
            self._tasks.supervise("engine watch", partial(self._engines.watch, replica), of=replica.id),
        )

    def _left(self, replica: ReplicaId) -> None:
        for watcher in self._watchers.pop(replica):
            watcher.cancel()
        self.health.left(replica)
        self._engine_is_gone(replica)

    def _engine_is_gone(self, replica: ReplicaId) -> None:
        self._telemetry.signals.pop(replica, None)
        self._telemetry.plugins.pop(replica, None)

    def _went_down(self, replica: ReplicaId, why: str) -> None:
        self._engine_is_gone(replica)
        self._driver.send(ev.ReplicaWentDown(replica, why))

    def _engine_reported(self, replica: ReplicaId, signals: EngineSignals) -> None:
        self._telemetry.signals[replica] = signals
        self._driver.send(ev.EngineReported(replica, signals))
