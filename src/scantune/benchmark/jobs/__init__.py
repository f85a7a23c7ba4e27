"""Jobs: the pieces of work of a benchmark, each known by a hash of everything that decides its result."""

from scantune.benchmark.jobs.adaptation import Adaptation, Run
from scantune.benchmark.jobs.base import MODEL, Job, Place, Tell
from scantune.benchmark.jobs.networks import FineTuning, Given, HelperTraining, PriorFitting, Training

JOBS: dict[str, type[Job]] = {
    "train": Training,
    "given": Given,
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
    "Given",
    "HelperTraining",
    "Job",
    "Place",
    "PriorFitting",
    "Run",
    "Tell",
    "Training",
]
