"""The built-in metrics pass the suite that plugin authors use."""

from __future__ import annotations

from rollout.builtin.metrics import Max, Mean, Min, PassAtK, Sum
from rollout.testing.metric import MetricSuite


class TestSum(MetricSuite):
    metric = Sum


class TestMin(MetricSuite):
    metric = Min


class TestMax(MetricSuite):
    metric = Max


class TestMean(MetricSuite):
    metric = Mean


class TestPassAtK(MetricSuite):
    metric = PassAtK


class TestPassAtKWithOptions(MetricSuite):
    metric = PassAtK
    options = {"k": [1, 5], "threshold": 0.5}
