"""How a worker is at this moment, for its pages: asked on the threads that serve them."""

from __future__ import annotations

from postrow.worker.connections import Weather
from postrow.worker.health import Health
from postrow.worker.metrics import State
from postrow.worker.parts import Parts

STUCK = 60.0  # seconds without a turn of the event loop, after which the process is not live


def health(worker: str, parts: Parts | None, weather: Weather, *, stopping: bool) -> Health:
    """For /live and /ready. Without parts it waits for its database, or has stopped."""
    detail: dict[str, object] = {"worker": worker, "stopping": stopping, "without_database": dict(weather.down)}
    if parts is None:
        return Health(live=True, ready=False, detail=detail)
    dead = [] if stopping else parts.supervisor.dead
    blocked = parts.heartbeat.loop_blocked_for
    live = not dead and parts.heartbeat.alive and blocked < STUCK
    detail |= {"held": len(parts.slots), "dead": dead, "loop_blocked_for": round(blocked, 3)}
    # without taps it finds its messages by looking
    return Health(live, live and not stopping and not weather.down.keys() - {"listener"}, detail)


def state(parts: Parts | None, weather: Weather, *, concurrency: int, ready: bool) -> State:
    """For /metrics."""
    if parts is None:
        return State({}, concurrency, 0, 0, {"start": "start" not in weather.down}, 0.0, ready=False)
    return State(
        running=parts.executor.running,
        concurrency=concurrency,
        held=len(parts.slots),
        unwritten=parts.acker.pending,
        database={part: part not in weather.down for part in (*parts.supervisor.tasks, "heartbeat")},
        loop_blocked_for=parts.heartbeat.loop_blocked_for,
        ready=ready,
    )
