"""How far the predictions of a world model can be trusted.

Prediction error, conformal risk, horizons, policy rankings, the gate and the certificate.
"""
