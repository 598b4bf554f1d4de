"""How the page of a run's life looks: light and dark, wide and narrow."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --card: #f6f7f9; --ink: #1d2430; --faint: #667085; --line: #d5dae1;
  --succeeded: #1a8f5a; --running: #2472c8; --retryable: #b26b00; --unknown: #8a5cc9; --non_retryable: #cc3340;
  --ended: #667085; --deadline: #cc3340; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --card: #1d232c; --ink: #e6e9ee; --faint: #98a2b3;
  --line: #38414e; --succeeded: #3fbf85; --running: #5aa2f0; --retryable: #f0ad34; --unknown: #b48cf0;
  --non_retryable: #f06672; --ended: #98a2b3; --deadline: #f06672; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; }
header p { margin: .25rem 0 0; }
code { color: var(--faint); overflow-wrap: anywhere; }
td, dd, h1 { unicode-bidi: isolate; }

.state { color: var(--paper); background: var(--ended); border-radius: 1rem; padding: .1rem .7rem; font-weight: 600; }
.state.succeeded { background: var(--succeeded); }
.state.running, .state.queued { background: var(--running); }
.state.retrying { background: var(--retryable); }
.state.failed, .state.dead { background: var(--non_retryable); }

figure { margin: 1.25rem 0; padding: 1rem; background: var(--card); border-radius: .6rem; }
svg.life { display: block; width: 100%; height: 112px; overflow: visible; }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg .number { fill: var(--ink); font-weight: 600; }
.axis { stroke: var(--line); }
.axis.break { stroke: var(--faint); transform: skewX(-12deg); transform-box: fill-box; }
.wait { fill: var(--line); }
.wait:hover { fill: var(--faint); }
.attempt { stroke-width: 2; stroke: currentColor; fill: currentColor; color: var(--ended); }
.attempt:hover { fill-opacity: .7; }
.attempt.succeeded, .kinds .succeeded, .outcome.succeeded { color: var(--succeeded); }
.attempt.running, .kinds .running, .outcome.running { color: var(--running); }
.attempt.retryable, .kinds .retryable, .outcome.retryable { color: var(--retryable); }
.attempt.unknown, .kinds .unknown, .outcome.unknown { color: var(--unknown); }
.attempt.non_retryable, .kinds .non_retryable, .outcome.non_retryable { color: var(--non_retryable); }
.kinds .ended, .outcome.ended { color: var(--ended); }
.end { fill: var(--ended); stroke: var(--card); stroke-width: 2; }
.end.succeeded { fill: var(--succeeded); }
.end.failed, .end.dead { fill: var(--non_retryable); }
.next { fill: var(--card); stroke: var(--retryable); stroke-width: 2; }
.deadline line { stroke: var(--deadline); stroke-width: 2; }
.deadline text { fill: var(--deadline); }
.now line { stroke: var(--faint); stroke-dasharray: 3 3; }
.kinds { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; margin: .6rem 0 0; padding: 0; }
.kinds li::before { content: "■ "; }

dl { display: grid; gap: .25rem 1rem; margin: 0 0 1.5rem; }
dl div { display: grid; grid-template-columns: 8rem 1fr; }
dt, th { color: var(--faint); font-weight: 400; }
dd { margin: 0; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .4rem .6rem .4rem 0; border-top: 1px solid var(--line); }
th { border-top: 0; }
.fault { overflow-wrap: anywhere; min-width: 9rem; }
td:last-child { min-width: 6rem; overflow-wrap: break-word; }
td:nth-child(-n+3), td:nth-child(5), td:nth-child(6) { white-space: nowrap; }
.outcome { font-weight: 600; }
.fault { margin: 0; white-space: pre-wrap; }
small { color: var(--faint); }

@media (max-width: 44rem) {
  dl div { grid-template-columns: 6.5rem 1fr; }
  thead { display: block; position: absolute; width: 1px; height: 1px; overflow: hidden; }
  table, tbody, tr, td { display: block; }
  tr { border-top: 1px solid var(--line); padding: .5rem 0; }
  td { display: grid; grid-template-columns: 6.5rem 1fr; border: 0; padding: .1rem 0; }
  td::before { content: attr(data-label); color: var(--faint); }
  td:empty { display: none; }
  td > * { grid-column: 2; }
}
"""
