"""Who sees it: logs, events, metrics. Watchers are told after the commit and can't break a run."""
