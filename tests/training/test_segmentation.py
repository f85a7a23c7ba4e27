"""Training at toy size: against a plain loop, through interruptions, and on inputs that cannot be right."""

import copy
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from scantune.config.settings import TrainSettings
from scantune.errors import InputError
from scantune.evaluation import metrics
from scantune.scans import tensors as tensorfile
from scantune.scans.tensors import read_tensors
from scantune.training.augment import Augmentation
from scantune.training.checkpoint import CHECKPOINT_FORMAT
from scantune.training.examples import Example, SliceOrder, stream_seed
from scantune.training.segmentation import train_network, validation_dice

SETTINGS = TrainSettings(iterations=24, batch=4, validate_every=6, checkpoint_every=4, learning_rate=0.01, device="cpu")


def toy_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.1), nn.Conv2d(6, 3, 1)
    )


def toy_scan(seed: int, slices: int = 5, size: int = 16) -> Example:
    """A bright square with a brighter core in noise."""
    generator = torch.Generator().manual_seed(seed)
    reference = torch.zeros(slices, size, size, dtype=torch.int64)
    for labels in reference:
        row, column = torch.randint(0, size - 8, (2,), generator=generator).tolist()
        labels[row : row + 8, column : column + 8] = 1
        labels[row + 2 : row + 6, column + 2 : column + 6] = 2
    noise = 0.05 * torch.randn(slices, 1, size, size, generator=generator)
    return Example(0.5 * reference[:, None] + noise, reference, f"scan {seed}")


TRAINING = [toy_scan(seed) for seed in range(3)]
VALIDATION = [toy_scan(seed) for seed in (10, 11)]


def run(settings: TrainSettings = SETTINGS, **options):
    return train_network(TRAINING, VALIDATION, settings, **({"network": toy_network()} | options))


