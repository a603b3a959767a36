"""Installed distributions made up on the spot: a module and a `.dist-info` folder are all that it takes to be a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

METRIC = """
from rollout import MetricValue, NoOptions

class Count:
    api_version = {api_version}
    options_type = NoOptions

    def __init__(self, options):
        self.n = 0

    def add(self, score):
        self.n += 1

    def values(self):
        return [MetricValue(name="count", value=float(self.n), n=self.n, basis="all")]
"""


def install(
    site: Path,
    dist: str,
    entry_points: Mapping[str, Mapping[str, str]],
    *,
    version: str = "0.1.0",
    modules: Mapping[str, str] | None = None,
) -> Path:
    """Put a distribution into the folder `site`: its modules (name to source) and its metadata."""
    site.mkdir(parents=True, exist_ok=True)
    for name, source in (modules or {}).items():
        (site / f"{name}.py").write_text(source)
    info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
    lines = []
    for group, names in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return info


def install_metric(site: Path, dist: str, name: str = "count", *, api_version: object = (1, 0), version: str = "0.1.0") -> Path:
    """A distribution with one metric that counts trials."""
    module = dist.replace("-", "_")
    source = METRIC.format(api_version=api_version)
    return install(site, dist, {"rollout.metrics": {name: f"{module}:Count"}}, version=version, modules={module: source})
