"""The discrete-event check: shares service times with the formulas and nothing of their queueing."""
