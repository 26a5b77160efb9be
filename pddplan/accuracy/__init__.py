"""Predicted against measured: reading measurements, error tables, factors fitted to a user's own rows."""
