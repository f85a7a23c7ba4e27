"""The process pool: results, messages, failures, workers that die, and a clean end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scantune.errors import InputError
from scantune.runtime.processes import ProcessPool, TaskDone, TaskFailed, TaskMessage, WorkerDied, in_parallel


class UnsendableError(Exception):
    """An exception that cannot be built again from its arguments."""

    def __init__(self, first, second):
        super().__init__(first + second)


class ToyWork:
    """Does what a task says."""

    def __init__(self, context):
        self.context = context

    def __call__(self, task):
        word, _, rest = task.partition(" ")
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "fail":
            raise InputError(rest)
        elif word == "unsendable":
            raise UnsendableError("not ", "sendable")
        elif word == "send":
            self.context.send(rest)
        elif word == "write":
            self._hold(Path(rest))
        elif word == "threads":
            return os.environ["OMP_NUM_THREADS"]
        return self.context.number, os.getpid()

    def _hold(self, path):
        path.write_text("half", encoding="utf-8")
        try:
            self.context.send("written")
            time.sleep(60)
        finally:
            path.unlink()


def dies_at_start(_context):
    os._exit(3)


def shout(text):
    if text == "die":
        os._exit(3)
    if text == "fail":
        raise InputError("It fails.")
    return text.upper()


def events(pool):
    """All events until no task runs."""
    found = []
    while pool.busy:
        found += pool.wait()
    return found


def test_a_pool_runs_tasks_and_passes_messages_on():
    with ProcessPool(ToyWork, 2, threads=3) as pool:
        pool.submit("threads")
        pool.submit("send hello")
        assert pool.busy == 2
        with pytest.raises(RuntimeError, match="All 2 workers of the pool are busy"):
            pool.submit("a third")
        found = events(pool)
        assert TaskDone("threads", "3") in found
        assert TaskMessage("send hello", "hello") in found
        done = next(event for event in found if isinstance(event, TaskDone) and event.task == "send hello")
        assert done.result[0] == 1


def test_an_exception_comes_back_with_its_traceback():
    with ProcessPool(ToyWork, 1) as pool:
        pool.submit("fail It is full.")
        (failed,) = events(pool)
        pool.submit("unsendable")
        (other,) = events(pool)
    assert isinstance(failed, TaskFailed) and isinstance(failed.error, InputError)
    assert str(failed.error) == "It is full." and "in __call__" in failed.error.__notes__[0]
    assert isinstance(other.error, RuntimeError) and "not sendable" in str(other.error)


def test_a_worker_that_dies_is_reported_and_replaced():
    with ProcessPool(ToyWork, 1) as pool:
        pool.submit("die")
        assert events(pool) == [WorkerDied("die", started=True)]
        pool.submit("work")
        (first,) = events(pool)
        os.kill(first.result[1], signal.SIGKILL)
        time.sleep(0.5)
        pool.submit("work")  # a worker that died without a task is replaced without a word
        (second,) = events(pool)
    assert first.result[0] == second.result[0] == 0
    assert first.result[1] != second.result[1]


def test_a_worker_that_dies_while_starting_says_so():
    with ProcessPool(dies_at_start, 1) as pool:
        pool.submit("work")
        assert events(pool) == [WorkerDied("work", started=False)]


def test_a_pool_that_is_left_interrupts_its_workers(tmp_path):
    start = time.monotonic()
    pool = ProcessPool(ToyWork, 1)
    with pool:
        pool.submit(f"write {tmp_path / 'file'}")
        while not pool.wait():
            pass
        assert (tmp_path / "file").exists()
    assert not (tmp_path / "file").exists()
    assert time.monotonic() - start < 20


OWNER = """
import sys
from tests.runtime.test_processes import ToyWork
from scantune.runtime.processes import ProcessPool
if __name__ == "__main__":
    with ProcessPool(ToyWork, 1) as pool:
        pool.submit("write " + sys.argv[1])
        while not pool.wait():
            pass
        print("written", flush=True)
        pool.wait()
"""


def test_workers_end_when_the_owner_of_the_pool_is_killed(tmp_path):
    script, file = tmp_path / "owner.py", tmp_path / "file"
    script.write_text(OWNER, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    with subprocess.Popen([sys.executable, script, file], env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline()
        owner.kill()
    end = time.monotonic() + 20
    while file.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not file.exists()


def test_results_come_in_order_however_many_work():
    words = ["b", "a", "c"]
    assert list(in_parallel(shout, words)) == list(in_parallel(shout, words, workers=2)) == ["B", "A", "C"]
    assert list(in_parallel(shout, [], workers=2)) == []


@pytest.mark.parametrize(("word", "message"), [("fail", "It fails"), ("die", "A worker process died")])
def test_a_failure_of_parallel_work_ends_it(word, message):
    with pytest.raises(InputError, match=message):
        list(in_parallel(shout, ["a", word, "c"], workers=2))


class Unloadable:
    """Ends every process that loads it."""

    def __reduce__(self):
        return os._exit, (4,)

    def __call__(self, item):
        return item


def test_workers_that_cannot_start_end_parallel_work():
    with pytest.raises(InputError, match="could not be started"):
        list(in_parallel(Unloadable(), ["a", "b"], workers=2))
