"""T2T-ViT's way from pixels to tokens: soft splits, and the token modules between them."""

import math

import torch
import torch.nn.functional as F
from timm.layers import Format, Mlp
from timm.models import checkpoint
from torch import Tensor, nn

from labelflow.precision import full_precision


class SoftSplit(nn.Module):
    """Overlapping windows of a map, each flattened to one token: (B, C, H, W) -> (B, N, C·k²)."""

    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """The rows and columns of windows in a map of this size."""
        rows, columns = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in size)
        return rows, columns

    def forward(self, x: Tensor) -> Tensor:
        return F.unfold(x, self.kernel, padding=self.padding, stride=self.stride).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}, padding={self.padding}"


class TokenAttention(nn.Module):
    """One head, with its values as the skip connection: (B, N, C) -> (B, N, D)."""

    def __init__(self, in_dim: int, dim: int, drop: float) -> None:
        super().__init__()
        self.scale = in_dim**-0.5  # of what comes in, wider than the head
        self.qkv = nn.Linear(in_dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unsqueeze(1).chunk(3, -1)  # (B, 1, N, D)
        mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        return (value + self.drop(self.proj(mixed))).squeeze(1)


class TokenTransformer(nn.Module):
    def __init__(self, in_dim: int, dim: int, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(in_dim)
        self.attn = TokenAttention(in_dim, dim, drop)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, dim, drop=drop)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokenPerformer(nn.Module):
    """The same at linear cost (Choromanski et al., "Rethinking Attention with Performers", ICLR 2021): the softmax
    kernel exp(q·k) is estimated by φ(q)·φ(k) with M random features φ(x) = exp(w·x - |x|²/2)/√M (their Lemma 1)."""

    def __init__(self, in_dim: int, dim: int, drop: float) -> None:
        super().__init__()
        features = dim // 2
        self.w = nn.Parameter(torch.empty(features, dim), requires_grad=False)  # (M, D)
        self.kqv = nn.Linear(in_dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(in_dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.Dropout(drop))
        self.drop = nn.Dropout(drop)
        self.epsilon = 1e-8
        nn.init.orthogonal_(self.w, gain=math.sqrt(dim))  # rows as long as those of a Gaussian matrix

    def features(self, x: Tensor) -> Tensor:
        """φ: (B, N, D) -> (B, N, M), in float32, since exp(-|x|²/2) is soon too small for less."""
        x, w = x.float(), self.w.float()
        return torch.exp(x @ w.T - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(len(w))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(B, N, D) each -> (B, N, D)"""
        with full_precision(value.device.type):
            query, key = self.features(query), self.features(key)
            total = query @ key.sum(1).unsqueeze(2)  # (B, N, 1): what softmax divides by
            return (query @ (key.mT @ value.float()) / (total + self.epsilon)).to(value.dtype)

    def forward(self, x: Tensor) -> Tensor:
        key, query, value = self.kqv(self.norm1(x)).chunk(3, -1)
        x = value + self.drop(self.proj(self.attend(query, key, value)))
        return x + self.mlp(self.norm2(x))


TOKEN_MODULES = {"performer": TokenPerformer, "transformer": TokenTransformer}


class TokensToToken(nn.Module):
    """(B, C, H, W) -> (B, h, w, D), 16 times smaller."""

    output_fmt = Format.NHWC

    def __init__(self, in_chans: int, token_dim: int, dim: int, token_module: str, drop: float) -> None:
        super().__init__()
        mixing = TOKEN_MODULES[token_module]
        self.soft_split0 = SoftSplit(7, 4, 2)
        self.attention1 = mixing(in_chans * 7 * 7, token_dim, drop)
        self.soft_split1 = SoftSplit(3, 2, 1)
        self.attention2 = mixing(token_dim * 3 * 3, token_dim, drop)
        self.soft_split2 = SoftSplit(3, 2, 1)
        self.project = nn.Linear(token_dim * 3 * 3, dim)
        self.grad_checkpointing = False

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        for split in (self.soft_split0, self.soft_split1, self.soft_split2):
            size = split.grid(size)
        return size

    def forward(self, x: Tensor) -> Tensor:
        size = (x.shape[2], x.shape[3])
        for split, mixing in ((self.soft_split0, self.attention1), (self.soft_split1, self.attention2)):
            size = split.grid(size)
            x = checkpoint(mixing, split(x)) if self.grad_checkpointing else mixing(split(x))
            x = x.transpose(1, 2).unflatten(2, size)  # (B, D, h, w)
        return self.project(self.soft_split2(x)).unflatten(1, self.soft_split2.grid(size))
