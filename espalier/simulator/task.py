"""The task: data, model, loss, and how devices train. Turns ledger jobs into trainer jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from espalier.core.code import is_own
from espalier.core.params import ParamSpec
from espalier.core.seeds import key, stream, torch_seed
from espalier.core.store import Ref
from espalier.data.dataset import Dataset
from espalier.experiment import Experiment
from espalier.policies.privacy import privatise
from espalier.settings import Training
from espalier.simulator.dataviews import Views
from espalier.simulator.jobs import Compute, Job, Outcome
from espalier.training import metrics as whole
from espalier.training.evaluate import Evaluator
from espalier.training.host import ROOM
from espalier.training.losses import BY_KIND, Loss, resolve
from espalier.training.metrics import figure_names
from espalier.training.outputs import check_classes, check_outputs
from espalier.training.torch_optimizer import check_optimizer
from espalier.training.trainer import Trainer
from espalier.training.work import TrainerJob


class Computer(Protocol):
    """Computes ledger jobs elsewhere (see :data:`~espalier.simulator.ledger.Compute`)."""

    def __call__(
        self, jobs: Sequence[Job], vector: Callable[[Ref], Tensor], optimizer_state: Callable[[Ref], Tensor | None]
    ) -> Iterator[Outcome]:
        """Yield the jobs' outcomes in their order."""
        ...

    def close(self) -> None:
        """Stop computing and give everything back."""
        ...


class Backend(Protocol):
    """Where jobs are computed, if not in this process: results must be those of this process, bit for bit."""

    def computer(self, task: Task, seed: int, views: Views) -> Computer:
        """Return what computes the jobs of one run."""
        ...


class Task:
    """What is learnt: a dataset, a module, a loss, and the training settings."""

    def __init__(
        self,
        dataset: Dataset,
        module: nn.Module,
        training: Training | None = None,
        *,
        loss: Loss | None = None,
        start: Literal["drawn", "given"] = "drawn",
        metric: Callable[[Tensor, Tensor], Tensor] | None = None,
        metric_names: Sequence[str] = (),
        metrics: Sequence[str] = (),
        sample_metrics: Sequence[str] = (),
        workers: int = 1,
        backend: Backend | None = None,
        device: str = "cpu",
    ) -> None:
        self.dataset, self.start = dataset, start
        #: what an evaluation counts besides the loss, as it was given (a metric of one's own of the whole is no count)
        self.figures = {
            "metric": metric, "metric_names": metric_names, "sample_metrics": sample_metrics,
            "metrics": tuple(name for name in metrics if not is_own(name)),
        }  # fmt: skip
        self.training = training or Training()
        self.dtype = self.training.dtype
        self.module = module.to(self.dtype)
        self.spec = ParamSpec.of(module)
        self.loss = resolve(loss or BY_KIND[dataset.kind])
        # What a backend's workers compute on need not be here.
        self.device = device
        where = "cpu" if backend else device
        self.trainer = Trainer(module, self.loss, workers=workers, where=where, half=self.training.half)
        figured = (*figure_names(dataset.kind, metric_names), "loss")
        own = whole.resolve(sample_metrics, dataset.kind, figured, by_sample=True)
        #: of the whole test set, and those of them that are known of every edge's and device's test distribution
        self.metrics = whole.resolve(metrics, dataset.kind, (*figured, *own))
        self.counted = {"f1", "ece", "auc"}.intersection(metrics)
        last = whole.confidence_gaps if "ece" in metrics else None
        self.evaluator = Evaluator(
            module, dataset.kind, dataset.n_cells, metric=metric, own=own, last=last, loss=self.loss, workers=workers
        )
        #: those of samples, in the order in which they are summed
        given = metric_names or (("mse",) if dataset.kind == "regression" else ())
        self.metric_names = (*given, *own)
        self._backend = backend
        self.computers: list[Computer] = []

    @staticmethod
    def of(
        experiment: Experiment, dataset: Dataset, workers: int = 1, backend: Backend | None = None, device: str = "cpu"
    ) -> Task:
        """Bind an experiment's model and training settings to a dataset.

        A backend computes jobs elsewhere; ``device`` is what computes here.

        Raises:
            ConfigError: The model's outputs do not fit the task.
        """
        module = experiment.module(dataset)
        check_outputs(
            module, dataset.x_test, dataset.kind, dataset.n_classes, experiment.task.loss or BY_KIND[dataset.kind],
            dataset.y_test,
        )  # fmt: skip
        check_optimizer(experiment.training.at(0))
        if dataset.kind == "classification":
            check_classes(dataset.y_train, dataset.y_test, dataset.meta.get("classes", ()))
        return Task(
            dataset, module, experiment.training, loss=experiment.task.loss, start=experiment.task.start,
            metric=dataset.meta.get("metric"), metric_names=dataset.meta.get("metric_names", ()),
            metrics=experiment.task.metrics, sample_metrics=experiment.task.sample_metrics, workers=workers,
            backend=backend, device=device,
        )  # fmt: skip

    def initial(self, seed: int, index: int) -> Tensor:
        """Return the ``index``-th initial model of a run."""
        if self.start == "given":
            return self.spec.flatten(self.module.state_dict()).to(self.dtype)
        return self.trainer.initial(torch_seed(seed, "initial", index)).to(self.dtype)

    def computer(self, seed: int, views: Views) -> Compute:
        """Return what computes ledger jobs of one run: the backend, or this process."""
        if self._backend is None:
            return self.computer_here(seed, views)
        self.computers.append(self._backend.computer(self, seed, views))
        return self.computers[-1]

    def computer_here(self, seed: int, views: Views) -> Compute:
        """Return the function that computes ledger jobs of one run in this process."""

        def compute(
            jobs: Sequence[Job], vector: Callable[[Ref], Tensor], optimizer_state: Callable[[Ref], Tensor | None]
        ) -> Iterator[Outcome]:
            results = self.trainer.run([self._job(seed, views, job, vector, optimizer_state) for job in jobs])
            for job, result in zip(jobs, results, strict=True):
                trained = result.vector
                if "private" in job.work.args:
                    rng = stream(seed, "privacy", job.device, job.number)
                    (clip, noise), head = job.work.args["private"], slice(self.spec.n_float)
                    noisy = privatise(trained[head], vector(job.work.start)[head], clip, noise, rng)
                    trained = torch.cat([noisy, trained[self.spec.n_float :]])
                yield Outcome(trained, result.loss, result.optimizer_state)

        return compute

    def _job(
        self,
        seed: int,
        views: Views,
        job: Job,
        vector: Callable[[Ref], Tensor],
        optimizer_state: Callable[[Ref], Tensor | None],
    ) -> TrainerJob:
        work = job.work.resolved(vector, optimizer_state)
        rows = views.rows(job.device, job.look)
        return self.training.job(work, views.pool(job.look), rows, key(seed, "train", job.device, job.number))

    def close(self) -> None:
        """Stop the trainer's workers, and the backend's."""
        for computer in self.computers:
            computer.close()
        self.trainer.close()
        self.evaluator.close()
        ROOM.clear()
