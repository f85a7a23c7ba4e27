"""Jobs on a Ray cluster: an existing one, or one on this machine."""

import atexit
import functools
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

from scantune.benchmark.engines.base import MAX_RETRIES, Engine, EngineSettings, JobOutcome, run_job
from scantune.benchmark.jobs import MODEL, Job, JobEnvironment
from scantune.benchmark.store import Store
from scantune.errors import InputError
from scantune.runtime.processes import cores
from scantune.scans.files import write_whole

JobFiles = dict[str, bytes]

OBJECT_STORE_BYTES = 256 * 2**20
"""Bytes of the object store of a new cluster: models are a few MB each."""


PRIVATE_CLUSTER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
"""Environment of a new cluster: without the first variable its ports are open to the network, without the second to
every user of the machine."""


class RayEngine(Engine):
    """Ray tasks, one per job, each with a GPU if the cluster has some. Ray repeats tasks whose worker died.

    The cluster is that of the environment variable RAY_ADDRESS, or a new one on this machine, which listens on
    127.0.0.1 and requires a token unless the environment says otherwise. Models go to the
    workers through Ray's object store, and results come back through it, so that no folder need be shared; where one
    is, interrupted trainings go on from their checkpoints on any machine.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        super().__init__(store, settings)
        self.pending: dict[Any, Job] = {}
        self.models: dict[str, Any] = {}
        self.own = False

    @property
    def slots(self) -> int:
        """Return the number of jobs at a time, by default as many as the cluster has room for."""
        import ray

        there = ray.cluster_resources()
        room = int(there.get("GPU", 0) if self._gpus() else there.get("CPU", 1) // self.settings.threads)
        return max(min(self.settings.workers or room, room), 1)

    def start(self) -> None:
        """Connect to a cluster, or start one on this machine."""
        address = os.environ.get("RAY_ADDRESS")
        if not address:  # Ray reads these when it is imported
            for name, value in {**PRIVATE_CLUSTER, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
                os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError as error:
            raise InputError("The engine ray needs Ray, which is missing: pip install 'scantune[cluster]'.") from error
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False, **({} if address else self._new_cluster()))
            self.own = True
        self.task = ray.remote(_run).options(
            num_cpus=self.settings.threads, num_gpus=1 if self._gpus() else 0, max_retries=MAX_RETRIES
        )

    def submit(self, job: Job) -> None:
        """Send a job with the models that it needs."""
        needed = {upstream.key: self._model(upstream) for upstream in job.inputs}
        keys, refs = list(needed), list(needed.values())
        self.pending[self.task.remote(job, keys, str(self.store.folder.resolve()), self.settings, *refs)] = job

    def wait(self, seconds: float) -> list[JobOutcome]:
        """Put results that came back into the store, and return the jobs that ended."""
        import ray

        done, _ = ray.wait(list(self.pending), num_returns=1, timeout=seconds)
        return [self._take(ref) for ref in done]

    def stop(self) -> None:
        """Cancel running jobs, and shut down a cluster that `start` made."""
        import ray

        for ref in self.pending:
            ray.cancel(ref, force=True)
        self.pending.clear()
        self.models.clear()
        if self.own:
            ray.shutdown()

    def _take(self, ref: Any) -> JobOutcome:
        import ray

        job = self.pending.pop(ref)
        try:
            ended, files = ray.get(ref)
        except ray.exceptions.RayError as error:
            return JobOutcome(job.key, f"Its worker died {MAX_RETRIES + 1} times; was there enough memory?", str(error))
        if not ended.reason:
            with self.store.making(job.key) as out:
                for name, content in files.items():
                    (out / name).write_bytes(content)
        return ended  # type: ignore[no-any-return]

    def _model(self, job: Job) -> Any:
        """Return a finished job's model in the object store, putting it there once."""
        import ray

        if job.key not in self.models:
            self.models[job.key] = ray.put((self.store.finished / job.key / MODEL).read_bytes())
        return self.models[job.key]

    def _new_cluster(self) -> dict[str, Any]:
        """Return options of a new cluster on this machine: the processors that jobs use, and room for models."""
        jobs = self.settings.workers or cores() // self.settings.threads or 1
        return {
            "num_cpus": jobs * self.settings.threads,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }

    def _gpus(self) -> bool:
        import ray

        return self.settings.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0


def _run(
    job: Job, keys: list[str], folder: str, settings: EngineSettings, *models: bytes
) -> tuple[JobOutcome, JobFiles]:
    """Run a job on a machine of the cluster with models laid out as in a store, and return its files as bytes."""
    import torch

    torch.set_num_threads(settings.threads)
    shared, here = Store(Path(folder)), _here()
    shared.running.mkdir(parents=True, exist_ok=True)
    for key, content in zip(keys, models, strict=True):
        path = here.finished / key / MODEL
        if not path.exists():
            write_whole(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    made = here.finished / job.key
    place = JobEnvironment(here.finished, shared.running, settings.device, settings.network)
    ended = run_job(job, place, here, shared)
    files = {path.name: path.read_bytes() for path in made.iterdir()} if made.is_dir() else {}
    if MODEL not in files:  # models may be needed again, here
        shutil.rmtree(made, ignore_errors=True)
    return ended, files


@functools.cache
def _here() -> Store:
    """Return a store in a temporary folder of this process."""
    folder = tempfile.mkdtemp(prefix="scantune-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store = Store(Path(folder))
    store.open()
    return store
