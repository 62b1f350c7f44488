"""What runs, in which order, and how each head mixes tokens: plain data, built and edited without torch."""
