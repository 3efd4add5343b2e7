"""Transfer of DeiT to other data (TL-Align, Table 5)."""

from pathlib import Path

from labelflow.engine import Run
from labelflow.recipes.base import Entry
from labelflow.recipes.imagenet import aligned, deit
from labelflow.tasks import Recipe
from labelflow.tasks.recipe import read_recipe

DATA = {
    "cifar10": "torch/cifar10",
    "cifar100": "torch/cifar100",
    "flowers": "torch/flowers102",
    "cars": "torch/stanford_cars",
}

# model: accuracies on DATA, without and with TL-Align
TABLE_5 = {
    "tiny": ((97.6, 85.7, 97.1, 90.1), (97.8, 86.4, 97.9, 90.7)),
    "small": ((97.9, 90.2, 98.1, 91.4), (98.8, 90.4, 98.3, 91.8)),
    "base": ((99.1, 90.8, 98.4, 92.1), (99.1, 90.5, 98.6, 93.0)),
}


def transferred(size: str, data: str) -> Recipe:
    """A DeiT on one of Table 5's data sets."""
    return finetuned(deit(size)).change(init="pretrained", source=DATA[data])


def transferred_to(model: str, data: str) -> Recipe:
    """A run, or a pretrained timm model, on one of Table 5's data sets, or any other, with TL-Align."""
    if Path(model).is_dir():
        trained = read_recipe(Run(model))
        seen = {name: getattr(trained.data, name) for name in ("image_size", "mean", "std")}
        recipe = deit("small").change(model=trained.model, init=model, **seen)
    elif "/" in model:
        raise ValueError(f"there is no run {model}")
    else:
        recipe = deit("small").change(model=model, init="pretrained")
    return finetuned(aligned(recipe)).change(source=DATA.get(data, data))


def finetuned(recipe: Recipe) -> Recipe:
    """SGD for 1000 epochs; no erasing and no drop-path; all else as it is, which is DeiT's recipe."""
    return recipe.change(
        drop_path=0.0,
        erasing=0.0,
        optimizer="sgd",
        lr=0.01,
        lr_batch=0,
        weight_decay=1e-4,
        epochs=1000,
        batch=768,
        micro_batch=96,
        eval_epochs=10,
    )


SOURCE = "DeiT's author on its issue tracker (#45): CIFAR-10 and Cars; the same for CIFAR-100 and Flowers (#175)"


def _entries(size: str, data: str, plain: float, with_tl_align: float) -> list[Entry[Recipe]]:
    name, title = f"deit_{size}_{data}", f"DeiT-{size[0].upper()} on {data}"
    recipe = transferred(size, data)
    from_run = aligned(recipe).change(init=f"runs/deit_{size}_tl_align")
    return [
        Entry(name, recipe, title, f"deit_{size}", SOURCE, "Table 5", plain),
        Entry(f"{name}_tl_align", from_run, f"{title} + TL-Align", name, SOURCE, "Table 5", with_tl_align),
    ]


ENTRIES: list[Entry[Recipe]] = [
    entry
    for size, (plain, with_tl_align) in TABLE_5.items()
    for data, *numbers in zip(DATA, plain, with_tl_align, strict=True)
    for entry in _entries(size, data, *numbers)
]
