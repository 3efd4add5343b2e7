"""Parameters and multiply-adds of the models of both papers, beside what their tables print.

LV-ViT's logits include those of its patch tokens, 0.05 to 0.8 billion. Token Labeling also counts softmax, norms and
activations; by that count LV-ViT-M would have 12.7 billion at 224 pixels: the 16.0 that it prints is a mistake. Why
T2T-ViT-14 is said to have 5.2, in its own paper too, is not known.

python benchmarks/model_costs.py
"""

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import labelflow.models  # noqa: F401  (registers PVT, LV-ViT and T2T-ViT with timm)

# model, image size: parameters in millions, FLOPs (multiply-adds) in billions, as printed
TL_ALIGN_TABLE_1 = {
    ("deit_tiny_patch16_224", 224): (5.7, 1.6),
    ("pvt_tiny", 224): (13.2, 1.9),
    ("deit_small_patch16_224", 224): (22, 4.6),
    ("pvt_small", 224): (24.5, 3.8),
    ("swin_tiny_patch4_window7_224", 224): (29, 4.5),
    ("swin_small_patch4_window7_224", 224): (50, 8.8),
    ("deit_base_patch16_224", 224): (86, 17.5),
    ("swin_base_patch4_window7_224", 224): (88, 15.4),
}
TOKEN_LABELING_TABLES_1_AND_4 = {
    ("lvvit_t", 224): (8.5, None),
    ("lvvit_s", 224): (26, 6.6),
    ("lvvit_s", 384): (26, 22.2),
    ("lvvit_m", 224): (56, 16.0),
    ("lvvit_m", 384): (56, 42.2),
    ("lvvit_l", 288): (150, 59.0),
    ("lvvit_l", 448): (150, 157.2),
    ("lvvit_l", 512): (151, 214.8),
    ("t2t_vit_14", 224): (21.5, 5.2),
    ("t2t_vit_14", 384): (22, 17.1),
    ("swin_base_patch4_window12_384", 384): (88, 47.0),
    ("deit_base_patch16_384", 384): (86, 55.4),
    ("cait_s36_384", 384): (68, 48.0),
    ("cait_m36_384", 224): (271, 53.7),
    ("cait_m36_384", 448): (271, 247.8),
}


def costs(name: str, size: int) -> tuple[float, float]:
    """Parameters in millions and multiply-adds in billions, for one image of size×size pixels."""
    with torch.device("meta"):
        model = timm.create_model(name, img_size=size).eval()
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False  # the counter sees every product
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, size, size))
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6, counter.get_total_flops() / 2e9


def main() -> None:
    print(f"{'model':32}{'pixels':>8}{'params (M)':>12}{'paper':>8}{'FLOPs (G)':>12}{'paper':>8}")
    for (name, size), (printed_params, printed_flops) in {**TL_ALIGN_TABLE_1, **TOKEN_LABELING_TABLES_1_AND_4}.items():
        params, flops = costs(name, size)
        off = abs(params / printed_params - 1) > 0.05 or abs(flops / (printed_flops or flops) - 1) > 0.05
        note = "  <- the table is off" if off else ""
        print(f"{name:32}{size:8}{params:12.2f}{printed_params:8g}{flops:12.2f}{printed_flops or '-':>8}{note}")


if __name__ == "__main__":
    main()
