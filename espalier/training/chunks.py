"""Chunks: which jobs are trained together. It decides how long they take, never their results."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace

from espalier.core.errors import TrainingError
from espalier.core.objectives import ClassSums, Contrast, Mixture
from espalier.core.params import ParamSpec
from espalier.training.updates import state_size
from espalier.training.work import TrainerJob, width

_STACK_BYTES = 8 << 20
"""Parameters of a chunk: about what stays in the last-level cache from one step to the next."""

_MOST_CLIENTS, _LEAST_CLIENTS = 64, 2
_CHUNKS_AHEAD = 4
"""Chunks per worker that are arranged together: more gives evener chunks, and holds more results."""


def size_for(spec: ParamSpec) -> int:
    """Clients per chunk: as many as the cache holds, at least two to share the cost of every call."""
    return min(_MOST_CLIENTS, max(_LEAST_CLIENTS, _STACK_BYTES // max(1, 4 * spec.n_params)))


def arranged(jobs: Sequence[TrainerJob] | Mapping[int, TrainerJob], size: int, workers: int) -> Iterator[list[int]]:
    """Yield chunks of job indices: alike in shape, near in length, never far from the jobs' own order.

    The jobs of a chunk that was yielded are not looked at again.
    """
    window, count = size * workers * _CHUNKS_AHEAD, len(jobs)
    for first in range(0, count, window):
        groups: dict[Hashable, list[int]] = {}
        for index in range(first, min(first + window, count)):
            groups.setdefault(_kind(jobs[index]), []).append(index)
        for group in groups.values():
            # Equal lengths keep their order (the sort is stable), so results can stream out early.
            group.sort(key=lambda i: -jobs[i].n_steps)
            yield from _cut(group, size, workers)


def _cut(group: list[int], size: int, workers: int) -> Iterator[list[int]]:
    """Cut into pieces of at most ``size``, as even as can be, one or more for every worker."""
    pieces = -(-len(group) // size)
    pieces = min(len(group), -(-pieces // workers) * workers)
    bounds = [len(group) * p // pieces for p in range(pieces + 1)]
    return (group[a:b] for a, b in itertools.pairwise(bounds))


def _kind(job: TrainerJob) -> Hashable:
    aim = Mixture if isinstance(job.objective, Mixture) else job.objective  # mixtures may differ in their alpha
    parts = job.proximal, job.correction is None, job.calibration and job.calibration.form, job.trains, aim
    return width(job), job.start.dtype, replace(job.optimizer, lr=1.0), parts


def check(jobs: Sequence[TrainerJob], spec: ParamSpec) -> None:
    """Refuse jobs that cannot be computed, saying which."""
    for index, job in enumerate(jobs):
        wrong = _wrong(job, spec)
        if wrong:
            raise TrainingError(f"Job {index} of {len(jobs)}: {wrong}")


def _wrong(job: TrainerJob, spec: ParamSpec) -> str | None:
    if len(job.rows) == 0:
        return "rows is empty; a device needs at least one sample to train."
    if job.batch_size < 1:
        return f"batch_size is {job.batch_size}; a positive number is accepted."
    if job.n_steps < 1:
        return f"updates is {job.updates}; a positive number is accepted."
    if not job.start.is_floating_point():
        return f"start has type {job.start.dtype}; float32 (or float64) is accepted."
    for name, vector in job.models.items():
        if vector.shape != (spec.size,):
            return f"{name} has shape {tuple(vector.shape)}; ({spec.size},) is accepted for this model."
    wrong = _lacks(job)
    if wrong:
        return wrong
    if not any(job.moves(e.name) for e in spec.parameters):
        known = ", ".join(e.name for e in spec.parameters)
        return f"trains is {job.trains}, which is no parameter's name; the model has {known}."
    expected = state_size(job, spec.n_params)
    state = job.optimizer_state
    if state is not None and expected and state.shape != (expected,):
        return (
            f"optimizer_state has shape {tuple(state.shape)}; ({expected},) is accepted for {job.optimizer.name}: "
            "it must come from a result of the same model and optimizer."
        )
    return None


def _lacks(job: TrainerJob) -> str | None:
    """Say which model or optimiser a job's objective lacks."""
    if job.objective is not None and job.beside is None and not isinstance(job.objective, ClassSums):
        return f"the objective {type(job.objective).__name__} needs a model beside; there is none."
    if isinstance(job.objective, Mixture) and job.optimizer.own:
        return f"a mixture is trained by 'sgd' or 'adam'; the optimizer is {job.optimizer.name!r}."
    if isinstance(job.objective, Contrast) and job.anchor is None:
        return "the objective Contrast needs an anchor; there is none."
    if job.mu and job.anchor is None:
        return f"mu is {job.mu} but there is no anchor; give the vector to stay near to."
    return None
