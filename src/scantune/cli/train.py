"""The commands `train` and `fit`."""

import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from scantune.errors import InputError

if TYPE_CHECKING:
    from scantune.model.model import Model
    from scantune.training.plan import TrainingPlan

FROM_RECIPE = "(default: the recipe's)"

Flag = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]

NetworkWords = Annotated[
    tuple[str, ...], arg(metavar="MODULE:FACTORY [NAME=VALUE ...]", help_behavior_hint="(default: none)")
]
"""What makes a network, and its arguments."""


@dataclass(frozen=True)
class Train:
    """Train normaliser and task network together, as a recipe says."""

    recipe: Annotated[str, Positional, arg(metavar="RECIPE")]
    """A TOML file, or the name of a recipe that comes with scantune, such as brain."""
    out: Annotated[Path, arg(metavar="FILE")]
    """The model file to write. An interrupted run leaves a checkpoint beside it; the same command continues it."""
    start: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: new weights)")] = None
    """Fine-tune this model, with the paper's 5000 iterations at 1e-4 instead of [train] of the recipe."""
    network: NetworkWords = ()
    """What makes the network, instead of [network] of the recipe: a function of your own, which is imported, or a name
    such as monai:UNet."""
    iterations: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """The number of training steps."""
    learning_rate: Annotated[float | None, arg(metavar="RATE", help_behavior_hint=FROM_RECIPE)] = None
    """The learning rate of Adam, which stays constant."""
    augment: Annotated[Literal["strong", "none"] | None, arg(metavar="strong|none", help_behavior_hint=FROM_RECIPE)] = (
        None
    )
    """Stacked augmentation (the strong baseline) or none (the baseline)."""
    seed: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """Seed of the first weights, the order of the slices and the augmentation."""
    device: Annotated[str | None, arg(metavar="auto|cpu|cuda", help_behavior_hint=FROM_RECIPE)] = None
    """Where to compute; auto uses a GPU if there is one."""
    compile: Annotated[bool | None, arg(metavar="True|False", help_behavior_hint=FROM_RECIPE)] = None
    """On a GPU, compile the network instead of replaying recorded steps. Compiling takes a minute."""
    precision: Annotated[Literal["float32", "float16"], arg(metavar="float32|float16")] = "float32"
    """The precision of the weights in the model file."""
    atlas: Annotated[str | None, arg(metavar="FILE.npz", help_behavior_hint=FROM_RECIPE)] = None
    """An exported atlas for simulated cohorts, if nilearn is not installed."""
    label_maps: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint=FROM_RECIPE)] = None
    """Real label maps, from which half of the simulated subjects are made."""
    root: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint=FROM_RECIPE)] = None
    """The folder of the data set, if the recipe does not name it."""
    log: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Where to write a log for TensorBoard."""

    def run(self) -> int:
        """Train, and write the model file."""
        from scantune.cli import console as terminal
        from scantune.cli.training_display import TrainingDisplay
        from scantune.config.recipe import read_recipe
        from scantune.config.settings import FINE_TUNING
        from scantune.model.architecture import architecture_from_words
        from scantune.model.model import load
        from scantune.training.plan import PRECISIONS, TrainingPlan
        from scantune.training.train import train_model

        names = ("iterations", "learning_rate", "augment", "seed", "device", "compile")
        given = _given({name: getattr(self, name) for name in names})
        network = architecture_from_words(self.network)
        start = None if self.start is None else load(self.start, network)
        recipe = read_recipe(self.recipe)
        recipe = replace(recipe, train=replace(recipe.train if start is None else FINE_TUNING, **given))
        given_data = _given({"atlas": self.atlas, "label_maps": self.label_maps, "root": self.root})
        plan = TrainingPlan.read(recipe, given_data, network)
        checkpoint = self.out.with_name(f".{self.out.name}.run")
        screen = terminal.console(stderr=True)
        with TrainingDisplay(screen, recipe.train.iterations) as display:
            model = train_model(
                plan,
                start=start,
                precision=self.precision,
                command=_command(),
                checkpoint=checkpoint,
                log_dir=self.log,
                on_progress=display.update,
                on_case=display.prepare,
            )
        model.save(self.out, PRECISIONS[self.precision])
        checkpoint.unlink(missing_ok=True)
        best = model.provenance
        terminal.say(
            terminal.console(),
            f"{self.out}: validation Dice {best['validation_dice']:.3f} at iteration {best['best_iteration']}. "
            f"{_left_out(start)}Next: scantune fit {self.out} --data {self.recipe}",
        )
        return 0


@dataclass(frozen=True)
class Fit:
    """Fit a model's prior, or train a helper network, and add it to the model file."""

    model: Annotated[Path, Positional, arg(metavar="MODEL")]
    """The model file, to which the prior or the helper network is added. Or a model folder."""
    data: Annotated[str, arg(metavar="RECIPE")]
    """The recipe whose [data] table names the training scans, or their folder."""
    network: NetworkWords = ()
    """The function that makes the network, for a model file with an architecture of your own, and the arguments that
    the file lacks. Its package is imported."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: into the model file)")] = None
    """foe: write the prior to this file, for adapt --prior, and leave the model as it is."""
    trust: Flag = False
    """Run code in a model's folder. Model files hold no code."""
    method: Annotated[Literal["foe", "dae", "ae"], arg(metavar="foe|dae|ae")] = "foe"
    """What to fit: the prior of the foe methods, the denoising autoencoder of dae, or the autoencoders of ae."""
    density: Annotated[
        Literal["gaussian", "kde", "histogram"] | None,
        arg(metavar="gaussian|kde|histogram", help_behavior_hint=FROM_RECIPE),
    ] = None
    """foe: the form of the densities."""
    summarise: Flag = False
    """foe: keep seven numbers per expert, but no number of a single subject. For gaussian densities only."""
    iterations: Annotated[int | None, arg(metavar="N", help_behavior_hint=FROM_RECIPE)] = None
    """dae, ae: the number of training steps. An interrupted run leaves a checkpoint; the same command continues it."""
    set: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint=FROM_RECIPE)] = ()
    """Other settings, such as stride=2 for foe; learning_rate=1e-3, seed=1 for dae and ae; shrink=4 for a fast dae."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto uses a GPU if there is one."""
    atlas: Annotated[str | None, arg(metavar="FILE.npz", help_behavior_hint=FROM_RECIPE)] = None
    """An exported atlas for simulated cohorts, if nilearn is not installed."""
    label_maps: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint=FROM_RECIPE)] = None
    """Real label maps, from which half of the simulated subjects are made."""
    root: Annotated[str | None, arg(metavar="FOLDER", help_behavior_hint=FROM_RECIPE)] = None
    """The folder of the data set, if the recipe does not name it."""

    def run(self) -> int:
        """Fit, and write the model file again."""
        from scantune.cli import console as terminal
        from scantune.model.architecture import architecture_from_words
        from scantune.model.describe import describe_model
        from scantune.model.model import load
        from scantune.training.plan import PRECISIONS, TrainingPlan

        settings = self._settings()
        network = architecture_from_words(self.network)
        model = load(self.model, network, trust=self.trust)
        if self.out is None:
            model.require_storable()
        given = _given({"atlas": self.atlas, "label_maps": self.label_maps, "root": self.root})
        plan = TrainingPlan.of_data(
            self.data, model.labels, given, network, model.backend.channels, model.provenance.get("held_out", ())
        )
        checkpoint = self.model.with_name(f".{self.model.name}.{self.method}.run")
        if self.method == "foe":
            model = self._prior(model, plan, settings)
        else:
            model = self._helper(model, plan, settings, checkpoint)
        if self.out is not None:
            assert model.prior is not None
            model.prior.save(self.out)
        else:
            model.save(self.model, PRECISIONS[model.provenance.get("precision", "float32")])
        checkpoint.unlink(missing_ok=True)
        terminal.say(terminal.console(), describe_model(model))
        return 0

    def _prior(self, model: "Model", plan: "TrainingPlan", settings: dict[str, Any]) -> "Model":
        from scantune.adaptation.calibration.calibrate import calibrate
        from scantune.cli.console import console
        from scantune.cli.fit_display import FitDisplay
        from scantune.config.settings import PriorSettings, settings_from_table
        from scantune.runtime.devices import find_device
        from scantune.training.fit import fit_model

        table = asdict(plan.recipe.prior) | settings
        chosen = settings_from_table(PriorSettings, table, "the settings of the prior")
        with FitDisplay(console(stderr=True)) as display:
            shown = display.part("Fitting the prior")
            model = fit_model(model, plan, settings=chosen, device=self.device, command=_command(), on_progress=shown)
            held_out = plan.source.cases("validation", find_device(self.device))
            return calibrate(model, held_out, self.device, display.part("Calibrating the assessment"))

    def _helper(self, model: "Model", plan: "TrainingPlan", settings: dict[str, Any], checkpoint: Path) -> "Model":
        from scantune.cli.console import console
        from scantune.cli.training_display import TrainingDisplay
        from scantune.config.settings import settings_from_table
        from scantune.training.helpers import TRAINERS, fit_helper

        kind = TRAINERS[self.method].settings
        table = {**plan.recipe.helpers.get(self.method, {}), **settings}
        iterations = settings_from_table(kind, table, f"the settings of {self.method}").iterations
        with TrainingDisplay(console(stderr=True), iterations) as display:
            return fit_helper(
                model,
                plan,
                self.method,
                settings,
                device=self.device,
                command=_command(),
                checkpoint=checkpoint,
                on_progress=display.update,
            )

    def _settings(self) -> dict[str, Any]:
        """Return the given settings, if they belong to the method."""
        from scantune.config.assignments import table_from_assignments
        from scantune.config.settings import PriorSettings

        given = _given({"iterations": self.iterations})
        own = _given({"density": self.density, "summarise": self.summarise or None})
        if self.method == "foe":
            if given:
                raise InputError("The prior is computed, not trained: iterations belongs to --method dae or ae.")
            return own | table_from_assignments(PriorSettings, self.set, "--set")
        if self.out is not None:
            raise InputError("--out is about the prior; leave it out, or give it with --method foe.")
        for flag in own:
            raise InputError(f"--{flag} is about the prior; leave it out, or give it with --method foe.")
        from scantune.training.helpers import TRAINERS

        return given | table_from_assignments(TRAINERS[self.method].settings, self.set, "--set")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _left_out(start: "Model | None") -> str:
    """Return a sentence about what a fine-tuned model lost."""
    lost = [] if start is None else [*(["prior"] if start.prior is not None else []), *start.helpers]
    return f"Left out, as it no longer fits the weights: {', '.join(lost)}. " if lost else ""


def _command() -> str:
    """Return the command line, for the record."""
    return shlex.join(["scantune", *sys.argv[1:]])
