//! A report as one HTML page that needs nothing else: no network, no script. Every picture has its data beside it.

use super::machine::{self, Table};
use super::plots::axis::Axis;
use super::plots::bars::Bars;
use super::plots::chart::{Chart, Line, Mark};
use super::plots::escape as escaped;
use super::plots::forest::{Forest, ForestRow};
use super::plots::heat::{Columns, Heat};
use super::plots::style::{PAGE_STYLE, PLOT_STYLE};
use super::plots::ticks::Unit;
use super::summary::{Row, Said, Summary};
use super::sweep::{Sweep, knees, load_words, sweeps};
use super::text::{date, findings_by_code, headings, more_tables, rows, words};
use crate::archive::{FIGURES, Figure, Outcome, Sample, figure_named};
use crate::engine::cpu::Role;
use crate::engine::histogram::Buckets;
use crate::report::figure;
use crate::statistics::{median, quantile_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The most points that have pictures of their own: each adds some 20 KB.
const POINTS_DRAWN: usize = 8;
/// The most heat maps, of 20 KB each.
const HEATS_DRAWN: usize = 6;
/// Findings of a kind that are told one by one.
const FINDINGS_TOLD: usize = 3;
/// Points of a curve of percentiles for each nine.
const STEPS_OF_A_NINE: u32 = 12;
/// Buckets of a heat map for each doubling of the latency.
const HEAT_STEPS: f64 = 2.0;

const OWN_STYLE: &str = "\
.verdict{padding:.6rem 1rem;border-left:.4rem solid;max-width:60rem}
.good{border-color:var(--plot-3)}.bad{border-color:var(--plot-2)}
summary{color:var(--plot-muted);font-size:.9rem;cursor:pointer}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dd{margin:0;overflow-wrap:anywhere}
";

/// The page.
#[must_use]
pub fn page(outcome: &Outcome, summary: &Summary) -> String {
    let mut page = Page(String::with_capacity(1 << 17));
    page.add(&format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';style-src 'unsafe-inline'\">\
         <title>{}</title><style>{PLOT_STYLE}{PAGE_STYLE}{OWN_STYLE}</style></head><body><main>",
        escaped(&outcome.title)
    ));
    page.add(&format!("<h1>{}</h1>", escaped(&outcome.title)));
    verdict(&mut page, outcome);
    in_words(&mut page, outcome, summary);
    for (headings, rows) in more_tables(outcome, summary) {
        table(&mut page, &headings, &rows);
    }
    comparisons(&mut page, outcome, summary);
    throughput(&mut page, outcome, summary);
    points(&mut page, outcome);
    cpu(&mut page, outcome);
    heats(&mut page, outcome);
    page.add("<h2>Figures</h2>");
    table(&mut page, &headings(outcome), &rows(outcome, summary));
    machine(&mut page, outcome);
    about(&mut page, outcome);
    page.add("</main></body></html>\n");
    page.0
}

struct Page(String);

