//! Common parts of pages for browsers: the header, and line charts.

use plotters::{coord::ranged1d::ValueFormatter, prelude::*};
use std::error::Error;

pub type Failed = Box<dyn Error>;

/// Size of a chart in pixels.
pub const CHART: (u32, u32) = (620, 380);

/// Font of text in charts.
pub const FONT: (&str, u32) = ("sans-serif", 13);

/// The beginning of a page.
pub const HEAD: &str = "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<title>ironverbs sim</title>\n<style>\n\
    body { font: 15px/1.45 sans-serif; color: #222; max-width: 1280px; margin: 2em auto; padding: 0 1em }\n\
    h1 { font-size: 1.5em } h2 { font-size: 1.2em; margin-top: 1.6em }\n\
    .charts { display: flex; flex-wrap: wrap; gap: 12px } svg { max-width: 100%; height: auto }\n\
    table { border-collapse: collapse; margin: .4em 0 1em } td, th { padding: .15em .8em; text-align: right; border-bottom: 1px solid #ddd }\n\
    td:first-child, th:first-child, td.t, th.t { text-align: left } .key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em }\n\
    .columns { display: flex; flex-wrap: wrap; gap: 0 48px } details { margin: .3em 0 }\n\
    </style>\n</head>\n<body>\n";

/// Escapes text for HTML.
pub fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;")
}

/// The label of a line (empty for none), its color, and its points.
pub type Curve<'n> = (&'n str, RGBColor, Vec<(f64, f64)>);

/// Draws lines. `along` formats numbers on the x axis, `names` is the position of the legend.
pub fn draw<'c, X, Y>(
    mut chart: ChartContext<'c, SVGBackend<'c>, Cartesian2d<X, Y>>,
    curves: &[Curve<'_>],
    along: &dyn Fn(&f64) -> String,
    names: SeriesLabelPosition,
) -> Result<(), Failed>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(FONT)
        .x_label_formatter(along)
        .y_label_formatter(&|value| format!("{}", (value * 1e6).round() / 1e6))
        .draw()?;
    for (name, color, points) in curves {
        let style = ShapeStyle { color: color.to_rgba(), filled: true, stroke_width: 2 };
        let line = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        if !name.is_empty() {
            line.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        }
    }
    if curves.iter().any(|(name, ..)| !name.is_empty()) {
        chart
            .configure_series_labels()
            .label_font(FONT)
            .position(names)
            .background_style(WHITE.mix(0.8))
            .draw()?;
    }
    Ok(())
}
