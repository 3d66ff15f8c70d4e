"""What to install for Flower, as every error says it."""

EXTRA = 'fu_core.flower needs Flower and its simulation: run `pip install "fu_core[flower]"`'
