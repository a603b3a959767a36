"""Every error Rollout raises, and how foreign exceptions become one of ours.

    RolloutError                            code                                    retryable
    ├── UsageError                          usage                                   exit 2: the user's input is wrong,
    │   ├── ConfigError                     config_invalid                          nothing was started
    │   └── PluginError                     plugin_invalid
    ├── TaskError                           task_invalid
    │   └── TaskNotFoundError               task_not_found
    ├── SandboxError                        environment_start_failed
    │   ├── BuildError                      environment_build_failed
    │   │   ├── BuildTimeoutError           environment_build_timeout
    │   │   └── ImagePullError              environment_image_pull_failed           yes
    │   ├── StartError                      environment_start_failed                yes
    │   │   ├── StartTimeoutError           environment_start_timeout               yes
    │   │   └── ImageGoneError              environment_image_gone                  yes
    │   ├── ResourceError                   environment_resource_allocation_failed  yes
    │   ├── EnvironmentLostError            environment_lost                        yes
    │   │   └── HostLostError               environment_host_lost                   yes, on another machine in any case
    │   ├── OutOfMemoryError                environment_out_of_memory
    │   ├── TransferError                   environment_transfer_failed             yes
    │   └── TeardownError                   environment_teardown_failed
    ├── CommandTimeoutError                 command_timeout                         (also a TimeoutError)
    ├── AgentError                          agent_execution_failed
    │   ├── AgentTimeoutError               agent_execution_timeout
    │   ├── BudgetExceededError             agent_budget_exceeded
    │   ├── AgentInstallError               agent_install_failed                    yes
    │   └── AgentInstallTimeoutError        agent_install_timeout                   yes
    ├── VerifierError                       verifier_failed
    │   ├── VerifierTimeoutError            verifier_timeout
    │   ├── RewardMissingError              verifier_reward_missing
    │   ├── NotKeptError                    verifier_state_missing
    │   └── RewardInvalidError              verifier_reward_invalid
    ├── StoreError                          storage_failed                          the job stops, nothing finished is lost
    ├── CancelledTrialError                 cancelled
    └── InternalError                       internal_error

The rules: a command that fails is a result, not an exception; a sandbox that is gone is an exception, never an exit code.
Each boundary (build, start, install, run, verify) attributes what escapes from foreign code to its own class, keeps the
cause, and puts the value in the text. `code` is stable and is what result files hold; `retryable` says whether another try
may help without anybody changing anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar


class RolloutError(Exception):
    """Base of all errors of Rollout. `str(error)` is one line (what, where, what to do) unless it quotes a log."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False


class UsageError(RolloutError):
    """What the user gave cannot be used; nothing was started (exit code 2)."""

    code = "usage"


class ConfigError(UsageError):
    """A job, task or registry file says something that cannot be understood."""

    code = "config_invalid"


class PluginError(UsageError):
    """A plugin is missing, ambiguous, broken, or written for another API version."""

    code = "plugin_invalid"


class TaskError(RolloutError):
    """This task cannot be run as it stands."""

    code = "task_invalid"


class TaskNotFoundError(TaskError):
    """A task or dataset is not where it should be, or cannot be fetched."""

    code = "task_not_found"


class SandboxError(RolloutError):
    """Something about an environment failed, and neither the agent nor the verifier is to blame."""

    code = "environment_start_failed"


class BuildError(SandboxError):
    """The task's image cannot be made; the text quotes the step that failed."""

    code = "environment_build_failed"


class BuildTimeoutError(BuildError):
    """Making the image took longer than the task's `build_timeout_sec`."""

    code = "environment_build_timeout"


class ImagePullError(BuildError):
    """The task's image cannot be fetched."""

    code = "environment_image_pull_failed"
    retryable = True


class StartError(SandboxError):
    """The environment did not start."""

    code = "environment_start_failed"
    retryable = True


class StartTimeoutError(StartError):
    """The environment did not start in time."""

    code = "environment_start_timeout"


class ImageGoneError(StartError):
    """The image was removed after it had been prepared, by somebody else: it is prepared again once before this is final."""

    code = "environment_image_gone"


