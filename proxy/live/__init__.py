"""What changes while the proxy runs: settings, certificates, the switch to shadow."""
