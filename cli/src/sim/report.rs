//! `ironverbs sim report`: one self-contained page that shows the characteristics of a profile.

use super::{
    look::ENDS,
    page::{CHART, FONT, Failed, HEAD, draw, text},
};
use devmodel::engine::{
    Ps, Station,
    sim::{self, Figures, Measure, Operation, Plan, Report, Watch, rows},
    spans::{Part, Span, Unit},
    timing::TimingProfile,
};
use plotters::prelude::*;
use std::{fmt::Write as _, fs, path::Path};

/// Size of a message's bar in pixels.
const BAR: (u32, u32) = (1260, 90);
/// Messages per latency: an odd number, so that there is a middle one.
const LATENCIES: u32 = 201;
/// Messages per bandwidth.
const MESSAGES: u32 = 1000;

const OPERATIONS: [(Operation, &str, RGBColor); 3] = [
    (Operation::Send, "SEND", RGBColor(0x1b, 0x6c, 0xa8)),
    (Operation::Write, "WRITE", RGBColor(0xc8, 0x55, 0x3d)),
    (Operation::Read, "READ", RGBColor(0x3a, 0x7d, 0x44)),
];

/// Messages with a time breakdown.
const TAKEN_APART: [(Operation, &str, u32); 5] = [
    (Operation::Send, "SEND", 2),
    (Operation::Send, "SEND", 256),
    (Operation::Send, "SEND", 4096),
    (Operation::Write, "WRITE", 65536),
    (Operation::Read, "READ", 2),
];

/// Writes the page of `profile` to `path`. `command` is the command line that makes it.
pub fn write(profile: &TimingProfile, command: &str, path: &Path) -> Result<(), Failed> {
    let page = page(profile, command)?;
    fs::write(path, page).map_err(|e| format!("cannot write {}: {e}", path.display()).into())
}

fn page(profile: &TimingProfile, command: &str) -> Result<String, Failed> {
    let mut page = String::from(HEAD);
    writeln!(
        page,
        "<h1>A ConnectX-5 in virtual time: {}</h1>\n<p>By <code>{}</code>, which writes the same page at every run. \
         {} lanes of {} Gb/s, a port of {} Gb/s.</p>",
        text(&profile.name),
        text(command),
        profile.slot.lanes,
        profile.slot.lane_gbps.0,
        profile.wire.gbps.0
    )?;
    page += "<div class=charts>\n";
    page += &curves("Latency, us (typical)", profile, Measure::Latency, 0..=20)?;
    page += &curves("Bandwidth, Gb/s", profile, Measure::Bandwidth, 1..=20)?;
    page += "</div>\n";
    page += &taken_apart(profile)?;
    page += &loads(profile)?;
    page += &published(&profile.name)?;
    page += "</body>\n</html>\n";
    Ok(page)
}

fn plan(profile: &TimingProfile, operation: Operation, measure: Measure, bytes: u32) -> Plan {
    let mut plan = Plan::new(operation, measure, profile.clone());
    plan.bytes = bytes;
    plan.iters = if measure == Measure::Latency { LATENCIES } else { MESSAGES };
    plan
}

/// A curve for each operation, over message sizes that are powers of two.
fn curves(
    title: &str,
    profile: &TimingProfile,
    measure: Measure,
    powers: std::ops::RangeInclusive<u32>,
) -> Result<String, Failed> {
    let mut all = Vec::new();
    for (operation, name, color) in OPERATIONS {
        let mut points = Vec::new();
        for power in powers.clone() {
            let report = sim::run(&plan(profile, operation, measure, 1 << power))?;
            let value = match report.figures {
                Figures::Latency(latency) => latency.typical,
                Figures::Bandwidth(bandwidth) => bandwidth.gbps(),
            };
            points.push((f64::from(1u32 << power), value));
        }
        all.push((name, color, points));
    }
    let values = || all.iter().flat_map(|(.., points)| points.iter().map(|(_, value)| *value));
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, CHART).into_drawing_area();
        let sizes =
            (f64::from(1u32 << powers.start())..f64::from(1u32 << powers.end())).log_scale().base(2.0);
        let mut builder = ChartBuilder::on(&root);
        builder
            .caption(title, ("sans-serif", 17))
            .margin(10)
            .margin_right(28)
            .x_label_area_size(30)
            .y_label_area_size(48);
        let bytes = |bytes: &f64| size(*bytes as u32);
        // Latencies of all sizes are only visible on a logarithmic scale.
        match measure {
            Measure::Latency => {
                draw(
                    builder.build_cartesian_2d(sizes, (least * 0.8..most * 1.2).log_scale())?,
                    &all,
                    &bytes,
                    SeriesLabelPosition::UpperLeft,
                )?;
            }
            Measure::Bandwidth => draw(
                builder.build_cartesian_2d(sizes, 0.0..most * 1.05)?,
                &all,
                &bytes,
                SeriesLabelPosition::UpperLeft,
            )?,
        }
        root.present()?;
    }
    Ok(svg)
}

