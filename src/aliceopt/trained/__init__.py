"""Trained networks: found again, looked at (`landscape`), made smaller (`compress`).

What stands between the package's instruments and the commands: on which network and batches, at
what cost, what is kept as records, how it is shown. The lab knows nothing of it.
"""
