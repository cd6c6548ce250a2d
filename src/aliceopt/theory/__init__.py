"""The theorems of the paper as small pure functions, one module a theorem.

========== =================== =================================================================
Theorem    module              claim
========== =================== =================================================================
1          `relu_glass`        ReLUs make gradient variations grow linearly: ``v <= R |delta|``
2, 3, App. `kernel`            the best kernel and sampling density for a matrix diagonal
4          `glass_bound`       expected loss increase over a glass grows as ``|delta|^(3/2)``
5          `curvature`         the quasi-Newton step that also pays for glass
6          `nesterov`          look-ahead that keeps the running gradient exact
========== =================== =================================================================
"""

from . import curvature, glass_bound, kernel, nesterov, relu_glass

__all__ = ["curvature", "glass_bound", "kernel", "nesterov", "relu_glass"]