class ResourceError(SandboxError):
    """There is not enough of what the task asks for: processors, memory, disk, GPUs."""

    code = "environment_resource_allocation_failed"
    retryable = True


class EnvironmentLostError(SandboxError):
    """The sandbox is gone or no longer answers: whatever ran in it has no result."""

    code = "environment_lost"
    retryable = True


class HostLostError(EnvironmentLostError):
    """The machine that the sandbox was on is gone or no longer answers. The trial is tried elsewhere, whatever `retry` says."""

    code = "environment_host_lost"


class OutOfMemoryError(SandboxError):
    """The environment ran out of memory, and the kernel killed a process of the agent."""

    code = "environment_out_of_memory"


class TransferError(SandboxError):
    """Files could not be moved into or out of a sandbox."""

    code = "environment_transfer_failed"
    retryable = True


class TeardownError(SandboxError):
    """The environment could not be stopped or removed; `rollout clean` tries again."""

    code = "environment_teardown_failed"

    def __init__(self, text: str, removed: Sequence[str] = ()) -> None:
        """`removed`: what could be, as `EnvironmentBackend.reap` returns it."""
        super().__init__(text)
        self.removed = tuple(removed)


class CommandTimeoutError(RolloutError, TimeoutError):
    """A command was still running at its deadline; its whole process tree was killed and is gone."""

    code = "command_timeout"


class AgentError(RolloutError):
    """The agent failed: it exited with a code other than 0, or its session broke. The work it did is verified all the same."""

    code = "agent_execution_failed"


class AgentTimeoutError(AgentError):
    """The agent was still running at its deadline and was killed. The work it did is verified all the same."""

    code = "agent_execution_timeout"


class BudgetExceededError(AgentError):
    """The agent used up what the job's `budget.per_trial` allows and was ended. The work it did is verified all the same."""

    code = "agent_budget_exceeded"


class AgentInstallError(AgentError):
    """The agent's installation failed; the trial ends there."""

    code = "agent_install_failed"
    retryable = True


class AgentInstallTimeoutError(AgentInstallError):
    """The agent's installation took too long; the trial ends there."""

    code = "agent_install_timeout"


class VerifierError(RolloutError):
    """The verifier could not come to a verdict."""

    code = "verifier_failed"


class VerifierTimeoutError(VerifierError):
    """The verifier was still running at its deadline."""

    code = "verifier_timeout"


class RewardMissingError(VerifierError):
    """The tests ran, and wrote no reward file."""

    code = "verifier_reward_missing"


class NotKeptError(VerifierError):
    """An earlier trial is verified again, and what the verifier looks at was not kept."""

    code = "verifier_state_missing"


class RewardInvalidError(VerifierError):
    """A reward file holds something else than finite numbers."""

    code = "verifier_reward_invalid"


class StoreError(RolloutError):
    """Results cannot be written (disk full, folder gone, no permission): the job stops and can be resumed."""

    code = "storage_failed"


class CancelledTrialError(RolloutError):
    """The trial was stopped because the job was interrupted; the next run of the job starts it again."""

    code = "cancelled"


class InternalError(RolloutError):
    """A bug in Rollout or in a plugin: the text names the exception and the trial's log holds the traceback."""

    code = "internal_error"


@contextmanager
def boundary(error_type: type[RolloutError], doing: str, timeout_type: type[RolloutError] | None = None) -> Iterator[None]:
    """Attribute whatever foreign exception escapes from the block to `error_type`.

    Errors of Rollout pass through unchanged, as do cancellation and the exits of the interpreter; only a command that ran
    into its own deadline becomes `timeout_type`, when one is given.
    """
    try:
        yield
    except CommandTimeoutError as error:
        if timeout_type is None:
            raise
        raise timeout_type(f"{doing}: {error}") from error
    except RolloutError:
        raise
    except Exception as error:
        raise error_type(f"{doing}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """`ValueError: text`, on one line and without a trailing colon when the exception has no text."""
    if isinstance(error, RolloutError):
        return str(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
