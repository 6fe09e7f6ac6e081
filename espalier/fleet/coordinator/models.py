"""What a run leaves behind: its record, and the models in use when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors.torch import save as to_bytes

from espalier.core.address import Address
from espalier.core.messages import ALL, Word
from espalier.core.serving import Source
from espalier.core.store import Ref
from espalier.fleet.authority.rules import IN_USE
from espalier.fleet.coordinator.manifest import Manifest
from espalier.fleet.node.engine import Engine
from espalier.record.database import Recorder
from espalier.simulator.checkpoint import atomic_write


def source_of(engine: Engine) -> Source:
    """Return whose model a device of the run uses."""
    return engine.plan.serve.sources(engine.plan.serves)[0]


def hand_models_in_use(engine: Engine, children: Iterable[Address], server: Address | None = None) -> None:
    """Hand devices the model that a node of this host serves them (None: the run's root, at the cloud)."""
    directory, everybody = engine.directory, source_of(engine) == "global"
    node = directory.tree.root if server is None else server
    served: Mapping[str, Ref] = engine.final.get(node) or engine.served.get(node) or {}
    for device in children:
        if directory.is_device(device):
            model = served.get(ALL if everybody else directory.group(device), served.get(ALL))
            sender = engine.me if server is None else server
            word = Word(IN_USE, sender, device, engine.now(), {"model": model})
            if device == engine.me:
                engine.conduct.handed(word)
            else:
                engine.send(word)


def save_models(engine: Engine, models: Mapping[str, Ref], folder: Path, name: str) -> None:
    """Write models as safetensors, one file per group."""
    folder.mkdir(exist_ok=True)
    for group, ref in models.items():
        views = {k: v.clone() for k, v in engine.store.spec.views(engine.store.vector(ref)).items()}
        atomic_write(folder / f"{name if group == ALL else f'{name}-{group}'}.safetensors", to_bytes(views))


def open_record(manifest: Manifest, directory: Path) -> Recorder:
    """Open a run's record."""
    experiment, spec = manifest.experiment, manifest.card.spec
    entry = experiment.methods[0]
    return Recorder(
        directory / "run.sqlite",
        {
            "experiment": experiment.to_plain(), "label": entry.label, "method": entry.method.kind,
            "reconstruction": entry.method.reconstruction, "seed": manifest.seed, "model_bytes": spec.model_bytes,
            "parameters": spec.n_params, "prior": manifest.plan().serve.prior, "status": {"state": "running"},
            "deployed": True,
        },
    )  # fmt: skip