impl Page {
    fn add(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// A picture and its data.
    fn figure(&mut self, svg: &str, headings: &[&str], rows: &[Vec<String>]) {
        self.add("<figure>");
        self.add(svg);
        self.add("<details><summary>Data</summary><div class=\"wide\"><table><tr>");
        for heading in headings {
            self.add(&format!("<th>{}</th>", escaped(heading)));
        }
        self.add("</tr>");
        for row in rows {
            self.add("<tr>");
            for cell in row {
                self.add(&format!("<td>{}</td>", escaped(cell)));
            }
            self.add("</tr>");
        }
        self.add("</table></div></details></figure>");
    }
}

fn verdict(page: &mut Page, outcome: &Outcome) {
    for missed in &outcome.disappointments {
        page.add(&format!("<p class=\"verdict bad\"><strong>Missed.</strong> {}</p>", escaped(missed)));
    }
    if outcome.findings.is_empty() {
        page.add("<p class=\"verdict good\">Nothing speaks against these figures.</p>");
        return;
    }
    page.add("<div class=\"verdict bad\"><p><strong>Not to be trusted.</strong></p><ul>");
    for (code, texts) in findings_by_code(outcome) {
        for text in texts.iter().take(FINDINGS_TOLD) {
            page.add(&format!("<li><code>{}</code>: {}</li>", escaped(code), escaped(text)));
        }
        if texts.len() > FINDINGS_TOLD {
            let more = texts.len() - FINDINGS_TOLD;
            page.add(&format!(
                "<li><details><summary><code>{}</code>: {more} more</summary><ul>",
                escaped(code)
            ));
            for text in &texts[FINDINGS_TOLD..] {
                page.add(&format!("<li>{}</li>", escaped(text)));
            }
            page.add("</ul></details></li>");
        }
    }
    page.add("</ul></div>");
}

/// The figures of which it is told in words.
const IN_WORDS: [&str; 4] = ["iops", "mean_us", "p99_us", "machine_us"];

/// What differs surely, in sentences.
fn in_words(page: &mut Page, outcome: &Outcome, summary: &Summary) {
    if let Some(note) = &outcome.note {
        page.add(&format!("<p>{}</p>", escaped(note)));
    }
    let mut sentences = Vec::new();
    let points = if outcome.in_turns { outcome.points.len() } else { 0 };
    for point in 0..points {
        for (subject, view) in outcome.subjects.iter().enumerate() {
            let parts = summary.of_point(point).filter_map(|row| {
                let ratio = row.ratios[subject].as_ref()?;
                let (is_told, said) = (IN_WORDS.contains(&row.figure.name), row.said(ratio));
                let better = if said == Said::Better { "better" } else { "worse" };
                (is_told && said != Said::NoDifferenceShown)
                    .then(|| format!("{} {:.2} times, which is {better}", row.figure.heading, ratio.estimate))
            });
            let parts: Vec<String> = parts.collect();
            if !parts.is_empty() {
                let (point, first) = (&outcome.points[point].name, outcome.name_of_base(subject));
                sentences.push(format!("{point}, {} by {first}: {}.", view.name, parts.join("; ")));
            }
        }
    }
    if outcome.subjects.len() > 1 && sentences.is_empty() && outcome.in_turns {
        let is_sure = summary
            .rows
            .iter()
            .flat_map(|row| row.ratios.iter().flatten())
            .any(|ratio| ratio.interval.is_some());
        page.add(match is_sure {
            true => "<p>No difference was shown.</p>",
            false => "<p>So few rounds have no intervals: nothing is called better or worse.</p>",
        });
    }
    if !sentences.is_empty() {
        page.add("<ul>");
        sentences.iter().for_each(|sentence| page.add(&format!("<li>{}</li>", escaped(sentence))));
        page.add("</ul>");
    }
}

fn table(page: &mut Page, headings: &[String], rows: &[Vec<String>]) {
    let is_number: Vec<bool> = headings.iter().map(|heading| heading.starts_with('>')).collect();
    let class = |number: usize| if is_number.get(number) == Some(&true) { " class=\"number\"" } else { "" };
    page.add("<div class=\"wide\"><table><tr>");
    for (number, heading) in headings.iter().enumerate() {
        page.add(&format!("<th{}>{}</th>", class(number), escaped(heading.trim_start_matches('>'))));
    }
    page.add("</tr>");
    for row in rows {
        page.add("<tr>");
        for (number, cell) in row.iter().enumerate() {
            page.add(&format!("<td{}>{}</td>", class(number), escaped(cell)));
        }
        page.add("</tr>");
    }
    page.add("</table></div>");
}

/// Ratios with their intervals.
fn comparisons(page: &mut Page, outcome: &Outcome, summary: &Summary) {
    if outcome.subjects.len() < 2 {
        return;
    }
    page.add("<h2>Compared</h2><div class=\"figures\">");
    for name in ["iops", "p99_us", "machine_us", "nodes_us"] {
        let of_figure = summary.rows.iter().filter(|row| row.figure.name == name);
        let rows: Vec<ForestRow> = of_figure.flat_map(|row| forest_rows(outcome, row)).collect();
        let Some(figure) = figure_named(name).filter(|_| !rows.is_empty()) else { continue };
        let sides = match figure.more_is_better {
            true => ["worse".to_owned(), "better".to_owned()],
            false => ["better".to_owned(), "worse".to_owned()],
        };
        let bases: BTreeSet<&str> = (1..outcome.subjects.len())
            .filter(|subject| outcome.base_of(*subject).is_some())
            .map(|subject| outcome.name_of_base(subject))
            .collect();
        let bases: Vec<&str> = bases.into_iter().collect();
        let title = format!("{}, as a multiple of that of {}", figure.heading, bases.join(" or "));
        let data: Vec<Vec<String>> = rows.iter().map(forest_data).collect();
        let forest = Forest { title, rows, neutral: 1.0, sides: Some(sides) };
        page.figure(&forest.to_svg(), &["job", "ratio", "low", "high", "rounds"], &data);
    }
    page.add("</div>");
}

fn forest_rows(outcome: &Outcome, row: &Row) -> Vec<ForestRow> {
    let ratios = row.ratios.iter().enumerate();
    let rows = ratios.filter_map(|(subject, ratio)| {
        let ratio = ratio.as_ref()?;
        Some(ForestRow {
            name: format!("{} on {}", outcome.points[row.point].name, outcome.subjects[subject].name),
            estimate: ratio.estimate,
            interval: ratio.interval,
            note: words(outcome, row, ratio).to_owned(),
        })
    });
    rows.collect()
}

fn forest_data(row: &ForestRow) -> Vec<String> {
    let end =
        |which: usize| row.interval.map_or("-".to_owned(), |interval| format!("{:.3}", interval[which]));
    vec![row.name.clone(), format!("{:.3}", row.estimate), end(0), end(1), row.note.clone()]
}

/// Latency against throughput, of jobs whose points differ in how much is asked at once.
fn throughput(page: &mut Page, outcome: &Outcome, summary: &Summary) {
    let sweeps = sweeps(outcome);
    if sweeps.is_empty() {
        return;
    }
    page.add("<h2>Latency against throughput</h2>");
    let knees = knees(outcome, summary);
    page.add("<ul>");
    knees.iter().for_each(|knee| page.add(&format!("<li>{}</li>", escaped(knee))));
    page.add("</ul><div class=\"figures\">");
    for Sweep { name, points } in sweeps {
        let (x, y) = (
            Axis::from_zero("Operations a second", Unit::Number),
            Axis::logarithmic("Latency, 99th percentile", Unit::Microseconds),
        );
        let mut chart = Chart::new(&format!("{name}, from little to much at once"), x, y);
        let mut data = Vec::new();
        for (subject, view) in outcome.subjects.iter().enumerate() {
            let known = points.iter().filter_map(|point| {
                let value = |name| summary.value(*point, subject, name);
                Some((load_words(outcome, *point), value("iops")?, value("p99_us")?))
            });
            let known: Vec<(String, f64, f64)> = known.collect();
            let curve = known.iter().map(|(_, iops, p99_us)| (*iops, *p99_us)).collect();
            let labels = known.iter().map(|(load, ..)| load.clone()).collect();
            data.extend(known.iter().map(|(load, iops, p99_us)| {
                vec![view.name.clone(), load.clone(), figure(Some(*iops)), figure(Some(*p99_us))]
            }));
            chart.lines.push(Line { labels, markers: true, ..Line::new(&view.name, curve) });
        }
        page.figure(&chart.to_svg(), &["subject", "at once", "IOPS", "p99 µs"], &data);
    }
    page.add("</div>");
}

/// Percentiles and the course of each point.
fn points(page: &mut Page, outcome: &Outcome) {
    page.add("<h2>Each job</h2><div class=\"figures\">");
    for point in 0..outcome.points.len().min(POINTS_DRAWN) {
        percentiles(page, outcome, point);
        course(page, outcome, point);
    }
    page.add("</div>");
    if outcome.points.len() > POINTS_DRAWN {
        let more = outcome.points.len() - POINTS_DRAWN;
        page.add(&format!("<p>{more} more have no pictures here; their figures are in the table.</p>"));
    }
}

fn percentiles(page: &mut Page, outcome: &Outcome, point: usize) {
    let told = [0.5, 0.9, 0.99, 0.999, 0.9999];
    let data = outcome.subjects.iter().enumerate().map(|(subject, view)| {
        let seconds: Vec<Buckets> = seconds_of(outcome, point, subject);
        let of = |quantile: f64| quantile_of(&seconds, quantile).map(|ns| ns as f64 / 1000.0);
        [vec![view.name.clone()], told.map(|quantile| figure(of(quantile))).to_vec()].concat()
    });
    let headings = ["subject", "p50 µs", "p90 µs", "p99 µs", "p99.9 µs", "p99.99 µs"];
    page.figure(&percentile_chart(outcome, point).to_svg(), &headings, &data.collect::<Vec<_>>());
}

/// All latencies of a point on a subject, by seconds.
fn seconds_of(outcome: &Outcome, point: usize, subject: usize) -> Vec<Buckets> {
    outcome.samples_of(point, subject, false).flat_map(Sample::seconds).collect()
}

/// The percentiles of a point's latencies on all subjects.
#[must_use]
pub fn percentile_chart(outcome: &Outcome, point: usize) -> Chart {
    let name = &outcome.points[point].name;
    let (x, y) =
        (Axis::percentiles("Percentile of operations"), Axis::logarithmic("Latency", Unit::Microseconds));
    let mut chart = Chart::new(&format!("{name}: latency"), x, y);
    for (subject, view) in outcome.subjects.iter().enumerate() {
        let seconds = seconds_of(outcome, point, subject);
        let all: u64 = seconds.iter().map(Buckets::count).sum();
        if all == 0 {
            continue;
        }
        // Beyond, single operations would be drawn as if they were a curve.
        let nines = (all as f64 / 10.0).log10().max(0.3);
        let steps = (nines * f64::from(STEPS_OF_A_NINE)) as u32;
        let curve = (1..=steps).filter_map(|step| {
            let quantile = 1.0 - 10f64.powf(-f64::from(step) / f64::from(STEPS_OF_A_NINE));
            Some((quantile, quantile_of(&seconds, quantile)? as f64 / 1000.0))
        });
        chart.lines.push(Line::new(&view.name, curve.collect()));
    }
    chart
}

/// Operations a second by second of a sample: the median of the rounds, and from the lowest to the highest.
fn course(page: &mut Page, outcome: &Outcome, point: usize) {
    let name = &outcome.points[point].name;
    let (x, y) = (
        Axis::from_zero("Second of a sample", Unit::Seconds),
        Axis::from_zero("Operations a second", Unit::Number),
    );
    let mut chart = Chart::new(&format!("{name}: its course"), x, y);
    let mut data = Vec::new();
    for (subject, view) in outcome.subjects.iter().enumerate() {
        let mut by_second: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for sample in outcome.samples_of(point, subject, false) {
            for second in sample.series.iter().filter(|second| second.seconds > 0.5) {
                let rate = second.read_iops + second.write_iops;
                by_second.entry(second.at_s.round() as u64).or_default().push(rate);
            }
        }
        let (mut curve, mut band) = (Vec::new(), Vec::new());
        for (at, rates) in by_second {
            let at = at as f64;
            let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
            let highest = rates.iter().copied().fold(0.0, f64::max);
            let Some(middle) = median(rates) else { continue };
            curve.push((at, middle));
            band.push((at, lowest, highest));
            let told = [lowest, middle, highest].map(|rate| figure(Some(rate)));
            data.push([vec![view.name.clone(), at.to_string()], told.to_vec()].concat());
        }
        chart.lines.push(Line { band, ..Line::new(&view.name, curve) });
    }
    let mut marks: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for sample in outcome.samples.iter().filter(|sample| sample.point == point) {
        for event in &sample.events {
            marks.entry(&event.name).or_default().push(event.at_s);
        }
    }
    chart.marks = marks
        .into_iter()
        .filter_map(|(label, at)| Some(Mark { x: median(at)?, label: label.to_owned() }))
        .collect();
    page.figure(&chart.to_svg(), &["subject", "second", "lowest", "median", "highest"], &data);
}

/// CPU time by role.
fn cpu(page: &mut Page, outcome: &Outcome) {
    const ROLES: [Role; 6] =
        [Role::Client, Role::Nodes, Role::Kernel, Role::SoftInterrupts, Role::Rest, Role::Lab];
    let (mut rows, mut data) = (Vec::new(), Vec::new());
    for (point, point_view) in outcome.points.iter().enumerate().take(POINTS_DRAWN) {
        for (subject, view) in outcome.subjects.iter().enumerate() {
            let of_role = |role: Role| {
                let samples = outcome.samples_of(point, subject, false);
                median(
                    samples
                        .filter_map(|sample| sample.cpu.as_ref()?.roles_us_per_operation.get(&role).copied())
                        .collect(),
                )
            };
            let values = ROLES.map(of_role);
            if values.iter().all(Option::is_none) {
                continue;
            }
            let name = format!("{} on {}", point_view.name, view.name);
            data.push([vec![name.clone()], values.map(figure).to_vec()].concat());
            rows.push((name, values.map(|value| value.unwrap_or(0.0)).to_vec()));
        }
    }
    if rows.is_empty() {
        return;
    }
    let parts: Vec<String> = ROLES.map(|role| role.name().to_owned()).to_vec();
    let bars = Bars {
        title: "Whose CPU time an operation takes".to_owned(),
        label: "CPU time for each operation".to_owned(),
        unit: Unit::Microseconds,
        rows,
        parts: parts.clone(),
    };
    let mut headings = vec!["job"];
    headings.extend(parts.iter().map(String::as_str));
    page.add("<h2>CPU</h2><div class=\"figures\">");
    page.figure(&bars.to_svg(), &headings, &data);
    page.add("</div>");
}

/// What the machine did meanwhile.
fn machine(page: &mut Page, outcome: &Outcome) {
    let tables = machine::tables(outcome);
    if tables.is_empty() {
        return;
    }
    page.add("<h2>What the machine did</h2>");
    for Table { title, headings, rows } in tables {
        page.add(&format!("<details><summary>{}</summary>", escaped(&title)));
        table(page, &headings, &rows);
        page.add("</details>");
    }
}

/// Latencies over time, of all rounds one behind the other.
fn heats(page: &mut Page, outcome: &Outcome) {
    page.add("<h2>Latencies over time</h2><div class=\"figures\">");
    let mut drawn = 0;
    for (point, point_view) in outcome.points.iter().enumerate() {
        for (subject, view) in outcome.subjects.iter().enumerate() {
            let samples = outcome.samples_of(point, subject, false);
            let seconds: Vec<Buckets> = samples.flat_map(Sample::seconds).collect();
            let Some((rows, cells)) = cells(&seconds) else { continue };
            drawn += 1;
            if drawn > HEATS_DRAWN {
                continue;
            }
            let heat = Heat {
                title: format!("{} on {}", point_view.name, view.name),
                x_label: "Measured seconds of all rounds".to_owned(),
                y_label: "Latency".to_owned(),
                columns: Columns::Seconds((1..=seconds.len()).map(|at| at as f64).collect()),
                rows,
                cells,
            };
            let slowest = seconds.iter().enumerate().max_by_key(|(_, second)| second.counts.last());
            let told = slowest.map(|(at, second)| {
                let us = second.counts.last().map(|(ns, _)| *ns as f64 / 1000.0);
                vec![(at + 1).to_string(), figure(us)]
            });
            page.figure(
                &heat.to_svg(),
                &["slowest second", "longest µs"],
                &told.into_iter().collect::<Vec<_>>(),
            );
        }
    }
    page.add("</div>");
    if drawn > HEATS_DRAWN {
        page.add(&format!("<p>{} more are in latency.hlog.</p>", drawn - HEATS_DRAWN));
    }
}

/// Lower bounds of latencies in µs, and how many there are of each in every second.
fn cells(seconds: &[Buckets]) -> Option<(Vec<f64>, Vec<Vec<u64>>)> {
    let step = |ns: u64| ((ns.max(1) as f64 / 1000.0).log2() * HEAT_STEPS).floor() as i64;
    let all = || seconds.iter().flat_map(|second| &second.counts).map(|(ns, _)| step(*ns));
    let (first, last) = (all().min()?, all().max()?);
    let rows: Vec<f64> = (first..=last).map(|step| 2f64.powf(step as f64 / HEAT_STEPS)).collect();
    let column = |second: &Buckets| {
        let mut column = vec![0; rows.len()];
        for (ns, count) in &second.counts {
            column[(step(*ns) - first) as usize] += count;
        }
        column
    };
    let columns: Vec<Vec<u64>> = seconds.iter().map(column).collect();
    Some((rows, columns))
}

/// What it ran on, and by which command.
fn about(page: &mut Page, outcome: &Outcome) {
    page.add("<h2>How it was measured</h2><dl>");
    let mut term = |term: &str, what: &str| {
        page.add(&format!("<dt>{}</dt><dd>{}</dd>", escaped(term), escaped(what)));
    };
    term("Began", &date(outcome.began_unix_ms));
    term("Ended", &date(outcome.ended_unix_ms));
    term("Machine", &outcome.machine.to_string());
    term("Version", &outcome.build.version);
    term("Command", &outcome.command);
    for subject in &outcome.subjects {
        let filled = if subject.is_filled { ", filled before" } else { ", not filled before" };
        let full =
            subject.full.map_or(String::new(), |full| format!(", which made it {:.0} % full", full * 100.0));
        let left_out = subject.left_out.as_ref().map_or(String::new(), |why| format!("; left out: {why}"));
        term(&subject.name, &format!("{}{filled}{full}{left_out}", subject.what));
    }
    let rounds = outcome.samples.iter().map(|sample| sample.round).max().unwrap_or(0);
    term("Rounds", &format!("{rounds} of {}, each with all subjects", outcome.rounds));
    page.add("</dl>");
    let mut told = String::new();
    let quantiles: Vec<&str> = FIGURES
        .iter()
        .filter(|figure| figure.quantile.is_some())
        .map(|figure: &Figure| figure.heading)
        .collect();
    let _ = write!(
        told,
        "<p>A ratio is the Hodges-Lehmann estimate of the rounds' ratios, its interval that of Wilcoxon's signed-rank \
         test (95 % at least). {} are of all rounds' latencies together; their intervals are bootstrapped by rounds and \
         blocks of seconds. What lies beyond 2 % with its whole interval is called better or worse.</p>",
        quantiles.join(", ")
    );
    page.add(&told);
}
