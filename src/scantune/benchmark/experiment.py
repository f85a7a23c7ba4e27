"""An experiment: a recipe whose table [experiment] says which rows are compared, at which centres and how often."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Self

from scantune.benchmark.experiment_tables import STANDARD_ROWS, AdaptTable, ExperimentTable, RowTable
from scantune.config.assignments import untyped_table_from_assignments
from scantune.config.recipe import Recipe, parse_tables, recipe_from_tables, text_of
from scantune.config.settings import PriorSettings, TrainSettings, settings_from_table
from scantune.errors import InputError
from scantune.methods import find_method
from scantune.model.architecture import Architecture
from scantune.tasks import Segmentation, find_task
from scantune.training.sources import CaseSource, read_source


@dataclass(frozen=True)
class Experiment:
    """An experiment with all its tables read.

    Attributes:
        name: The file's stem, or the name of a bundled one.
        tables: Everything it says, as TOML has it.
        recipe: The tables that training and fitting need.
        table: What is compared.
        adapt: How it is adapted.
        rows: What each compared row is, by name and in order.
        network: What the user named as the network, with its arguments, in place of the table [network].
    """

    name: str
    tables: Mapping[str, Any]
    recipe: Recipe
    table: ExperimentTable
    adapt: AdaptTable
    rows: Mapping[str, RowTable]
    network: Mapping[str, Any] | None = None

    @classmethod
    def read(
        cls,
        source: str | Path,
        sets: Sequence[str] = (),
        datasets: Sequence[tuple[str, str]] = (),
        network: Mapping[str, Any] | None = None,
    ) -> Self:
        """Read an experiment from a TOML file, or a bundled one by its name.

        Args:
            source: The file or the name.
            sets: Words such as `train.iterations=10000` that replace single settings.
            datasets: Names and folders of data sets to use instead of [data]; networks are trained on the first.
            network: `kind` and arguments of a network to use instead of [network].

        Raises:
            InputError: There is no such experiment, or it says something unknown.
        """
        tables = parse_tables(_text(source), source)
        if datasets:
            tables = _with_datasets(tables, datasets)
        if "cohort" not in tables.get("data", {}):
            tables = _with_real(tables)
        tables = _merged(tables, untyped_table_from_assignments(sets, "--set"))
        if network is not None:
            tables["network"] = Architecture.in_place_of(tables.get("network", {}), network).record
        return cls.of(tables, source, network)

    @classmethod
    def of(cls, tables: Mapping[str, Any], source: str | Path, network: Mapping[str, Any] | None = None) -> Self:
        """Make an experiment from its tables, as `read`."""
        recipe = recipe_from_tables(tables, source)
        if not recipe.experiment:
            raise InputError(f"The recipe {source} has no table [experiment], which says what is compared.")
        table = settings_from_table(ExperimentTable, recipe.experiment, f"[experiment] of {source}")
        adapt = settings_from_table(AdaptTable, recipe.adapt, f"[adapt] of {source}")
        usual = {"method": find_task(str(recipe.task.get("name", Segmentation.name))).method}
        own = {
            name: settings_from_table(RowTable, {**usual, **row}, f'[experiment.rows."{name}"] of {source}')
            for name, row in table.rows.items()
        }
        known = {**STANDARD_ROWS, **own}
        for name in table.methods:
            if name not in known:
                raise InputError(f"Unknown row {name!r} in [experiment] of {source}. Available: {', '.join(known)}.")
        rows = {name: known[name] for name in table.methods}
        made = cls(recipe.name, tables, recipe, table, adapt, rows, network)
        made.require_sound()
        return made

    def require_sound(self) -> None:
        """Read all settings that are used later, so that mistakes are reported now.

        Raises:
            InputError: A method does not know an option, ...
        """
        self.supervised()
        for row in self.rows.values():
            self.prior(row)
            settings = self.adapt.settings(row)
            kind = find_method(str(settings.method))
            settings_from_table(kind.Options, settings.options, f"the options of method {row.method}")

    def with_seeds(self, seeds: Sequence[int]) -> Self:
        """Return the experiment with further training runs."""
        return self.changed({"experiment": {"seeds": list(dict.fromkeys([*self.table.seeds, *seeds]))}})

    def changed(self, tables: Mapping[str, Any]) -> Self:
        """Return the experiment with single entries of its tables replaced, at any depth."""
        return self.of(_merged(self.tables, tables), self.name, self.network)

    def sources(self) -> list[CaseSource]:
        """Return the sources of scans. Networks are trained on the first."""
        further = [read_source(table, f"[tests.{name}] of {self.name}") for name, table in self.recipe.tests.items()]
        return [read_source(self.recipe.data, f"[data] of {self.name}"), *further]

    def prior(self, row: RowTable) -> PriorSettings:
        """Return the settings of a row's prior."""
        table = {**self.recipe_table("prior"), **row.prior}
        return settings_from_table(PriorSettings, table, f"[prior] of {self.name}")

    def supervised(self) -> TrainSettings:
        """Return the settings of continued training with labelled scans of a centre."""
        table = {**self.recipe_table("train"), **self.recipe.supervised}
        return settings_from_table(TrainSettings, table, f"[supervised] of {self.name}")

    def recipe_table(self, name: str) -> Mapping[str, Any]:
        """Return a table as it is written."""
        table: Mapping[str, Any] = self.tables.get(name, {})
        return table

    def training(self, network: str, seed: int) -> Recipe:
        """Return the recipe of a network."""
        train = replace(self.recipe.train, augment=network, seed=seed)  # type: ignore[arg-type]
        return replace(self.recipe, train=train)


def bundled_experiments() -> list[str]:
    """Return the names of the bundled experiments."""
    folder = resources.files("scantune.benchmark") / "experiments"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _text(source: str | Path) -> str:
    path = Path(source)
    if path.is_file():
        return text_of(path, "experiment")
    bundled = bundled_experiments()
    if str(source) in bundled:
        return (resources.files("scantune.benchmark") / "experiments" / f"{source}.toml").read_text(encoding="utf-8")
    raise InputError(f"There is no experiment {source}: neither a file nor a bundled one ({', '.join(bundled)}).")


def _with_datasets(tables: Mapping[str, Any], datasets: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the tables with data sets in place of [data]: the first for training, the others for tests."""
    given = [{"dataset": name, "root": root} for name, root in datasets]
    tests = {table["dataset"]: table for table in given[1:]}
    return {**tables, "data": given[0], "tests": tests}


def _with_real(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables with the entries of [real], without those of data sets that are not used."""
    real = dict(tables.get("real", {}))
    used = tables.get("tests", {})
    real["tests"] = {name: table for name, table in real.get("tests", {}).items() if name in used}
    return _merged(tables, real)


def _merged(tables: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with single entries replaced, at any depth."""
    merged = dict(tables)
    for name, value in changes.items():
        inner = merged.get(name)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return merged
