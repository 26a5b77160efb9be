"""What the user writes: scenario, chip, link, workload and SLO as typed records; loading; catalogue."""
