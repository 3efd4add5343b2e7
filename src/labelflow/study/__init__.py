"""Studies: a plan of experiments and claims, written before it is run; the cells that were run; what they decide."""
