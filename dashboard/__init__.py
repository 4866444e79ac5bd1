"""The dashboard: pages over a folder of runs, and the report that one run becomes.

Layers, each using only those before it:

    units, theme, routes      words, colours, addresses; no I/O
    data/                     run folder -> tables; no drawing
    figures/                  tables -> plotly figures; no I/O
    pages/                    figures and tables -> a page and its callbacks
    app, server, cli          the Dash app, how it is served, the commands
    report, pictures          one run as a file; pages as pictures

Runs are only read, and nothing in them is trusted.
"""

from __future__ import annotations
