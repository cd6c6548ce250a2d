"""Removing and rounding weights: finite moves, judged by curvature over a finite radius.

========================== ======================================================================
`sensitivity`              how the loss minds a move of every weight, from ordinary gradients
`predicted_increase`       what removing a set of weights should cost, by Theorem 4's terms
`temper_by_loss`           the exponent of a score, by trying some out
`prune`                    masks, as torch.nn.utils.prune has them, or smaller layers
`sparsegpt`                SparseGPT: masks by layer, and an update of what stays
`refit`                    what masks have left, fitted to the outputs of before
`recalibrate`              BatchNorm statistics of what is left
`bits`, `quantize`         how many bits every layer deserves, and torchao's tensors of so many
========================== ======================================================================
"""

from .averages import TERMS, Sensitivity
from .criteria import CRITERIA, TEMPERED, scores
from .increase import Increase, measured_increase, predicted_increase, removal
from .inputs import NotFiniteError, input_norms
from .pruning import Pruned, masks_of, prune
from .quantized import quantize
from .recalibration import recalibrate
from .refitting import refit
from .rounding import Rounding, bits, rounded
from .sensitivity import default_radius, sensitivity
from .sparsegpt import sparsegpt
from .tempering import EXPONENTS, temper_by_loss
from .weights import Weight, weights_of

__all__ = [
    "CRITERIA",
    "EXPONENTS",
    "TEMPERED",
    "TERMS",
    "Increase",
    "NotFiniteError",
    "Pruned",
    "Rounding",
    "Sensitivity",
    "Weight",
    "bits",
    "default_radius",
    "input_norms",
    "masks_of",
    "measured_increase",
    "predicted_increase",
    "prune",
    "quantize",
    "recalibrate",
    "refit",
    "removal",
    "rounded",
    "scores",
    "sensitivity",
    "sparsegpt",
    "temper_by_loss",
    "weights_of",
]
