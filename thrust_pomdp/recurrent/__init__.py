"""Recurrent layers over windows with resets: exact, in torch's operations or compiled loops."""
