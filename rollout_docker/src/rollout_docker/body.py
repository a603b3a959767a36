"""What the engine is asked for: the body of a trial's container, and what holds for the service `main` of a compose file."""

from __future__ import annotations

from typing import Any

from rollout.core.quantity import parse_bytes
from rollout.core.types import EnvironmentSpec
from rollout_docker.egress import Relay
from rollout_docker.engine import Engine
from rollout_docker.options import DockerOptions


def container_body(
    engine: Engine,
    options: DockerOptions,
    spec: EnvironmentSpec,
    *,
    image: str,
    workdir: str,
    job_id: str,
    relay: Relay | None = None,
) -> dict[str, Any]:
    """The body of `POST /containers/create`. `relay`: what the container reaches others through, instead of the usual network."""
    resources = spec.resources
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": "none" if spec.network == "none" else options.network or "default",
        "LogConfig": {"Type": "none"},
        "PidsLimit": options.pids,
        "Binds": options.mounts,
        "Ulimits": [{"Name": name, "Soft": limit, "Hard": limit} for name, limit in options.ulimits.items()],
    }
    if relay is not None:
        host |= {"NetworkMode": relay.network, "Dns": [relay.address]}
    if resources.cpus is not None:
        host["NanoCpus"] = int(min(resources.cpus, engine.cpus or resources.cpus) * 1e9)
    if resources.memory_bytes is not None:
        host["Memory"] = host["MemorySwap"] = resources.memory_bytes
    if resources.storage_bytes is not None and engine.storage_limits:
        host["StorageOpt"] = {"size": str(resources.storage_bytes)}
    if resources.gpus:
        host["DeviceRequests"] = [{"Driver": "nvidia", "Count": resources.gpus, "Capabilities": [["gpu"]]}]
    if options.shm_size is not None:
        host["ShmSize"] = parse_bytes(options.shm_size)[0]
    return {
        "Image": image,
        "Entrypoint": ["/bin/sh", "-c", "read _"],  # ends at once when told to, and needs no program but the shell
        "Cmd": [],
        "OpenStdin": True,
        "WorkingDir": workdir,
        "Env": [f"{name}={value}" for name, value in {**(relay.env if relay else {}), **spec.env}.items()],
        "Labels": {**spec.labels, "rollout.job": job_id},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }


def main_service(engine: Engine, options: DockerOptions, spec: EnvironmentSpec, *, job_id: str) -> dict[str, Any]:
    """What holds for the service `main`, whatever the task's file says. Values of variables are not written to disk."""
    resources = spec.resources
    main: dict[str, Any] = {
        "labels": {**spec.labels, "rollout.job": job_id},
        "environment": dict.fromkeys(spec.env),
    }
    if resources.cpus is not None:
        main["cpus"] = min(resources.cpus, engine.cpus or resources.cpus)
    if resources.memory_bytes is not None:
        main["mem_limit"] = main["memswap_limit"] = resources.memory_bytes
    if options.pids is not None:
        main["pids_limit"] = options.pids
    if options.shm_size is not None:
        main["shm_size"] = parse_bytes(options.shm_size)[0]
    if options.ulimits:
        main["ulimits"] = options.ulimits
    if options.mounts:
        main["volumes"] = options.mounts
    if spec.workdir is not None:
        main["working_dir"] = spec.workdir
    return main
