"""On which devices models are: one scheduler for each device, and the schedulers of each model."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from regard.core.errors import InvalidArgument
from regard.inference.load import pick_device
from regard.serving.scheduler.interfaces import ModelHost
from regard.serving.scheduler.replicas import ReplicaRouter
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits

Devices = str | Sequence[str]


@dataclass(frozen=True)
class Placement:
    """The devices of the schedulers, and for each model the numbers of the schedulers that hold it."""

    devices: tuple[str, ...]
    engines: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(models: Collection[str], device: Devices | Mapping[str, Devices]) -> "Placement":
        """The placement of models on devices.

        device   of all models: one, or several that hold a replica of each; or those of each model by its name. A
                 device that is named twice has two schedulers
        """
        given = device if isinstance(device, Mapping) else dict.fromkeys(models, device)
        for name in sorted({*given} ^ {*models}):
            wanted, remedy = f"devices of {', '.join(models)}", "Name each model once."
            raise InvalidArgument(
                "device", wanted=wanted, got=f"{name!r} there or here only", remedy=remedy
            )
        numbers: dict[tuple[str, int], int] = {}
        engines: dict[str, tuple[int, ...]] = {}
        for name in models:
            own, times = given[name], Counter[str]()
            chosen = []
            for each in map(_device, [own] if isinstance(own, str) else own):
                chosen.append(numbers.setdefault((each, times[each]), len(numbers)))
                times[each] += 1
            if not chosen:
                raise InvalidArgument(
                    "device", wanted=f"one for {name}", got="none", remedy="Use auto."
                )
            engines[name] = tuple(chosen)
        return Placement(tuple(each for each, _ in numbers), engines)

    def engine(self, limits: SchedulerLimits) -> ModelHost:
        """One scheduler for each device; a router before them where they are several."""
        engines = [Scheduler(limits, device) for device in self.devices]
        return engines[0] if len(engines) == 1 else ReplicaRouter(engines, self.engines)


def _device(name: str) -> str:
    """By the name that no other name of the device has."""
    picked = pick_device(name)
    return "cuda:0" if picked == "cuda" else picked
