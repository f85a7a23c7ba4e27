"""Engines: a worker killed in the middle, a driver killed in the middle, and the rows of an undisturbed run."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from argparse import Namespace
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scantune.benchmark.engines import ENGINES, EngineSettings, JobOutcome, LocalEngine
from scantune.benchmark.engines.base import run_job
from scantune.benchmark.expand import Selection
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import JobEnvironment
from scantune.benchmark.run import bench
from scantune.benchmark.store import Store
from scantune.errors import InputError
from scantune.evaluation.rows import read_rows
from tests.benchmark.test_run import run, timeless
from tests.toy_experiment import write_experiment

ONE = EngineSettings(workers=1, threads=1, device="cpu")
PART = Selection(methods=("strong baseline", "foe-cnn"), centres=("north",))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An experiment with a network that takes a moment to train."""
    return write_experiment(tmp_path_factory.mktemp("toy"), iterations=160, every=10)


@pytest.fixture(scope="module")
def undisturbed(path, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    assert not run(path, out, selection=PART)[0].failed
    return timeless(out)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One small Ray cluster for all tests, with all its files in a temporary folder."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is written into the home folder
        patch.setenv("RAY_worker_niceness", "0")  # else a busy machine leaves workers waiting for minutes
        folder = tmp_path_factory.mktemp("r")
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            log_to_driver=False,
            _temp_dir=str(folder),
        )
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


NEW_CLUSTER = """
import socket
from pathlib import Path
from scantune.benchmark.engines.base import EngineSettings
from scantune.benchmark.engines.ray import RayEngine
from scantune.benchmark.store import Store

with RayEngine(Store(Path.cwd()), EngineSettings(workers=1, threads=1, device="cpu")) as engine:
    import ray

    node = ray.nodes()[0]
    print(node["NodeManagerAddress"])
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as call:
            call.settimeout(5)
            print(call.connect_ex((address, node["NodeManagerPort"])) == 0)
"""


def test_a_new_ray_cluster_listens_on_this_machine_alone_and_needs_a_token(tmp_path):
    pytest.importorskip("ray")
    home = tmp_path / "home"
    home.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    told = subprocess.run(
        [sys.executable, "-c", NEW_CLUSTER],
        env={**clean, "HOME": str(home), "RAY_worker_niceness": "0"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert told.stdout.split() == ["127.0.0.1", "True", "False"], told.stderr[-2000:]
    assert not list(home.rglob("auth_token"))


def awaited(look, seconds=240):
    """What a look finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("nothing came")


def worker_in_training(out):
    """The process of the worker that trains, once there is a checkpoint to go on from."""
    store = Store(out)
    pids = [told["pid"] for key, told in store.progress().items() if (store.running / f"{key}.run").exists()]
    return pids[0] if pids else None


@contextmanager
def killing_a_worker(out):
    """Kills the worker that trains, in the middle, from another thread."""
    killed = []

    def kill():
        pid = awaited(lambda: worker_in_training(out))
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    yield killed
    thread.join()


def driver(path, out, engine, address):
    """A bench that was started on the command line."""
    words = [
        "bench",
        path,
        "--out",
        out,
        "--engine",
        engine,
        "--workers",
        1,
        "--device",
        "cpu",
        "--methods",
        *PART.methods,
    ]
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    command = [sys.executable, "-m", "scantune", *words, "--methods", *PART.methods, "--centres", *PART.centres]
    return subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.DEVNULL)


def alive(pid):
    """Whether a process runs; one that has ended and is only waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes as Linux shows them")
@pytest.mark.parametrize("engine", list(ENGINES))
def test_killed_workers_and_drivers_change_no_row(engine, path, undisturbed, tmp_path, request):
    address = request.getfixturevalue("cluster") if engine == "ray" else ""
    process = driver(path, tmp_path, engine, address)
    try:
        worker = awaited(lambda: worker_in_training(tmp_path) or process.poll() is not None)
        assert process.poll() is None
        process.kill()
        process.wait()
        # Nobody is left behind, and the folder is free.
        awaited(lambda: not alive(worker), seconds=30)
    finally:
        process.kill()
    assert not list((tmp_path / "jobs").iterdir())
    assert list((tmp_path / "running").glob("*.run"))
    for told in (tmp_path / "running").glob("*.json"):  # of the process that is gone
        told.unlink()
    make = functools.partial(ENGINES[engine], settings=ONE)
    with killing_a_worker(tmp_path) as killed:
        summary = bench(Experiment.read(path), tmp_path, make, PART)
    assert killed and not summary.failed and summary.done == summary.jobs
    assert timeless(tmp_path) == undisturbed
    assert not list((tmp_path / "running").iterdir())
    assert bench(Experiment.read(path), tmp_path, make, PART).already == summary.jobs


@dataclass(frozen=True, eq=False)
class Deadly:
    """A job that takes its worker with it."""

    key: str = "f00"
    title: str = "deadly"

    def run(self, place, out, tell):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_that_kills_every_worker_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("scantune.benchmark.engines.local.MAX_RETRIES", 1)
    store = Store(tmp_path)
    store.open()
    with LocalEngine(store, ONE) as engine:
        engine.submit(Deadly())
        ended = awaited(lambda: engine.wait(0.5))
    assert ended == [JobOutcome("f00", "Its process died 2 times; was there enough memory?")]
    assert not (tmp_path / "jobs" / "f00").exists()


@dataclass(frozen=True)
class Ringed:
    """Leaves behind what only a search for rings of references finds, and fails or not."""

    left: list
    fails: bool
    key: str = "f00"

    def run(self, place, out, tell):
        ring = Namespace()
        ring.itself = ring
        self.left.append(weakref.ref(ring))
        if self.fails:
            raise InputError("It fails.")


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_leaves_the_memory_of_a_gpu_to_others(fails, tmp_path, monkeypatch):
    store, left, found = Store(tmp_path), [], []
    store.open()
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: found.append(left[0]()))
    ended = run_job(Ringed(left, fails), JobEnvironment(store.finished, store.running, "cpu"), store)
    assert ended.reason == ("It fails." if fails else "")
    assert found == [None]


def test_models_go_through_the_object_store_once(path, cluster, tmp_path, monkeypatch):
    import ray

    put = []
    plain = ray.put
    monkeypatch.setattr(ray, "put", lambda value: (put.append(len(value)), plain(value))[1])
    chosen = Selection(methods=("strong baseline",), centres=("north",))
    sets = ["train.iterations=2", "train.validate_every=2"]
    make = functools.partial(ENGINES["ray"], settings=replace(ONE, workers=None))
    summary = bench(Experiment.read(path, sets), tmp_path, make, chosen)
    assert not summary.failed and ray.is_initialized()
    # The network for its prior and two scans, and the prior for the scans.
    assert len(put) == 2
    assert {row.site for row in read_rows(tmp_path)} == {"north"}
