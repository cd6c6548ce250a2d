"""Options of the commands that train, measure and draw: each is said once, whoever takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def or_digits(problem: str | None) -> str | None:
    """The default by its name is the default."""
    return None if problem == "digits" else problem


# ---- what is run, and where it goes ------------------------------------------------------------

Experiment = Annotated[str, typer.Argument(help="See aliceopt list.")]
Experiments = Annotated[str, typer.Argument(help="See aliceopt list; or pays, for all four of it.")]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for records, figures and report; the default is in runs, named after what "
        "is run."
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:N; auto takes every GPU there is.")
]
Workers = Annotated[
    int | None, typer.Option(help="Runs at once; the default is one a GPU, or one a CPU core.")
]
Launcher = Annotated[
    str,
    typer.Option(
        help="local: processes of this machine; ray: a Ray cluster, the one there is (RAY_ADDRESS) "
        "or one that is started here."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the records in the folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Delete the folder's old records.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard events.")]
Precision = Annotated[
    str | None,
    typer.Option(
        help="float32, tf32 (TF32 products on CUDA) or bf16 (bfloat16 autocast, channels last); "
        "the default is that of the settings."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Stop after so long: runs under way save a checkpoint, and --resume goes on."
    ),
]
Whole = Annotated[
    bool,
    typer.Option(
        "--whole",
        help="With --minutes, begin no run that would not end in time, going by those that have.",
    ),
]
NotIn = Annotated[
    Path | None,
    typer.Option(
        metavar="RESULTS",
        help="Leave out runs whose results this folder keeps, as aliceopt results add wrote them, "
        "of this device, and on a CPU with as many threads (of any with ray or torchrun).",
    ),
]
TuneFirst = Annotated[
    int | None,
    typer.Option(
        help="Try rates in factors of two, at most so many a method, until the best lies inside; "
        "then run it with all seeds. What the folder and --not-in have counts."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the plan and its cost, run nothing but a few steps to time."
    ),
]

# ---- of an experiment --------------------------------------------------------------------------

Scale = Annotated[
    str,
    typer.Option(
        help="paper, or long where it is none of the paper's (hours to days); lab (minutes to "
        "hours on one GPU); small (the paper's, for a CPU: an hour or two on two cores); "
        "or smoke (seconds)."
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        help="How many seeds, like 3; or which, by commas, like 0,4 (5, is seed 5 alone). The "
        "default is the scale's."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one value, like train.epochs=10; repeat for more."),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Only these methods, separated by commas; NAME@RATE is one at another learning rate, "
        "like adamw@2e-3."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the data sets. Without it, smoke makes small data of its own and the "
        "others look where aliceopt data where says."
    ),
]

KEPT = Path("results")
"""Where a clone has the results that are kept."""

# ---- of an experiment that was run -------------------------------------------------------------

RecordsScale = Annotated[
    str, typer.Option("--scale", help="Of the experiment: paper or long, lab, small, smoke.")
]
Records = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the experiment's records, or a .jsonl file of kept results; the default is "
        "runs/NAME-SCALE, and results/NAME.jsonl where there is none."
    ),
]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the table to this file.")]
Figure = Annotated[
    str,
    typer.Argument(
        help="Figure 2 (glass), Figure 3 (relu), Theorem 1 on real networks (theorem1, a "
        "minute), or an experiment that was run (see aliceopt list)."
    ),
]
FigureFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="File to write, .png, .svg or .pdf; the default is out/NAME.png, and for an "
        "experiment figures/NAME.png among its records.",
    ),
]
FigureSeed = Annotated[
    int, typer.Option("--seed", help="Seed of the glass or the networks; relu has none.")
]

# ---- of a study --------------------------------------------------------------------------------

Problem = Annotated[
    str | None,
    typer.Argument(
        help="Your own problem, file.py:function or package.module:function, a function "
        "without arguments that returns model, loss, train and validation data (start from "
        "aliceopt new-problem). By default digits, a small convnet on scikit-learn's.",
    ),
]
ProblemOption = Annotated[
    str | None, typer.Option("--problem", help="The same as the argument PROBLEM, for old scripts.")
]
Terms = Annotated[
    str | None,
    typer.Option(
        help="Curvature terms, by commas, of none, glass, abs, glass+abs, rms, signed, "
        "glass+signed; the default is all but the last."
    ),
]
Steps = Annotated[
    str | None,
    typer.Option(help="naq (accelerated, the default), full (quasi-Newton), or both: naq,full."),
]
Baselines = Annotated[
    str | None,
    typer.Option(
        help="By commas, of alice (its defaults), alice-plain (no look-ahead), alice-curvature, "
        "adam, adamw, nadamw, sgd-m, nesterov, adahessian, schedule-free, muon; default all but "
        "alice-plain, which is AdamW; '' for none."
    ),
]
StudySeeds = Annotated[
    int | None, typer.Option("--seeds", help="How many seeds; the default is 5.")
]
Epochs = Annotated[
    float | None, typer.Option(help="Passes over the training data; the default is 8.")
]
Tune = Annotated[
    int, typer.Option(help="Most learning rates to try for a method; 1 takes the usual one.")
]
Limit = Annotated[str, typer.Option(help="What bounds Alice's steps: fixed or adam.")]
Rate = Annotated[
    float | None,
    typer.Option(help="Alice's rate for naq, or the middle one to try; full's is lower."),
]
QuickSteps = Annotated[
    int | None,
    typer.Option(
        help="Alice's steps with one gradient between those with three; the default is 3."
    ),
]
Budget = Annotated[
    str,
    typer.Option(
        help="What all methods get the same number of: steps, gradients, or seconds, like 60s a "
        "run (a few steps of each are timed first)."
    ),
]
Goal = Annotated[
    float | None, typer.Option(help="Metric to reach; the default is computed and stated.")
]

# ---- of a landscape ----------------------------------------------------------------------------

Measured = Annotated[
    str | None,
    typer.Argument(
        metavar="PROBLEM|CHECKPOINT",
        callback=or_digits,
        help="An experiment (aliceopt list), or file.py:function as for aliceopt study, which "
        "is trained first; or the checkpoint.pt of a run. By default digits, a small convnet.",
    ),
]
Preset = Annotated[str, typer.Option(help="quick, standard or thorough.")]
BatchSize = Annotated[
    int | None, typer.Option(help="Examples a batch; the default is the problem's.")
]
Blocks = Annotated[
    str | None,
    typer.Option(
        help="How many parts of a parameter's name make a block, like 2; or a regular "
        "expression, whose first group is the block's name. The default are the model's own."
    ),
]
Twin = Annotated[
    str | None,
    typer.Option(
        help="Also measure the network with this activation in the place of its own: gelu, "
        "silu, relu2, leaky or relu."
    ),
]
TrainTwin = Annotated[
    bool,
    typer.Option(
        "--train-twin", help="Also train a twin from the same start, and measure that as well."
    ),
]
Batches = Annotated[str, typer.Option(help="Kinds of batches: both, training or held-out.")]
Radius = Annotated[
    float | None,
    typer.Option(
        help="The smallest radius; by default as small as rounding and kinks allow, which is "
        "looked for first."
    ),
]
Every = Annotated[
    float | None,
    typer.Option(
        metavar="EPOCHS",
        help="Also measure exponents while the network trains: before its first step, every "
        "so many epochs (0.5: twice in each), and at the end.",
    ),
]
Between = Annotated[
    Path | None,
    typer.Option(help="Another checkpoint of the same model: also cut a slice to its weights."),
]
Coordinates = Annotated[
    bool,
    typer.Option(
        "--coordinates", help="Also write the curvature of every coordinate, which is large."
    ),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Compare with the exact Hessian; for models of up to 20,000 parameters."
    ),
]
Evaluating = Annotated[
    bool, typer.Option("--eval", help="Measure in evaluation mode, not in training mode.")
]
TrainedBy = Annotated[
    str, typer.Option(help="Which of an experiment's methods trains the network.")
]
Weights = Annotated[Path | None, typer.Option(help="Weights instead of training: a state dict.")]
MeasuredIn = Annotated[
    str,
    typer.Option(
        help="Of the measurement: float32, float64 (smaller radii), tf32 or bf16. Training "
        "has its own."
    ),
]
OverwriteLandscape = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace the landscape in the folder once there is a new one. Its network is used "
        "again, or trained anew if it is another than is asked for.",
    ),
]
Seed = Annotated[int, typer.Option(help="Of the network, the batches and the directions.")]

# ---- of a new problem --------------------------------------------------------------------------

NewProblem = Annotated[Path, typer.Argument(help="The Python file to write, like my_problem.py.")]
Kind = Annotated[
    str,
    typer.Option(
        help="What to start from: spirals (the smallest), vision, tabular, text or huggingface."
    ),
]
