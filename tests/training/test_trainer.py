"""The training loop, by modules so small that every number is known."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from scantune.config.settings import TrainingRunSettings
from scantune.errors import InputError
from scantune.training.trainer import LOG_EVERY, TrainingModule, run_training


@dataclass(frozen=True)
class Settings(TrainingRunSettings):
    iterations: int = 12
    learning_rate: float = 0.1
    validate_every: int = 3
    checkpoint_every: int = 2


class Parabola(TrainingModule):
    """A weight that starts at 10 and is drawn to 0, with noise; its score is far below -1 and rises."""

    def __init__(self, settings=None, weight=10.0):
        network = nn.Linear(1, 1, bias=False)
        nn.init.constant_(network.weight, weight)
        super().__init__(network, settings or Settings(), torch.device("cpu"))
        self.drawn, self.modes = [], []

    def draw(self, iteration):
        return (torch.rand(()),)

    def loss(self, drawn):
        self.drawn.append(float(drawn[0]))
        self.modes.append((self.network.training, torch.is_grad_enabled()))
        return (self.network.weight - self.drawn[-1]).square().sum()

    def score(self):
        self.modes.append((self.network.training, torch.is_grad_enabled()))
        return -float(self.network.weight.square().sum())


def test_the_loop_is_adam_on_the_modules_loss():
    module, settings = Parabola(), Settings()
    run_training(module, settings, {})
    weight = torch.tensor([[10.0]], requires_grad=True)
    adam = torch.optim.Adam([weight], 0.1)
    for drawn in module.drawn:
        adam.zero_grad()
        (weight - drawn).square().sum().backward()
        adam.step()
    # The score still rises, so the last network is the best.
    torch.testing.assert_close(module.network.weight.detach(), weight.detach())


def test_scores_below_minus_one_choose_the_best_too():
    trained = run_training(Parabola(), Settings(), {})
    scores = [line.score for line in trained.history if line.score is not None]
    assert scores == sorted(scores) and scores[-1] < -1
    assert (trained.best_iteration, trained.best_score) == (12, scores[-1])


def test_progress_calls_the_score_by_the_modules_name():
    class Named(Parabola):
        score_name = "minus square"

    seen = []
    run_training(Named(), Settings(), {}, on_progress=seen.append)
    assert {line.score_name for line in seen} == {"minus square"}


def test_a_falling_score_keeps_the_first_network():
    class Worse(Parabola):
        def score(self):
            return -super().score()

    trained = run_training(Worse(), Settings(), {})
    assert trained.best_iteration == 3
    assert float(trained.network.weight.detach() ** 2) == pytest.approx(trained.best_score)


def test_a_module_trains_with_gradients_and_is_scored_without():
    module = Parabola()
    trained = run_training(module, Settings(iterations=3), {})
    assert module.modes == [(True, True)] * 3 + [(False, False)]
    assert not trained.network.training


def test_what_the_network_draws_is_a_function_of_seed_and_iteration():
    one, same, other = Parabola(), Parabola(), Parabola(Settings(seed=1))
    for module, settings in ((one, Settings()), (same, Settings()), (other, Settings(seed=1))):
        torch.rand(7)  # whatever was drawn before
        run_training(module, settings, {})
    assert one.drawn == same.drawn
    assert len({*one.drawn, *other.drawn}) == 24


@pytest.mark.parametrize("stop", [2, 4, 9])
def test_an_interrupted_run_goes_on_to_the_same_end(stop, tmp_path):
    class StoppedError(Exception):
        pass

    def interrupt(progress):
        if progress.iteration >= stop:
            raise StoppedError

    whole, cut, rest = Parabola(), Parabola(), Parabola()
    expected = run_training(whole, Settings(), {"module": "parabola"})
    path = tmp_path / "run.safetensors"
    with pytest.raises(StoppedError):
        run_training(cut, Settings(), {"module": "parabola"}, checkpoint=path, on_progress=interrupt)
    resumed = run_training(rest, Settings(), {"module": "parabola"}, checkpoint=path)
    assert 0 < len(rest.drawn) < 12
    assert resumed.history == expected.history
    assert torch.equal(rest.network.weight, whole.network.weight)
    with pytest.raises(InputError, match="module = 'parabola'"):
        run_training(Parabola(), Settings(), {"module": "other"}, checkpoint=path)


def test_losses_are_looked_at_together_every_so_often():
    settings = Settings(iterations=2 * LOG_EVERY + 7, validate_every=1000, checkpoint_every=1000)
    module = Parabola(settings)
    seen = []
    trained = run_training(module, settings, {}, on_progress=seen.append)
    assert [line.iteration for line in trained.history] == [LOG_EVERY, 2 * LOG_EVERY, 2 * LOG_EVERY + 7]
    assert [line.loss for line in seen] == [line.loss for line in trained.history]
    assert trained.history[0].loss > trained.history[1].loss


def test_a_loss_that_is_not_finite_and_a_network_that_is_frozen_are_refused():
    with pytest.raises(InputError, match="inf at iteration 1;"):
        run_training(Parabola(weight=1e30), Settings(), {})

    class Frozen(TrainingModule):
        draw = loss = score = lambda *_: math.nan

    with pytest.raises(InputError, match="all of them are frozen"):
        Frozen(nn.Linear(1, 1).requires_grad_(False), Settings(), torch.device("cpu"))
