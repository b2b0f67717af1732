"""The gateway: HTTP in, port calls out."""
