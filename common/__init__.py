"""The contract that gateway, worker and scaler share, and its adapters. Imports none of them."""

VERSION = "0.1.0"
