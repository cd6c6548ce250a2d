"""The networks of the lab: those of the paper's experiments, and small ones for a processor.

Each is an ``nn.Module`` whose ``blocks()`` sorts the parameters into the named groups that figures
and telemetry speak of; ``gpt`` is another name of ``GPT``, and so on. Weights are drawn from
torch's global generator: ``torch.manual_seed`` before the call decides them.
"""

from .adaptive import AdaptiveSoftmax
from .arguments import ACTIVATIONS
from .gpt import GPT, gpt
from .resnet import ResNet18, resnet18
from .small import ConvNet, convnet
from .tensorised import TensorisedTransformer, tensorised_transformer
from .vit import ViT, vit

__all__ = [
    "ACTIVATIONS",
    "GPT",
    "AdaptiveSoftmax",
    "ConvNet",
    "ResNet18",
    "TensorisedTransformer",
    "ViT",
    "convnet",
    "gpt",
    "resnet18",
    "tensorised_transformer",
    "vit",
]
