"""Plots as HTML files of their own, drawn by plotly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from surgekit.bias import Bias
from surgekit.errors import InputError
from surgekit.files import write_text


def write_bias_plot(measured: Mapping[str, Mapping[str, Bias]], width: int, path: Path) -> None:
    """Plot the mean L1 bias by position, one line for each domain and label.

    Args:
        measured: {domain: {label: bias}}.
        width: positions a point stands for.
        path: the HTML file; it holds the plotting library too, and needs no network.
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise InputError("plots need plotly: pip install 'surgekit[plot]'") from error
    figure = go.Figure()
    for domain, rows in measured.items():
        for label, bias in rows.items():
            bins = bias.by_position(width)
            figure.add_scatter(
                x=[(row["start"] + row["stop"]) / 2 for row in bins],
                y=[row["l1"] for row in bins],
                customdata=[row["tokens"] for row in bins],
                hovertemplate="position %{x}<br>L1 %{y:.4f}<br>%{customdata} tokens",
                name=f"{domain}, {label}",
                mode="lines+markers",
                line={"dash": "solid" if label == "merged" else "dot"},
            )
    figure.update_layout(
        title="Drift of the merged model's last hidden states from its experts",
        xaxis_title="position in the sequence",
        yaxis_title="mean |z − zᵏ| per dimension",
        template="plotly_white",
    )
    write_text(path, figure.to_html(include_plotlyjs=True))