def assert_same_run(first, second) -> None:
    assert first.history == second.history
    assert (first.best_iteration, first.best_score) == (second.best_iteration, second.best_score)
    for (name, one), other in zip(
        first.network.state_dict().items(), second.network.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


class InterruptionError(Exception):
    pass


def interrupt_after(iteration: int):
    def stop(progress) -> None:
        if progress.iteration >= iteration:
            raise InterruptionError

    return stop


@pytest.fixture(scope="module")
def undisturbed():
    return run()


@pytest.mark.parametrize("augment", ["none", "strong"])
def test_training_equals_a_plain_loop(augment):
    """The same batches, seven steps of a textbook loop with MONAI's Dice loss."""
    from monai.losses import DiceLoss

    network = toy_network()
    images = torch.cat([scan.volume for scan in TRAINING])
    labels = torch.cat([scan.reference for scan in TRAINING])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    loss_of = DiceLoss(softmax=True, to_onehot_y=True, smooth_nr=0.0, smooth_dr=1e-10)
    order = SliceOrder(len(images), 4, 0, 1, torch.device("cpu"))
    for iteration in range(7):
        chosen = order.batch_of(iteration)
        x, y = images[chosen], labels[chosen]
        if augment == "strong":
            x, y = Augmentation()(x, y, torch.Generator().manual_seed(stream_seed(0, 2, iteration)))
        torch.manual_seed(stream_seed(0, 3, iteration))
        optimizer.zero_grad()
        loss_of(network(x), y[:, None]).backward()
        optimizer.step()
    trained = run(replace(SETTINGS, iterations=7, validate_every=7, augment=augment)).network
    for expected, value in zip(network.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-4)


def test_training_learns_an_easy_task():
    trained = run(replace(SETTINGS, iterations=300, validate_every=50, augment="none", learning_rate=0.02))
    assert trained.best_score > 0.9
    assert trained.history[-1].loss < trained.history[0].loss - 0.2


def test_the_network_of_the_best_validation_is_returned(undisturbed):
    validated = {line.iteration: line.score for line in undisturbed.history if line.score is not None}
    assert list(validated) == [6, 12, 18, 24]
    assert undisturbed.best_score == max(validated.values())
    assert validated[undisturbed.best_iteration] == undisturbed.best_score
    assert not undisturbed.network.training
    assert validation_dice(undisturbed.network, VALIDATION, 3) == undisturbed.best_score


def test_a_later_and_worse_network_does_not_replace_the_best_one():
    class Forgets(nn.Module):
        """Sees the world upside down after ten steps; the count is part of its state."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = toy_network()
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, images):
            self.steps += self.training
            return self.layers(images) * torch.where(self.steps <= 10, 1.0, -1.0)

    trained = run(replace(SETTINGS, iterations=15, validate_every=1, augment="none"), network=Forgets())
    scores = [line.score for line in trained.history]
    assert scores[9] > max(scores[10:]) + 0.1
    assert trained.best_iteration == scores.index(max(scores)) + 1 <= 10
    assert trained.network.steps == trained.best_iteration
    assert validation_dice(trained.network, VALIDATION, 3) == max(scores)


def test_validation_dice_is_that_of_whole_volumes_over_foreground_labels():
    network = toy_network().eval()
    scans = [*VALIDATION, toy_scan(12, slices=2)]
    scans[0] = replace(scans[0], reference=torch.where(scans[0].reference == 2, 1, scans[0].reference))
    expected = []
    for scan in scans:
        predicted = network(scan.volume).argmax(1)
        scores = [metrics.dice(predicted.numpy(), scan.reference.numpy(), label) for label in (1, 2)]
        scores = [score for score in scores if not math.isnan(score)]
        expected.append(sum(scores) / len(scores))
    assert validation_dice(network, scans, 3, batch=2) == pytest.approx(sum(expected) / len(expected), abs=1e-6)


def test_validation_leaves_out_a_label_that_is_nowhere_in_a_scan():
    class Truth(nn.Module):
        def forward(self, images):
            return nn.functional.one_hot((images[:, 0] > 0.25).long(), 3).movedim(-1, 1).float()

    scan = toy_scan(1)
    scan = replace(scan, reference=scan.reference.clamp(max=1))
    assert validation_dice(Truth(), [scan], 3) == 1.0


def test_every_epoch_takes_each_slice_once_and_drops_the_rest():
    order = SliceOrder(10, 4, 5, 0, torch.device("cpu"))
    epochs = [torch.cat([order.batch_of(2 * epoch), order.batch_of(2 * epoch + 1)]) for epoch in range(30)]
    for taken in epochs:
        assert len(set(taken.tolist())) == 8
    assert set(torch.cat(epochs).tolist()) == set(range(10))
    assert len({tuple(taken.tolist()) for taken in epochs}) == 30
    late = SliceOrder(10, 4, 5, 0, torch.device("cpu"))
    assert torch.equal(late.batch_of(41), order.batch_of(41))


def test_fewer_slices_than_a_batch_are_drawn_with_replacement():
    order = SliceOrder(3, 8, 0, 0, torch.device("cpu"))
    batches = torch.stack([order.batch_of(iteration) for iteration in range(20)])
    assert batches.shape == (20, 8)
    assert set(batches.flatten().tolist()) == {0, 1, 2}
    few = train_network([toy_scan(0, slices=2)], VALIDATION, replace(SETTINGS, iterations=2), network=toy_network())
    assert few.history[-1].iteration == 2


@pytest.mark.parametrize("iteration", [4, 5, 12, 23])
def test_an_interrupted_run_resumes_to_the_same_weights(undisturbed, tmp_path, iteration):
    path = tmp_path / "run.safetensors"
    with pytest.raises(InterruptionError):
        run(checkpoint=path, on_progress=interrupt_after(iteration))
    assert_same_run(undisturbed, run(checkpoint=path))


def test_interruptions_at_every_checkpoint_change_nothing(undisturbed, tmp_path):
    path = tmp_path / "run.safetensors"
    for iteration in range(4, 24, 4):
        with pytest.raises(InterruptionError):
            run(checkpoint=path, on_progress=interrupt_after(iteration))
    assert_same_run(undisturbed, run(checkpoint=path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_interrupted_run_on_a_gpu_resumes_to_the_same_weights(tmp_path, precision):
    settings = replace(SETTINGS, device="cuda", precision=precision)
    path = tmp_path / "run.safetensors"
    with pytest.raises(InterruptionError):
        run(settings, checkpoint=path, on_progress=interrupt_after(12))
    assert_same_run(run(settings), run(settings, checkpoint=path))


KILLED = """
import sys
import time
for name in ("scipy", "monai", "nibabel", "SimpleITK", "nilearn", "sklearn", "tyro", "rich", "tensorboard"):
    sys.modules[name] = None
import torch
from pathlib import Path
from scantune.config.settings import TrainSettings
from scantune.training.examples import Example
from scantune.training.segmentation import train_network

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
scans = [
    Example(torch.rand(6, 1, 16, 16, generator=generator), torch.randint(0, 3, (6, 16, 16), generator=generator))
    for _ in range(3)
]
torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 1))
settings = TrainSettings(iterations=int(sys.argv[2]), batch=4, validate_every=40, checkpoint_every=10, device="cpu")
path = Path(sys.argv[1])
trained = train_network(
    scans[:2], scans[2:], settings, network=network, checkpoint=path,
    on_progress=lambda progress: (print(progress.iteration, flush=True), time.sleep(float(sys.argv[3]))),
)
"""


def start_run(path: Path, iterations: int, pause: float = 0.0) -> subprocess.Popen:
    command = [sys.executable, "-c", KILLED, str(path), str(iterations), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_a_killed_process_resumes_to_the_same_weights(tmp_path):
    """SIGKILL at whatever point the run has got to, without the packages that the core does not need."""
    iterations = 600
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    quiet = start_run(whole, iterations)
    # The pauses leave time to kill the run before it ends, on a busy machine too.
    killed_run = start_run(killed, iterations, pause=0.05)
    next(line for line in killed_run.stdout if int(line) >= 120)
    killed_run.send_signal(signal.SIGKILL)
    assert killed_run.wait() == -signal.SIGKILL
    last = start_run(killed, iterations)
    assert 120 < int(last.stdout.readline()) < iterations, "the run should go on where it was killed"
    for process in (last, quiet):
        process.communicate()
        assert process.returncode == 0
    expected, expected_run = read_tensors(whole)
    tensors, resumed_run = read_tensors(killed)
    assert resumed_run == expected_run
    assert tensors.keys() == expected.keys()
    assert any(name.startswith("optimizer.") for name in tensors)
    for name, value in expected.items():
        assert torch.equal(tensors[name], value), name


def test_a_failure_while_saving_leaves_the_last_checkpoint_whole(undisturbed, tmp_path, monkeypatch):
    path = tmp_path / "run.safetensors"
    with pytest.raises(InterruptionError):
        run(checkpoint=path, on_progress=interrupt_after(8))
    before = path.read_bytes()

    def fail(_tensors, temporary, _metadata):
        Path(temporary).write_bytes(b"half a file")
        raise InterruptionError

    with monkeypatch.context() as patch:
        patch.setattr(tensorfile, "save_file", fail)
        with pytest.raises(InterruptionError):
            run(checkpoint=path)
    assert path.read_bytes() == before
    assert_same_run(undisturbed, run(checkpoint=path))


def test_a_finished_run_is_returned_without_a_step(undisturbed, tmp_path):
    path = tmp_path / "run.safetensors"
    run(checkpoint=path)
    stamp = path.stat().st_mtime_ns
    again = run(checkpoint=path, on_progress=interrupt_after(0))
    assert_same_run(undisturbed, again)
    assert path.stat().st_mtime_ns == stamp
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.02), ("augment", "none"), ("seed", 3), ("iterations", 30)]
)
def test_a_changed_setting_is_refused_by_name(tmp_path, name, value):
    path = tmp_path / "run.safetensors"
    run(replace(SETTINGS, iterations=2) if name != "iterations" else SETTINGS, checkpoint=path)
    changed = replace(SETTINGS, **({"iterations": 2} | {name: value}))
    with pytest.raises(InputError, match=f"{name} = ") as caught:
        run(changed, checkpoint=path)
    assert repr(value) in str(caught.value)


def test_other_scans_another_network_or_no_checkpoint_at_all_are_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    settings = replace(SETTINGS, iterations=2)
    run(settings, checkpoint=path)
    with pytest.raises(InputError, match="data = "):
        train_network(TRAINING[:2], VALIDATION, settings, network=toy_network(), checkpoint=path)
    with pytest.raises(InputError, match="another network"):
        run(settings, checkpoint=path, network=nn.Sequential(nn.Conv2d(1, 3, 3, padding=1)))
    path.write_bytes(b"no checkpoint")
    with pytest.raises(InputError, match=r"run\.safetensors"):
        run(settings, checkpoint=path)
    tensorfile.write_tensors(path, {"a": torch.zeros(1)}, {"format": "a model"})
    with pytest.raises(InputError, match=CHECKPOINT_FORMAT):
        run(settings, checkpoint=path)


def test_a_loss_that_is_not_a_number_names_its_iteration():
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.steps = nn.Conv2d(1, 3, 1), 0

        def forward(self, images):
            self.steps += self.training
            return self.layer(images) * (math.nan if self.steps == 9 else 1.0)

    with pytest.raises(InputError, match="nan at iteration 9;"):
        run(replace(SETTINGS, validate_every=20, checkpoint_every=20), network=Breaks())


def test_the_given_network_and_the_global_generator_stay_as_they_were():
    network = toy_network()
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    run(replace(SETTINGS, iterations=2), network=network)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_without_a_network_the_default_one_is_made_from_the_seed():
    settings = replace(SETTINGS, iterations=1)
    one, same, other = (train_network(TRAINING, VALIDATION, replace(settings, seed=seed)).network for seed in (1, 1, 2))
    assert one(TRAINING[0].volume).shape == (5, 3, 16, 16)
    first, again, third = (next(network.parameters()) for network in (one, same, other))
    assert torch.equal(first, again)
    assert not torch.equal(first, third)


def test_half_precision_keeps_float32_weights_and_stays_close(undisturbed):
    half = run(replace(SETTINGS, precision="bfloat16"))
    assert all(value.dtype == torch.float32 for value in half.network.parameters())
    assert half.history != undisturbed.history
    for line, exact in zip(half.history, undisturbed.history, strict=True):
        assert line.loss == pytest.approx(exact.loss, abs=0.03)


def test_progress_tells_loss_dice_and_time_left():
    seen = []
    run(on_progress=seen.append)
    assert [line.iteration for line in seen] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert seen[0].score is None
    assert seen[1].score == seen[2].score
    assert all(0 < line.loss < 1 and line.iterations == 24 for line in seen)
    assert all(line.seconds_left > 0 for line in seen[:-1])
    assert seen[-1].seconds_left == 0


def test_the_log_is_read_by_tensorboard_and_has_each_iteration_once(undisturbed, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path, log = tmp_path / "run.safetensors", tmp_path / "log"
    with pytest.raises(InterruptionError):
        run(checkpoint=path, log_dir=log, on_progress=interrupt_after(18))
    run(checkpoint=path, log_dir=log)
    events = EventAccumulator(str(log)).Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(line.iteration, pytest.approx(line.loss)) for line in undisturbed.history]
    scores = [(event.step, event.value) for event in events.Scalars("validation Dice")]
    validated = [line for line in undisturbed.history if line.score is not None]
    assert scores == [(line.iteration, pytest.approx(line.score)) for line in validated]


def test_without_tensorboard_the_run_goes_on_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    trained = run(replace(SETTINGS, iterations=1), log_dir=tmp_path / "log")
    assert trained.history[-1].iteration == 1
    assert "pip install tensorboard" in caplog.text


def broken_example(**changes) -> Example:
    scan = toy_scan(0)
    return Example(**({"volume": scan.volume, "reference": scan.reference, "name": "the bad scan"} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"volume": torch.zeros(5, 16, 16)}, "must be"),
        ({"reference": torch.zeros(5, 16, 15, dtype=torch.int64)}, "must be"),
        ({"volume": torch.full((5, 1, 16, 16), math.inf)}, "NaN or infinite"),
        ({"reference": torch.zeros(5, 16, 16)}, "whole numbers"),
        ({"reference": torch.full((5, 16, 16), -1)}, "whole numbers"),
    ],
)
def test_a_scan_that_cannot_be_trained_on_is_named(changes, message):
    with pytest.raises(InputError, match=f"the bad scan: .*{message}"):
        broken_example(**changes)


def test_scans_that_do_not_fit_together_or_the_network_are_named():
    settings = replace(SETTINGS, iterations=1)
    small = toy_scan(3, size=12)
    with pytest.raises(InputError, match=r"scan 3 has slices of \(1, 12, 12\)"):
        train_network([*TRAINING, small], VALIDATION, settings, network=toy_network())
    assert train_network(TRAINING, [small], settings, network=toy_network()).history
    many = broken_example(reference=torch.full((5, 16, 16), 3))
    with pytest.raises(InputError, match="the bad scan has the label 3, but the network has 3 classes"):
        train_network(TRAINING, [many], settings, network=toy_network())
    two = broken_example(volume=torch.zeros(5, 2, 16, 16))
    with pytest.raises(InputError, match="the bad scan has 2 channels"):
        train_network(TRAINING, [two], settings, network=toy_network())
    with pytest.raises(InputError, match="does not take images"):
        train_network([two], [two], settings, network=toy_network())
    with pytest.raises(InputError, match="expected \\(slices, classes, height, width\\)"):
        run(settings, network=nn.Conv2d(1, 3, 3))
    with pytest.raises(InputError, match="all of them are frozen"):
        run(settings, network=toy_network().requires_grad_(False))


def test_training_without_validation_or_foreground_or_device_is_refused():
    with pytest.raises(InputError, match="got 3 and 0"):
        train_network(TRAINING, [], SETTINGS)
    empty = broken_example(reference=torch.zeros(5, 16, 16, dtype=torch.int64))
    with pytest.raises(InputError, match="No validation scan has foreground"):
        train_network(TRAINING, [empty], SETTINGS)
    with pytest.raises(InputError, match="The device warp is not available"):
        run(replace(SETTINGS, device="warp"))