/// Formats a number of bytes.
fn size(bytes: u32) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn color(unit: Unit) -> RGBColor {
    match unit {
        Unit::Host => RGBColor(0x7a, 0x5c, 0x99),
        Unit::Slot => RGBColor(0xe0, 0x9f, 0x3e),
        Unit::Sxd | Unit::Sxw => RGBColor(0x54, 0x9f, 0xc4),
        Unit::Sxp => RGBColor(0x1b, 0x6c, 0xa8),
        Unit::Pxdp => RGBColor(0xc8, 0x55, 0x3d),
        Unit::Port => RGBColor(0x33, 0x33, 0x33),
        Unit::Wire => RGBColor(0x99, 0x99, 0x99),
        Unit::Rxb | Unit::Rxt => RGBColor(0x3a, 0x7d, 0x44),
        Unit::Rxs => RGBColor(0x87, 0xb3, 0x4d),
        Unit::Rxc => RGBColor(0xd6, 0x7b, 0xa8),
        Unit::Icm | Unit::Tpt => RGBColor(0x5a, 0x5a, 0x9e),
    }
}

/// Breaks down messages with the median latency: draws a bar of spans for each, and lists the sums of their parts.
fn taken_apart(profile: &TimingProfile) -> Result<String, Failed> {
    let mut page = String::from("<h2>Where the time goes</h2>\n<p>");
    let mut units: Vec<Unit> = Vec::new();
    let mut bars = String::new();
    for (operation, name, bytes) in TAKEN_APART {
        let plan = plan(profile, operation, Measure::Latency, bytes);
        let report = sim::watch(&plan, Watch { timeline: true, ..Watch::default() })?;
        let mut order: Vec<usize> = (0..report.samples.len()).collect();
        order.sort_by_key(|number| report.samples[*number]);
        let number = order[order.len() / 2];
        let spans = report.timeline.of(number);
        units.extend(spans.iter().map(|span| span.part.unit()));
        let both = if operation == Operation::Read { "" } else { ", there and back" };
        writeln!(bars, "<h3>{name}, {}{both}: {} ns</h3>", size(bytes), nanoseconds(whole(&spans)))?;
        bars += &bar(&spans)?;
        bars += &parts(&spans)?;
    }
    units.sort_unstable();
    units.dedup();
    for unit in units {
        let RGBColor(r, g, b) = color(unit);
        write!(page, "<span class=key style='background: rgb({r}, {g}, {b})'></span>{unit}")?;
    }
    Ok(page + "</p>\n" + &bars)
}

fn whole(spans: &[Span]) -> Ps {
    spans.iter().map(|span| span.until - span.from).sum()
}

/// Formats picoseconds as nanoseconds, with all digits, so that sums add up.
fn nanoseconds(ps: Ps) -> String {
    format!("{}.{:03}", ps / 1000, ps % 1000)
}

