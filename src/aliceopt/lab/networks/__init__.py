"""Trained networks, looked at by `aliceopt.landscape` and made smaller by `aliceopt.compress`."""
