"""Data sets: readers of the official layouts, batches by number, downloads, generated stand-ins."""

from aliceopt.lab.data.accept import as_split
from aliceopt.lab.data.augment import PadCropFlip, pad_crop_flip, unit_floats
from aliceopt.lab.data.folder import DataError, data_folder
from aliceopt.lab.data.loading import Loaded, load
from aliceopt.lab.data.registry import DATASETS, DataSet
from aliceopt.lab.data.splits import Arrays, Items, Split, Tokens

__all__ = [
    "DATASETS",
    "Arrays",
    "DataError",
    "DataSet",
    "Items",
    "Loaded",
    "PadCropFlip",
    "Split",
    "Tokens",
    "as_split",
    "data_folder",
    "load",
    "pad_crop_flip",
    "unit_floats",
]
