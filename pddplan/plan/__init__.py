"""What to buy: candidates, the integer program, solve, infeasibility."""
