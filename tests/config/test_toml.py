"""Values as TOML."""

import tomllib

import pytest

from scantune.config.toml import toml


@pytest.mark.parametrize(
    "value", [{"a b": 1, "c": [1.5, 2]}, 'with "quotes" and \\', [True, "ä"], {"nested": {"x": -1}}]
)
def test_values_survive_toml(value):
    assert tomllib.loads(f"v = {toml(value)}")["v"] == value
