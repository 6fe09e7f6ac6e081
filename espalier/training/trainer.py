"""The trainer: jobs in, results out, in order; many clients at once wherever the model allows it."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from types import TracebackType

import numpy as np
import torch
from torch import Tensor, nn

from espalier.core.errors import ConfigError, warn
from espalier.core.objectives import ClassSums
from espalier.core.params import ParamSpec
from espalier.core.seeds import torch_seed
from espalier.training import chunks, device
from espalier.training.host import keep_pages, one_thread
from espalier.training.losses import Loss, PerSample, resolve
from espalier.training.merged.engine import ChunkEngine
from espalier.training.merged.probe import MergePlan, probe
from espalier.training.merged.stacked import Unsupported
from espalier.training.sequential import Sequential
from espalier.training.work import Result, TrainerJob


class FallbackWarning(UserWarning):
    """A model is computed one client at a time, because it cannot be merged."""


class _Worker:
    """A module of its own, and the ways to train it."""

    def __init__(self, module: nn.Module, spec: ParamSpec, loss: PerSample, where: torch.device, *, half: bool) -> None:
        self._module, self._spec, self._loss, self._where, self._half = module, spec, loss, where, half
        self._sequential = Sequential(module, spec, loss)
        self._engines: dict[torch.dtype, ChunkEngine] = {}

    def run(self, jobs: list[TrainerJob], plan: MergePlan | None) -> tuple[list[Result], str | None]:
        """Train a chunk; the second value says why it could not run merged although it was planned to."""
        with one_thread(), device.computing(self._where):
            results, why = self._run(device.sent(jobs, self._where), plan)
            return device.returned(results), why

    def _run(self, jobs: list[TrainerJob], plan: MergePlan | None) -> tuple[list[Result], str | None]:
        why = None
        if isinstance(jobs[0].objective, ClassSums):
            return [self._sequential.class_sums(job) for job in jobs], None
        if plan is not None:
            dtype = jobs[0].start.dtype
            if dtype not in self._engines:
                self._engines[dtype] = ChunkEngine(self._module, self._spec, self._loss, plan, dtype, half=self._half)
            try:
                return self._engines[dtype].run(jobs), None
            except Unsupported as refusal:
                why = str(refusal)
        return [self._sequential.run(job) for job in jobs], why


class Trainer:
    """Trains jobs of one model.

    The result of a job is a function of the job alone, bit for bit: not of the other jobs, the chunk
    size or the number of workers.

    Attributes:
        spec: Names and places of the model's tensors in a flat vector.
        batched: Whether clients run merged. True until a model turns out not to allow it.
        why_not: Why they do not; None if they do.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        workers: int = 1,
        chunk: int | None = None,
        batched: bool = True,
        where: str = "cpu",
        half: bool = False,
    ) -> None:
        """Prepare to train a module, which is copied and never changed.

        Args:
            module: Any `nn.Module` that maps a batch of inputs to a batch of outputs.
            loss: A name, or a callable ``(outputs, y) -> per-sample loss [n]``.
            workers: Chunks computed at the same time, each in a thread of its own (torch's kernels
                release the interpreter). 1 computes in the caller's thread.
            chunk: Clients that train as one; by default as many as fit the cache, or a GPU's memory.
            batched: False trains one client at a time.
            where: The device that computes: ``cpu``, ``cuda``, ``cuda:1``.
            half: Products may be in bfloat16 where that is faster; weights stay in float32. A CPU without units for
                it computes as ever.
        """
        if workers < 1:
            raise ConfigError(f"workers is {workers}; a positive number is accepted.")
        if chunk is not None and chunk < 1:
            raise ConfigError(f"chunk is {chunk}; a positive number is accepted.")
        self._module = copy.deepcopy(module)
        self.spec = ParamSpec.of(self._module)
        self._loss = resolve(loss)
        self.batched = batched
        self.why_not: str | None = None if batched else "batched=False was asked for"
        self._where = device.find(where)
        self._chunk = chunk
        self._workers = workers
        self._plans: dict[torch.dtype, MergePlan] = {}
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(workers):
            own = self._module if self._where.type == "cpu" else copy.deepcopy(self._module).to(self._where)
            self._idle.put(_Worker(own, self.spec, self._loss, self._where, half=half and device.has_half(self._where)))
        self._threads = ThreadPoolExecutor(workers, "espalier-trainer") if workers > 1 else None
        keep_pages()

    def run(self, jobs: Sequence[TrainerJob]) -> Iterator[Result]:
        """Yield the jobs' results in the jobs' order, chunk by chunk as they are computed.

        Raises:
            TrainingError: A job cannot be computed (raised before any is), or the model fails on the data.
        """
        chunks.check(jobs, self.spec)
        return self._stream(dict(enumerate(jobs)))

    def initial(self, seed: int) -> Tensor:
        """Fresh parameters drawn from the seed, as a flat vector ``[spec.size]``.

        Every submodule with a ``reset_parameters`` is redrawn, children before parents; what has
        none keeps the values of the module given to the trainer.
        """
        fresh = copy.deepcopy(self._module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "initial"))
            for part in reversed(list(fresh.modules())):
                reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
                if callable(reset):
                    reset()
        return self.spec.flatten(fresh.state_dict())

    def close(self) -> None:
        """End the worker threads; a trainer that is simply dropped ends them too."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stream(self, jobs: dict[int, TrainerJob]) -> Iterator[Result]:
        ready: dict[int, Result] = {}
        given = 0
        for indices, results in self._computed(jobs):
            ready.update(zip(indices, results, strict=True))
            while given in ready:
                yield ready.pop(given)
                given += 1

    def _computed(self, jobs: dict[int, TrainerJob]) -> Iterator[tuple[list[int], list[Result]]]:
        """Yield chunks' indices and results, keeping every worker busy and no more than that ahead.

        Jobs are taken out as they are begun: there may be thousands, and each keeps the model that it starts from.

        While workers compute, the process is held to one torch thread: a caller that computes between two
        results shares the machine with them anyway.
        """
        arranged = chunks.arranged(jobs, self._size(jobs), self._workers)
        if self._threads is None:
            for indices in arranged:
                yield indices, self._told(self._train([jobs.pop(i) for i in indices]))
            return
        waiting: deque[tuple[list[int], Future[tuple[list[Result], str | None]]]] = deque()
        with one_thread():
            try:
                for indices in arranged:
                    part = [jobs.pop(i) for i in indices]
                    self._plan(part[0])
                    waiting.append((indices, self._threads.submit(self._train, part)))
                    if len(waiting) > 2 * self._workers:
                        done, future = waiting.popleft()
                        yield done, self._told(future.result())
                while waiting:
                    done, future = waiting.popleft()
                    yield done, self._told(future.result())
            finally:
                for _, future in waiting:
                    future.cancel()
                wait([future for _, future in waiting])

    def _size(self, jobs: dict[int, TrainerJob]) -> int:
        """Clients per chunk."""
        if self._chunk is None and jobs and self._where.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._where)
            x, _ = jobs[0].pool.gather(torch.from_numpy(np.resize(jobs[0].rows, jobs[0].batch_size)))
            self._chunk = device.clients(self._module, self.spec, x, free // self._workers)
        return self._chunk or chunks.size_for(self.spec)

    def _train(self, jobs: list[TrainerJob]) -> tuple[list[Result], str | None]:
        plan = self._plan(jobs[0])
        worker = self._idle.get()
        try:
            return worker.run(jobs, plan)
        finally:
            self._idle.put(worker)

    def _plan(self, job: TrainerJob) -> MergePlan | None:
        """How to merge jobs of this job's arithmetic; None to train one by one."""
        dtype = job.start.dtype
        if self.batched and job.optimizer.own:
            self.give_up(f"the optimiser {job.optimizer.name!r} steps one client, 'sgd' and 'adam' step many at once")
        if self.batched and dtype not in self._plans:
            x, y = job.pool.gather(torch.from_numpy(job.rows[:16].copy()))
            try:
                with one_thread():
                    self._plans[dtype] = probe(self._module, self.spec, self._loss, x, y, dtype)
            except Unsupported as refusal:
                self.give_up(str(refusal))
        return self._plans.get(dtype) if self.batched else None

    def _told(self, outcome: tuple[list[Result], str | None]) -> list[Result]:
        results, why = outcome
        if why is not None and self.batched:
            self.give_up(why)
        return results

    def give_up(self, why: str) -> None:
        """Train one client at a time from now on, and say why."""
        self.batched, self.why_not = False, why
        name = type(self._module).__name__
        warn(f"{name} is trained one client at a time: {why}. The results are the same.", FallbackWarning)
