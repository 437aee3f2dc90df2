"""`scripts/bench --suite kernels`: single kernels as small models, timed by the device's timestamps against a bar."""
