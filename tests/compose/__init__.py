"""The Compose stack on a real engine: `make compose-test`. pytest does not collect it."""
