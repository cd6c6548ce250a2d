"""What a step of Alice costs, beside AdamW: in time, in memory, in whole training steps.

From the repository's root, with the package installed or ``PYTHONPATH=src``::

    python -m benchmarks.step --device cuda --model gpt2 --json step.json
    python -m benchmarks.train_step --device cuda --model resnet18 --json train.json
    python -m benchmarks.step --device cpu --model mlp20m
    python -m benchmarks.landscape --device cuda --model gpt2
    python -m benchmarks.lab --device cuda --together 1,4

Each prints one table, last; ``--json`` keeps every number. ``--help`` lists the options. Times are
medians over rounds in which every row takes its turn, so a drift of the machine hits all alike;
``benchmarks.landscape`` runs the instruments of ``aliceopt landscape`` once.

``python -m benchmarks.decisions`` times nothing: it counts how often whole studies of problems with
a known answer decide rightly. Nor does ``python -m benchmarks.coherence``, which trains with
corrected and uncorrected glass.
"""
