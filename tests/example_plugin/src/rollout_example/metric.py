"""A metric: the median of the rewards."""

from statistics import median

from rollout import MetricValue, NoOptions, Score


class Median:
    """The median over trials that were scored."""

    api_version = (1, 0)
    options_type = NoOptions

    def __init__(self, options: NoOptions) -> None:
        self._values: list[float] = []

    def add(self, score: Score) -> None:
        if score.value is not None:
            self._values.append(score.value)

    def values(self) -> list[MetricValue]:
        value = median(self._values) if self._values else None
        return [MetricValue(name="median", value=value, n=len(self._values), basis="scored")]
