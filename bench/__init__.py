"""Measurements of this stack. Figures are printed as measured in the run that prints them."""
