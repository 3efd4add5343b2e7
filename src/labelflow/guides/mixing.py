"""A mixer, and what it has to be shown first."""

from torch import Generator
from torch.distributed.tensor import DTensor

from labelflow.guides.base import Guide, Look, Scene
from labelflow.guides.registry import GUIDES
from labelflow.mix import Mix
from labelflow.mixers import Choose, Guided, make_mixer
from labelflow.spec import build


class Mixing:
    """Mixes batches as a recipe's `mixer` says; a guide is asked only when its mixer's turn comes."""

    def __init__(self, text: str) -> None:
        self.mixer = make_mixer(text)
        mixers = self.mixer.mixers if isinstance(self.mixer, Choose) else [self.mixer]
        wanted = {mixer.guide for mixer in mixers if isinstance(mixer, Guided)}
        self.guides: dict[str, Guide] = {name: build(name, GUIDES, "guide") for name in sorted(wanted)}

    def __call__(self, scene: Scene, generator: Generator | None = None) -> tuple[Mix, Look | None]:
        mixer = self.mixer
        if isinstance(mixer, Choose):
            if self.guides and any(isinstance(weight, DTensor) for weight in scene.student.parameters()):
                raise ValueError(
                    "with sharded weights all processes have to ask a guide at once: use one mixer, not several in turn"
                )
            mixer = mixer.pick(generator)
        if not isinstance(mixer, Guided):
            return mixer(scene.images, generator), None
        look = self.guides[mixer.guide](scene)
        return mixer(scene.colours, generator, importance=look.importance), look

    @property
    def parameters(self) -> int:
        """Of the models that guides run beside the one that is trained."""
        return sum(guide.parameters for guide in self.guides.values())
