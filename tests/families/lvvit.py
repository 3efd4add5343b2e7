"""LV-ViT."""

from families.vit import vit

LVVIT = {"img_size": 64, "embed_dim": 24, "depth": 3, "num_heads": 3, "stem_width": 8, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "lvvit": ("lvvit_s", LVVIT, (64, 64)),
    "lvvit, unfused": ("lvvit_s", LVVIT, (64, 64)),
    "lvvit, oblong": ("lvvit_l", {**LVVIT, "img_size": (48, 80)}, (48, 80)),
    "lvvit, any size": ("lvvit_t", {**LVVIT, "dynamic_img_size": True, "dynamic_img_pad": True}, (56, 90)),
    "lvvit, plain": ("lv_vit_plain_small", LVVIT, (64, 64)),
}
SOME = ["lvvit"]  # for what does not depend on the details


ORACLES = {"LVViT": vit}
