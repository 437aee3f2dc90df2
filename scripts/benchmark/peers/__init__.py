"""`scripts/bench --suite peers`: whole models against their peers, each with the ratios that it has to keep."""
