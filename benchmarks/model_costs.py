"""Parameters and multiply-adds of the models of TL-Align's Table 1, beside what the table prints.

python benchmarks/model_costs.py
"""

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

import labelflow  # noqa: F401  (registers PVT with timm)

TABLE_1 = {  # model: parameters in millions, FLOPs (multiply-adds) in billions, as printed
    "deit_tiny_patch16_224": (5.7, 1.6),
    "pvt_tiny": (13.2, 1.9),
    "deit_small_patch16_224": (22, 4.6),
    "pvt_small": (24.5, 3.8),
    "swin_tiny_patch4_window7_224": (29, 4.5),
    "swin_small_patch4_window7_224": (50, 8.8),
    "deit_base_patch16_224": (86, 17.5),
    "swin_base_patch4_window7_224": (88, 15.4),
}


def costs(name: str) -> tuple[float, float]:
    """Parameters in millions and multiply-adds in billions, for one image of 224×224 pixels."""
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False  # the counter sees every product
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6, counter.get_total_flops() / 2e9


def main() -> None:
    print(f"{'model':32}{'params (M)':>12}{'paper':>8}{'FLOPs (G)':>12}{'paper':>8}")
    for name, (printed_params, printed_flops) in TABLE_1.items():
        params, flops = costs(name)
        off = abs(flops / printed_flops - 1) > 0.05 or abs(params / printed_params - 1) > 0.05
        note = "  <- the table is off" if off else ""
        print(f"{name:32}{params:12.2f}{printed_params:8g}{flops:12.2f}{printed_flops:8g}{note}")


if __name__ == "__main__":
    main()
