"""Rollout evaluates agents on tasks in sandboxes.

The names below are the public ones: what a plugin imports, and what runs a job from Python. Each is imported when it is first
used. Type checkers read `__init__.pyi`, which lists the same names.
"""

_MODULES = {
    "rollout.api": "run_job",
    "rollout.api.benchmark": "BenchmarkLoader BenchmarkResult",
    "rollout.api.runner": "EvalItem EvalResult Runner run_dataset",
    "rollout.builtin.rewards": "CodeExecRewardFunc LLMJudgeRewardFunc StringMatchRewardFunc TestRewardFunc",
    "rollout.builtin.script_agent": "ScriptAgent ScriptOptions",
    "rollout.core.atif": (
        "AtifAgent AtifFinalMetrics AtifMedia AtifMetrics AtifObservation AtifPart AtifResult AtifStep AtifSubagentRef "
        "AtifToolCall AtifTrajectory decode_atif"
    ),
    "rollout.core.config.job": (
        "AgentConfig BudgetConfig DatasetConfig EnvironmentConfig ExecutorConfig JobConfig MetricConfig RegistryConfig "
        "RetryConfig VerifierConfig"
    ),
    "rollout.core.config.load": "JobFile load_job",
    "rollout.core.config.rewards": "RewardConfig RubricConfig",
    "rollout.core.config.task": "TaskConfig",
    "rollout.core.episodes": "Episode EvalOutput FlowConfig Signal Step Task TerminationReason Trajectory",
    "rollout.core.errors": (
        "AgentError AgentInstallError AgentInstallTimeoutError AgentTimeoutError BudgetExceededError BuildError "
        "BuildTimeoutError CancelledTrialError CommandTimeoutError ConfigError EnvironmentLostError HostLostError "
        "ImageGoneError ImagePullError InternalError NotKeptError OutOfMemoryError PluginError ResourceError "
        "RewardInvalidError RewardMissingError RolloutError SandboxError StartError StartTimeoutError StoreError TaskError "
        "TaskNotFoundError TeardownError TransferError UsageError VerifierError VerifierTimeoutError"
    ),
    "rollout.core.hook_marker": "hookimpl",
    "rollout.core.job.planner": "PlanOptions",
    "rollout.core.job.results": "JobResult",
    "rollout.core.job.scheduler": "JobOutcome",
    "rollout.core.protocols": (
        "API_VERSION Agent AgentContext AgentSession BESIDE BackendContext ContainerCommands DOCKER_IMAGE EXEC_USER Environment "
        "EnvironmentBackend Executor GPUS LIVE_STDIO Metric NETWORK_ALLOWLIST NETWORK_NONE NETWORK_SWITCH NoOptions "
        "PortableBackend Process PythonCall RegistryContext RegistrySource RewardFunc SNAPSHOT SharedProcesses "
        "ServicesEnvironment SnapshotBackend SwitchableEnvironment TrialView Verifier"
    ),
    "rollout.core.records": (
        "AgentSpec Budget Durations ErrorInfo TaskSpec Timeouts Timestamps TrialResult TrialSpec VerifierSpec"
    ),
    "rollout.core.trajectories": "AgentLogs TrajectoryBuilder TrajectoryReader TrajectoryReport json_lines",
    "rollout.core.trial.rubric": "Rubric",
    "rollout.core.types": (
        "AgentTurn Command DatasetInfo EnvironmentSpec ExecResult McpServer MetricValue NetworkAccess OutputSink Resources "
        "RewardEvent Score Stream Struct TaskFault TaskFolder TaskOutline TransferLimits TransferReport Usage VerifyResult"
    ),
}
"""Module to the names that it gives."""

_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name == "__version__":
        from rollout.version import installed_version

        value: object = installed_version()
    elif name in _HOME:
        from importlib import import_module

        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