fn bar(spans: &[Span]) -> Result<String, Failed> {
    let begin = spans.first().map_or(0, |span| span.from);
    let at = |ps: Ps| (ps - begin) as f64 / 1e3;
    let end = spans.last().map_or(1.0, |span| at(span.until));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, BAR).into_drawing_area();
        let mut builder = ChartBuilder::on(&root);
        builder.margin(4).margin_right(24).x_label_area_size(24).y_label_area_size(48);
        let mut chart = builder.build_cartesian_2d(0.0..end, 0.0..2.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_label_style(FONT)
            .x_label_formatter(&|ns| format!("{ns} ns"))
            .draw()?;
        // The client's side is drawn at the top, the server's at the bottom.
        for span in spans {
            let low = 1.0 - f64::from(span.card.min(1));
            let corners = [(at(span.from), low + 0.08), (at(span.until), low + 0.92)];
            chart.draw_series([Rectangle::new(corners, color(span.part.unit()).filled())])?;
        }
        for (number, end) in ENDS.iter().enumerate() {
            let at = (8, 12 + 31 * number as i32);
            root.draw(&Text::new(*end, at, FONT))?;
        }
        root.present()?;
    }
    Ok(svg)
}

/// The sum of each part.
fn parts(spans: &[Span]) -> Result<String, Failed> {
    let mut sums: Vec<(Part, u32, Ps)> = Vec::new();
    for span in spans {
        match sums.iter_mut().find(|(part, ..)| *part == span.part) {
            Some((_, count, sum)) => {
                *count += 1;
                *sum += span.until - span.from;
            }
            None => sums.push((span.part, 1, span.until - span.from)),
        }
    }
    let mut table = String::from(
        "<details><summary>its parts</summary>\n<table><tr><th>unit<th class=t>does<th>times<th>ns together\n",
    );
    for (part, count, sum) in sums {
        writeln!(table, "<tr><td>{}<td class=t>{part}<td>{count}<td>{}", part.unit(), nanoseconds(sum))?;
    }
    writeln!(table, "<tr><td>all<td><td><td>{}\n</table></details>", nanoseconds(whole(spans)))?;
    Ok(table)
}

/// The load of units, for long and for short messages.
fn loads(profile: &TimingProfile) -> Result<String, Failed> {
    let mut page = String::from("<h2>How busy units are</h2>\n<div class=columns>\n");
    for (operation, what, bytes) in [
        (Operation::Write, "WRITEs of 64 KiB", 65536),
        (Operation::Send, "SENDs of 64 B", 64),
        (Operation::Read, "READs of 64 KiB", 65536),
    ] {
        let report = sim::run(&plan(profile, operation, Measure::Bandwidth, bytes))?;
        page += &load(what, &report)?;
    }
    Ok(page + "</div>\n")
}

fn load(what: &str, report: &Report) -> Result<String, Failed> {
    let mut table = format!(
        "<div><h3>{what}</h3>\n<table><tr><th>end<th class=t>unit<th class=t>of<th>busy<th>waited for it, ns\n"
    );
    for (end, loads) in ENDS.iter().zip(&report.loads) {
        for (station, load) in Station::ALL.iter().zip(loads).filter(|(_, load)| load.count > 0) {
            let (unit, of) = station.name();
            let busy = 100.0 * load.busy as f64 / report.duration.max(1) as f64;
            let waited = load.waited as f64 / load.count as f64 / 1e3;
            writeln!(table, "<tr><td>{end}<td class=t>{unit}<td class=t>{of}<td>{busy:.1} %<td>{waited:.1}")?;
        }
    }
    Ok(table + "</table></div>\n")
}

/// Lists published measurements, if the profile is of a card that has some.
fn published(profile: &str) -> Result<String, Failed> {
    let rows = rows::all(TimingProfile::load)?;
    let mut table = String::from(
        "<h2>Beside what was measured on cards</h2>\n\
         <table><tr><th>figure<th>published<th>model<th>off by\n",
    );
    let mut any = false;
    for row in rows.iter().filter(|row| row.profile == profile) {
        any = true;
        let (unit, error) = (text(row.unit), 100.0 * row.error());
        writeln!(
            table,
            "<tr><td>{}<td>{:.2} {unit}<td>{:.2} {unit}<td>{error:+.1} %",
            text(&row.what),
            row.published,
            row.model
        )?;
    }
    Ok(if any { table + "</table>\n" } else { String::new() })
}
