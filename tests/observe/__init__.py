"""What watchers see: logs, signals, metrics, traces."""
