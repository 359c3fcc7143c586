//! The screen: faults and the node's progress stay at the top; the sections below them scroll.

use std::time::Instant;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize as _},
    text::{Line, Span},
    widgets::{Gauge, Paragraph, RenderDirection, Sparkline},
};
use slipstream_status::{NodeStatus, health::Blocker};

use super::{View, lines::wrapped, peers, sections};
use crate::status::{
    peers::named,
    units::{count, duration, left},
};

/// The width from which the sections form two columns.
const WIDE: u16 = 150;
/// The blank columns between the two columns of sections.
const GAP: u16 = 2;
/// Maximum number of lines of faults, so that the rest stays visible.
const WRONG_MAX: usize = 6;

pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View, now: Instant) {
    let area = frame.area();
    let wrong = wrong(view, area.width, now);
    let heights = [1, wrong.len() as u16, 1, 1, 2].map(Constraint::Length);
    let [title, warnings, state, gauge, rates, rest, keys] =
        Layout::vertical(heights.into_iter().chain([Constraint::Min(1), Constraint::Length(1)])).areas(area);
    frame.render_widget(Paragraph::new(heading(view)), title);
    frame.render_widget(Paragraph::new(wrong), warnings);
    frame.render_widget("q ends; arrows and page keys move".dim(), keys);
    let Some((status, _)) = &view.seen else { return };
    frame.render_widget(Paragraph::new(doing(status)), state);
    let way = &status.progress;
    let label = format!("{}: {} of {} {}", percent(way.percent), way.done, way.total, way.unit.name());
    frame.render_widget(
        Gauge::default()
            .ratio((way.percent / 100.0).clamp(0.0, 1.0))
            .label(label)
            .gauge_style(Style::new().blue()),
        gauge,
    );
    let looks: Vec<u64> = view.rates.iter().copied().collect();
    frame.render_widget(
        Sparkline::default().data(&looks).direction(RenderDirection::RightToLeft).style(Style::new().blue()),
        rates,
    );
    let columns = columns(view, status, now, rest.width);
    let longest = columns.iter().map(Vec::len).max().unwrap_or_default() as u16;
    view.page = rest.height.max(1);
    view.above_max = longest.saturating_sub(rest.height);
    view.above = view.above.min(view.above_max);
    let width = column_width(rest.width);
    for (index, lines) in columns.into_iter().enumerate() {
        let x = rest.x + index as u16 * (width + GAP);
        let place = Rect { x, width, ..rest }.intersection(rest);
        frame.render_widget(Paragraph::new(lines).scroll((view.above, 0)), place);
    }
}

/// Formats a percentage, rounded down: unfinished work is never 100 %.
fn percent(value: f64) -> String {
    format!("{:.1} %", (value * 10.0).floor() / 10.0)
}

fn column_width(width: u16) -> u16 {
    if width >= WIDE { (width - GAP) / 2 } else { width }
}

/// The sections, in one column or two.
fn columns(view: &View, status: &NodeStatus, now: Instant, width: u16) -> Vec<Vec<Line<'static>>> {
    let each = usize::from(column_width(width));
    let left = [sections::progress(status, each), sections::pipeline(status, each)];
    let middle = [peers::peers(status, each), sections::consensus(status, each)];
    let right = [
        sections::caches(status, each),
        sections::latency(status, each),
        sections::machine(status, view.cpu_percent, each),
        view.events.lines(now, each),
    ];
    let (left, middle, right) = (left.concat(), middle.concat(), right.concat());
    match width >= WIDE {
        true => vec![[left, right].concat(), middle],
        false => vec![[left, middle, right].concat()],
    }
}

fn heading(view: &View) -> Line<'static> {
    let name = "Slipstream ".bold();
    let Some((status, _)) = &view.seen else {
        return Line::from(vec![name, format!("at {}", view.address).dim()]);
    };
    let own = status.name.as_ref().map_or_else(String::new, |own| format!("{own}, "));
    let who = format!(
        "{own}{} of chain {}, {}, {}",
        status.role.name(),
        status.chain_id,
        status.client,
        status.peer_address
    );
    Line::from(vec![name, who.dim()])
}

/// The node's activity, its batch, its speed, and the time left.
fn doing(status: &NodeStatus) -> Line<'static> {
    let (health, way) = (&status.health, &status.progress);
    let (word, style) = match &health.blocker {
        None => ("ready", Style::new().green()),
        Some(blocker) if blocker.alert => ("NOT READY", Style::new().red()),
        Some(_) => ("not ready", Style::new().yellow()),
    };
    let rest = format!(
        "  batch {}  {} {}/s{}",
        status.head.number,
        count(way.per_second),
        way.unit.name(),
        left(way.eta)
    );
    Line::from(vec![Span::styled(format!("{}, {word}", health.state), style), rest.into()])
}

/// The node's faults, worst first.
fn wrong(view: &View, width: u16, now: Instant) -> Vec<Line<'static>> {
    let mut found = Vec::new();
    if let Some(trouble) = &view.trouble {
        let age = view.seen.as_ref().map_or_else(String::new, |(_, at)| {
            format!("; these values are {} old", duration(now.duration_since(*at).as_secs_f64()))
        });
        found.push((format!("{trouble}{age}"), Style::new().red()));
    }
    if let Some((status, _)) = &view.seen {
        found.extend(
            status.sync.alarm.iter().map(|alarm| (format!("ALARM: {alarm}"), Style::new().red().bold())),
        );
        if let Some(Blocker { text, alert, retry_ms, .. }) = &status.health.blocker {
            let retry = retry_ms.map_or_else(String::new, |ms| match ms {
                0 => "; it is trying now".into(),
                ms => format!("; it tries again in {}", duration(ms as f64 / 1e3)),
            });
            let style = if *alert { Style::new().red() } else { Style::new().yellow() };
            found.push((format!("not ready: {text}{retry}"), style));
        }
        let shared = status.shared_keys.iter();
        found.extend(shared.map(|key| (named(key.name.as_ref(), &key.problem), Style::new().red())));
        let unknown = status.rules.unknown.iter();
        found.extend(
            unknown.map(|fork| (format!("unknown fork {fork}: this node stops there"), Style::new().red())),
        );
    }
    let lines = found.into_iter().flat_map(|(text, style)| {
        wrapped(&text, width.into()).into_iter().map(move |part| Line::styled(part, style))
    });
    lines.take(WRONG_MAX).collect()
}
