"""The plugin keeps the contracts of agents and metrics."""

from rollout_example.agent import Greeter
from rollout_example.metric import Median

from rollout.testing import AgentSuite, MetricSuite


class TestGreeter(AgentSuite):
    agent = Greeter
    options = {"path": "greeting.txt", "greeting": "it's $HOME"}


class TestMedian(MetricSuite):
    metric = Median
