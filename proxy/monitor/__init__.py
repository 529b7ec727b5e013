"""Watches the certificates in use: drift, audits, alarms."""
