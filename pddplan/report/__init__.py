"""Draws results: terminal tables, JSON contract, JUnit. Computes nothing."""
