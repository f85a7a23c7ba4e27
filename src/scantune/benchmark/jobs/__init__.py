"""Jobs: the pieces of work of a benchmark, each known by a hash of everything that decides its result."""

from scantune.benchmark.jobs.adaptation import Adaptation
from scantune.benchmark.jobs.base import MODEL, Job, JobEnvironment, OnProgress
from scantune.benchmark.jobs.networks import FineTuning, GivenModel, HelperTraining, PriorFitting, Training

JOBS: dict[str, type[Job]] = {
    "train": Training,
    "given": GivenModel,
    "supervise": FineTuning,
    "prior": PriorFitting,
    "helper": HelperTraining,
    "adapt": Adaptation,
}
"""By kind, in the order in which they need each other."""

__all__ = [
    "JOBS",
    "MODEL",
    "Adaptation",
    "FineTuning",
    "GivenModel",
    "HelperTraining",
    "Job",
    "JobEnvironment",
    "OnProgress",
    "PriorFitting",
    "Training",
]
