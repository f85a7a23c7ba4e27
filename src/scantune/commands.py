"""The commands beside the main job: train a model, fit its prior, show what adaptation does."""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

FROM_RECIPE = "(default: the recipe's)"

Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Train:
    """Train a network, normaliser and task network together, by a recipe."""

    recipe: Annotated[str, Positional, arg(metavar="RECIPE")]
    """A TOML file, or the name of a recipe that comes with scantune, such as brain."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The model file to write. An interrupted run is kept beside it, and goes on when the command is given again."""
    iterations: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Steps of the optimiser."""
    augment: Annotated[Literal["strong", "none"] | None, arg(metavar="strong|none", help_behavior_hint=FROM_RECIPE)] = (
        None
    )
    """Stacked augmentation (the strong baseline), or none (the baseline)."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Decides the first weights, the order of the slices and the augmentation."""
    device: Annotated[str | None, arg(metavar="auto|cpu|cuda", help_behavior_hint=FROM_RECIPE)] = None
    """Where to compute; auto takes a GPU where there is one."""
    compile: Annotated[bool | None, arg(metavar="True|False", help_behavior_hint=FROM_RECIPE)] = None
    """Compile the network; pays off in long runs on a GPU."""
    precision: Annotated[Literal["float32", "float16"], arg(metavar="float32|float16")] = "float32"
    """In what precision the weights are stored in the model file."""
    atlas: Annotated[str | None, arg(metavar="FILE.npz", help_behavior_hint=FROM_RECIPE)] = None
    """An exported atlas for simulated cohorts, where nilearn is not installed."""
    label_maps: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint=FROM_RECIPE)] = None
    """Real label maps, from which half of the simulated subjects are made."""
    log: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Gets a log that TensorBoard reads."""

    def run(self) -> int:
        """Train, and write the model file."""
        from scantune import terminal
        from scantune.settings import read_recipe
        from scantune.workflow import PRECISIONS, Plan, train_model

        given = {name: getattr(self, name) for name in ("iterations", "augment", "seed", "device", "compile")}
        recipe = read_recipe(self.recipe)
        recipe = replace(recipe, train=replace(recipe.train, **_given(given)))
        plan = Plan.read(recipe, _given({"atlas": self.atlas, "label_maps": self.label_maps}))
        checkpoint = self.out.with_name(f".{self.out.name}.run")
        screen = terminal.console(stderr=True)
        with terminal.TrainingDisplay(screen, recipe.train.iterations) as display:
            model = train_model(
                plan,
                precision=self.precision,
                command=_command(),
                checkpoint=checkpoint,
                log_dir=self.log,
                on_progress=display.update,
            )
        model.save(self.out, PRECISIONS[self.precision])
        checkpoint.unlink(missing_ok=True)
        best = model.provenance
        terminal.say(
            terminal.console(),
            f"{self.out}: validation Dice {best['validation_dice']:.3f} at iteration {best['best_iteration']}. "
            f"Next: scantune fit {self.out} --data {self.recipe}",
        )
        return 0


@dataclass(frozen=True)
class Fit:
    """Compute a model's prior from its training scans, into the model file."""

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """The model file; it gets the prior."""
    data: Annotated[str, arg(metavar="RECIPE")]
    """The recipe whose [data] table names the training scans."""
    summarise: Flag = False
    """Keep seven numbers per expert and none of any single subject."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto takes a GPU where there is one."""
    atlas: Annotated[str | None, arg(metavar="FILE.npz", help_behavior_hint=FROM_RECIPE)] = None
    """An exported atlas for simulated cohorts, where nilearn is not installed."""
    label_maps: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint=FROM_RECIPE)] = None
    """Real label maps, from which half of the simulated subjects are made."""

    def run(self) -> int:
        """Fit, and write the model file anew."""
        from scantune import terminal
        from scantune.modelfile import load
        from scantune.settings import read_recipe
        from scantune.workflow import PRECISIONS, Plan, fit_model

        model = load(self.model)
        plan = Plan.read(read_recipe(self.data), _given({"atlas": self.atlas, "label_maps": self.label_maps}))
        with terminal.console(stderr=True).status("Fitting the prior"):
            model = fit_model(model, plan, summarise=self.summarise, device=self.device, command=_command())
        model.save(self.model, PRECISIONS[model.provenance.get("precision", "float32")])
        terminal.say(terminal.console(), model.describe())
        return 0


@dataclass(frozen=True)
class Demo:
    """Show what adaptation does, on simulated scans of other scanners."""

    out: Annotated[Path, arg(metavar="FOLDER")] = Path("demo")
    """Gets a figure per scan and demo.csv with the scores."""
    model: Annotated[str, arg(metavar="MODEL")] = "brain"
    """A model file of brain tissues, or the name of a model that comes with scantune."""
    centres: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """The simulated centres to adapt to, such as pd-3T."""
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the preset's)")] = None
    """The number of steps per scan."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto takes a GPU where there is one."""

    def run(self) -> int:
        """Adapt to all scans, then show scores and where the figures are."""
        from scantune import terminal
        from scantune.demo import demo

        with terminal.DemoDisplay(terminal.console(stderr=True)) as display:
            showings = demo(
                self.model, self.out, centres=self.centres, steps=self.steps, device=self.device, observer=display
            )
        screen = terminal.console()
        screen.print(terminal.demo_table(showings))
        for showing in showings:
            if showing.result.decision.action == "rolled back":
                terminal.say(screen, f"{showing.centre} was rolled back: {showing.result.decision.reason}")
        terminal.say(screen, f"A figure of each scan, and the scores in demo.csv, are in {self.out}")
        terminal.say(
            screen,
            "On your own T1-weighted scan (brain extracted): "
            f"scantune adapt my_T1.nii.gz --model {shlex.quote(self.model)} --out out",
        )
        return 0


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _command() -> str:
    """What was typed, for the record."""
    return shlex.join(["scantune", *sys.argv[1:]])
