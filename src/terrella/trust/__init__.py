"""How far a world model may be believed: beliefs, errors, conformal risk, horizons, rankings, the certificate."""
