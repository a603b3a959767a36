"""The output of a running command: everything goes to a sink, a bounded end of each stream is kept."""

from __future__ import annotations

from rollout.core.types import MAX_OUTPUT_BYTES, ExecResult, OutputSink, Stream


class OutputCapture:
    """Collects what one command prints. Memory is bounded by the limit, however much comes."""

    def __init__(self, max_output_bytes: int = MAX_OUTPUT_BYTES, sink: OutputSink | None = None) -> None:
        """`max_output_bytes`: how much of the end of each stream `result` has. `sink` sees every chunk as it comes."""
        self._sink = sink
        self._tails: dict[Stream, _Tail] = {"stdout": _Tail(max_output_bytes), "stderr": _Tail(max_output_bytes)}

    def feed(self, stream: Stream, chunk: bytes) -> None:
        """Take the next bytes of a stream."""
        if not chunk:
            return
        self._tails[stream].feed(chunk)
        if self._sink is not None:
            self._sink(stream, chunk)

    def result(self, exit_code: int, *, out_of_memory: bool = False) -> ExecResult:
        """How the command ended, with what was kept of its output."""
        stdout, stderr = self._tails["stdout"], self._tails["stderr"]
        return ExecResult(
            exit_code=exit_code,
            stdout=stdout.kept(),
            stderr=stderr.kept(),
            stdout_cut_bytes=stdout.cut_bytes,
            stderr_cut_bytes=stderr.cut_bytes,
            out_of_memory=out_of_memory,
        )


class _Tail:
    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 0)
        self._slack = min(self._limit // 4, 1024 * 1024) + 4096
        self._kept = bytearray()
        self.cut_bytes = 0

    def feed(self, chunk: bytes) -> None:
        self._kept += chunk
        if len(self._kept) > self._limit + self._slack:
            self._trim()

    def kept(self) -> bytes:
        self._trim()
        return bytes(self._kept)

    def _trim(self) -> None:
        excess = len(self._kept) - self._limit
        if excess > 0:
            del self._kept[:excess]
            self.cut_bytes += excess
