"""What operators see: metrics, log lines and the record of each request. Never text."""
