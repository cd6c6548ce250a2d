"""Claims about training runs: no experiment here is short enough to decide them."""

from __future__ import annotations

from .registry import Claim

CLAIMS: list[Claim] = [
    Claim(
        "fig1-power-law",
        "Figure 1",
        "ResNet18, CIFAR-10, 40 epochs: exponent p by group of parameters",
        paper="final group near 2, the others below 2",
        decided_by="resnet18-powerlaw",
    ),
    Claim(
        "fig4-resnet-naq",
        "Figure 4",
        "ResNet18, CIFAR-10: phi = 0.1 beats phi = 1 for every curvature term",
        paper="median test %: rho 92.6 and 91.2, rho + h_abs 92.4 and 91.8",
        decided_by="resnet18-naq",
    ),
    Claim(
        "fig4-vit-naq",
        "Figure 4",
        "ViT, ImageNet 64x64: phi = 0.1 beats phi = 1, and glass terms are best",
        paper="median test loss: rho + h_abs 4.07 and 4.48",
        decided_by="vit-naq",
    ),
    Claim(
        "fig5-limit",
        "Figure 5",
        "Tensorised Transformer, WikiText-103: a larger step bound helps every term",
        paper="median perplexity: 42.9 to 45.1 at 1e-3, 32.5 to 34.8 at 2.5e-3",
        decided_by="tt-limit",
    ),
    Claim(
        "fig6-resnet",
        "Figure 6",
        "ResNet18, CIFAR-10: Alice has the best median test accuracy",
        paper="Alice 93.76, Adam 93.41, SGD-M 93.19, AdaHessian 90.25",
        decided_by="resnet18-methods",
    ),
    Claim(
        "fig6-transformer",
        "Figure 6",
        "Tensorised Transformer, WikiText-103: Alice has the best median perplexity",
        paper="Alice h_abs 21.50, Adam 21.83, Alice rho 23.43, AdaHessian 24.23",
        decided_by="tt-methods",
    ),
    Claim(
        "cost-accuracy",
        "Methods",
        "Alice performs at least as well as Adam and SGD-M, at equal gradients and seconds",
        paper='"at least as well", per step',
        decided_by="resnet18-methods",
    ),
]
