"""Alice and the lab inside other frameworks: one module a framework, none imported by the rest.

A framework's own loop takes one gradient a step. ``lightning``, ``transformers``, ``accelerate``
and ``window`` (any loop over batches) teach it the three that a measuring step needs;
``docs/in_your_trainer.md`` has the lines to paste, those for skorch too, which needs no module.
``ray`` trains the lab's runs on a Ray cluster: ``docs/scaling_out.md``.
"""
