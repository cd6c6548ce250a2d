"""Claims about training runs, which are judged by results kept of them.

Of AdaHessian, whose steps are the dearest by far, one run is planned; no pair has it.
"""

from __future__ import annotations

from .registry import Claim, Training

_TERMS = ("glass", "abs", "glass-abs", "rms")


def _each(first: str, second: str) -> tuple[tuple[str, str], ...]:
    """These two kinds of step, or of bound, with every curvature term."""
    return tuple((f"{first}-{term}", f"{second}-{term}") for term in _TERMS)


CLAIMS: list[Claim] = [
    Claim(
        "fig1-power-law",
        "Figure 1",
        "ResNet18, CIFAR-10, 40 epochs: exponent p by group of parameters",
        paper="final group near 2, the others below 2",
        training=Training("resnet18-powerlaw"),
    ),
    Claim(
        "fig4-resnet-naq",
        "Figure 4",
        "ResNet18, CIFAR-10: phi = 0.1 beats phi = 1 for every curvature term",
        paper="median test %: rho 92.6 and 91.2, rho + h_abs 92.4 and 91.8",
        training=Training("resnet18-naq", _each("naq", "full")),
    ),
    Claim(
        "fig4-resnet-distance",
        "Figure 4",
        "ResNet18, CIFAR-10: phi = 0.1 beats phi = 1 at a tenth of the bound, which goes as far",
        paper="no such run: at equal bounds phi = 1 goes ten times as far",
        training=Training("resnet18-naq", _each("naq", "short")),
    ),
    Claim(
        "fig4-vit-naq",
        "Figure 4",
        "ViT, ImageNet 64x64: phi = 0.1 beats phi = 1, and glass terms are best",
        paper="median test loss: rho + h_abs 4.07 and 4.48",
        training=Training(
            "vit-naq",
            (*_each("naq", "full"), ("naq-glass-abs", "naq-abs"), ("naq-glass-abs", "naq-rms")),
        ),
    ),
    Claim(
        "fig5-limit",
        "Figure 5",
        "Tensorised Transformer, WikiText-103: a larger step bound helps every term",
        paper="median perplexity: 42.9 to 45.1 at 1e-3, 32.5 to 34.8 at 2.5e-3",
        training=Training("tt-limit", _each("high", "low")),
    ),
    Claim(
        "fig6-resnet",
        "Figure 6",
        "ResNet18, CIFAR-10: Alice has the best median test accuracy",
        paper="Alice 93.76, Adam 93.41, SGD-M 93.19, AdaHessian 90.25",
        training=Training("resnet18-methods", (("alice", "adam"), ("alice", "sgd-m"))),
    ),
    Claim(
        "fig6-transformer",
        "Figure 6",
        "Tensorised Transformer, WikiText-103: Alice has the best median perplexity",
        paper="Alice h_abs 21.50, Adam 21.83, Alice rho 23.43, AdaHessian 24.23",
        training=Training("tt-methods", (("alice-abs", "adam"),)),
    ),
    Claim(
        "cost-accuracy",
        "Methods",
        "ResNet18, CIFAR-10: with as many gradients, too, Alice ends above Adam and SGD-M",
        paper='"at least as well", per step',
        training=Training("resnet18-methods", (("alice-equal", "adam"), ("alice-equal", "sgd-m"))),
    ),
]
