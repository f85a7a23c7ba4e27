"""Engines: where the jobs of a benchmark run."""

from scantune.benchmark.engines.base import Engine, EngineSettings, JobOutcome
from scantune.benchmark.engines.local import LocalEngine
from scantune.benchmark.engines.ray import RayEngine

ENGINES: dict[str, type[Engine]] = {"local": LocalEngine, "ray": RayEngine}

__all__ = ["ENGINES", "Engine", "EngineSettings", "JobOutcome", "LocalEngine", "RayEngine"]
