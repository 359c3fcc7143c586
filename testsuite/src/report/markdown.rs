//! Formats a report as Markdown, for a pull request or a terminal.

use std::fmt::Write as _;

use super::{NodeSeries, RunReport, Series};
use crate::load::Percentiles;

/// The placeholder of a value that was not measured.
const NONE: &str = "–";

impl RunReport {
    /// Returns the report as Markdown: the verdict, the harness's own figures, criteria, faults, and the median and
    /// maximum of every series.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        self.write_head(&mut text);
        let generators = match self.harness.generators_limit {
            true => "**they were the limit, not the nodes**",
            false => "not the limit",
        };
        let harness = [
            ("offered, transactions/s".to_owned(), number(Some(self.harness.offered))),
            ("achieved, transactions/s".to_owned(), number(Some(self.harness.achieved))),
            ("relay overhead p99, us".to_owned(), number(self.harness.relay_overhead_us)),
            ("generators".to_owned(), generators.to_owned()),
        ];
        table(&mut text, "Harness", &["figure", "value"], harness.map(|(name, value)| vec![name, value]));
        let verdict = |passed| if passed { "passed" } else { "**FAILED**" };
        let criteria = self.criteria.iter().map(|it| {
            vec![it.name.clone(), verdict(it.passed).to_owned(), it.measured.clone(), it.wanted.clone()]
        });
        table(&mut text, "Criteria", &["criterion", "", "measured", "wanted"], criteria);
        let seconds = |ms: u64| format!("{:.1} s", ms as f64 / 1_000.0);
        let faults = self.faults.iter().map(|it| {
            let node = it.node.clone().unwrap_or_else(|| "all".to_owned());
            let until = it.until_ms.map_or_else(|| NONE.to_owned(), seconds);
            vec![it.what.clone(), node, seconds(it.at_ms), until]
        });
        table(&mut text, "Faults", &["what", "node", "from", "until"], faults);
        self.write_liars(&mut text);
        self.write_phases(&mut text);
        self.write_searches(&mut text);
        self.write_series(&mut text);
        text
    }

    fn write_liars(&self, text: &mut String) {
        let liars = self.liars.iter().map(|it| {
            let banned = it.banned_after_seconds.map_or_else(|| "no".to_owned(), |it| format!("{it:.1} s"));
            vec![
                it.node.clone(),
                it.liar.clone(),
                it.lie.clone(),
                format!("{:.1} s", it.at_ms as f64 / 1_000.0),
                banned,
                it.reason.clone().unwrap_or_else(|| NONE.to_owned()),
                number(it.score),
                it.failures.to_string(),
            ]
        });
        let heads = ["node", "liar", "lie", "given at", "banned after", "why", "last score", "failures"];
        table(text, "Liars, and what nodes thought of them", &heads, liars);
    }

    fn write_searches(&self, text: &mut String) {
        for search in &self.searches {
            let steps = search.steps.iter().map(|it| {
                let numbers = [Some(it.offered), Some(it.achieved), it.p50_ms, it.p99_ms].map(number);
                [numbers.to_vec(), vec![it.verdict().to_owned()]].concat()
            });
            let title = format!("Search of {}: {}", cell(&search.name), search.found());
            let heads = ["offered/s", "achieved/s", "p50 ms", "p99 ms", "verdict"];
            table(text, &title, &heads, steps);
        }
    }

    fn write_phases(&self, text: &mut String) {
        let rates = self.phases.iter().map(|it| {
            let numbers = [it.offered, it.sent, it.committed, it.capacity].map(|rate| number(Some(rate)));
            [
                vec![it.name.clone(), it.what.clone()],
                numbers.to_vec(),
                vec![it.given_up.to_string(), it.limit().to_owned()],
            ]
            .concat()
        });
        let heads = [
            "phase",
            "load",
            "offered/s",
            "sent/s",
            "committed/s",
            "generators can send/s",
            "given up",
            "limit",
        ];
        table(text, "Phases", &heads, rates);
        let late = self.phases.iter().flat_map(|phase| {
            phase.latencies.iter().map(|it| {
                let of = |value: fn(&Percentiles) -> f64| number(it.ms.as_ref().map(value));
                vec![
                    phase.name.clone(),
                    it.of.clone(),
                    it.ms.map_or(0, |ms| ms.count).to_string(),
                    it.failed.to_string(),
                    of(|ms| ms.p50),
                    of(|ms| ms.p90),
                    of(|ms| ms.p95),
                    of(|ms| ms.p99),
                    of(|ms| ms.max),
                ]
            })
        });
        let heads = ["phase", "of", "count", "failed", "p50", "p90", "p95", "p99", "max"];
        table(text, "Latencies of phases, ms from when each was due", &heads, late);
        self.write_audits(text);
    }

    fn write_audits(&self, text: &mut String) {
        let audits = self.phases.iter().filter_map(|phase| Some((&phase.name, phase.audit?)));
        let audits = audits.map(|(name, it)| {
            let counts = [
                it.receipts,
                it.receipts_failed,
                it.receipts_wrong,
                it.duplicates,
                it.lost,
                it.foreign,
                it.balances,
                it.balances_wrong,
            ];
            [vec![name.clone()], counts.map(|count| count.to_string()).to_vec()].concat()
        });
        let heads = [
            "phase",
            "receipts compared",
            "failed",
            "wrong",
            "committed twice",
            "lost",
            "foreign",
            "balances compared",
            "wrong",
        ];
        table(text, "Audit of phases, to the last unit", &heads, audits);
    }

    fn write_head(&self, text: &mut String) {
        let failed = self.criteria.iter().filter(|it| !it.passed).count();
        let verdict = match (failed, self.criteria.len()) {
            (_, 0) => "no criteria".to_owned(),
            (0, _) => "passed".to_owned(),
            (failed, all) => format!("{failed} of {all} criteria failed"),
        };
        let place = &self.environment;
        let build = if place.debug { ", debug build" } else { "" };
        let _ = write!(
            text,
            "# {}: {verdict}\n\n`{}`\n\nCommit {}, version {}{build}; {} cores, {}, {} MiB, Linux {}; {:.1} s, {} nodes.\n",
            cell(&self.scenario),
            self.command.replace(['`', '\n'], " "),
            cell(&place.commit),
            cell(&place.version),
            place.cores,
            cell(&place.processor),
            place.memory_mib,
            cell(&place.kernel),
            self.seconds,
            self.nodes.len()
        );
    }

    fn write_series(&self, text: &mut String) {
        let load = self.load.iter().filter_map(|it| Some((&it.name, it.total?))).map(|(name, total)| {
            let latency = |of: fn(&Percentiles) -> f64| number(total.latency_ms.as_ref().map(of));
            let quantiles =
                [latency(|it| it.p50), latency(|it| it.p90), latency(|it| it.p99), latency(|it| it.max)];
            [vec![name.clone(), number(Some(total.per_second))], quantiles.to_vec()].concat()
        });
        let heads = ["load", "1/s", "p50 ms", "p90 ms", "p99 ms", "max ms"];
        table(text, "Load, whole run", &heads, load);
        let load = self.load.iter().map(|it| {
            let medians = [&it.per_second, &it.p50, &it.p90, &it.p99].map(|series| number(series.median()));
            [vec![it.name.clone()], medians.to_vec(), vec![number(it.p99.max())]].concat()
        });
        let heads = ["load", "1/s", "p50 ms", "p90 ms", "p99 ms", "worst p99 ms"];
        table(text, "Load, medians over all seconds", &heads, load);
        let curves = self.catch_up.iter().map(|it| {
            let most = it.behind.max();
            vec![it.node.clone(), it.mode.clone(), number(most), number(it.seconds)]
        });
        table(text, "Catch-up", &["node", "mode", "batches behind", "seconds"], curves);
        let nodes = self.nodes.iter().map(|it| {
            let pair =
                |series: &Series, most: Option<f64>| format!("{}, {}", number(series.median()), number(most));
            let own = |series: &Series| pair(series, series.max());
            let measured =
                [own(&it.head_age), own(&it.cpu), pair(&it.memory, it.memory_max()), own(&it.disk)];
            [
                vec![it.name.clone(), number(it.head.last())],
                measured.to_vec(),
                vec![it.unanswered.to_string()],
            ]
            .concat()
        });
        let heads =
            ["node", "head", "head age, s", "CPU, cores", "memory, MiB", "disk, MiB", "unanswered samples"];
        table(text, "Nodes, median and maximum (for memory, the kernel's own peak)", &heads, nodes);
        let busy = |node: &NodeSeries| named(node, |node| node.stages.as_slice(), Series::median);
        let stages = self.nodes.iter().filter(|node| !node.stages.is_empty()).map(busy);
        table(text, "Stages, median of busy cores", &["node", "stages"], stages);
        let scores = |node: &NodeSeries| named(node, |node| node.peers.as_slice(), Series::last);
        let peers = self.nodes.iter().filter(|node| !node.peers.is_empty()).map(scores);
        table(text, "Peers' last scores, 0 to 1000", &["node", "scores that it gave"], peers);
    }
}

/// Makes a row of a node with its values by name: `fetch 0.1, check 0.2`.
fn named(
    node: &NodeSeries,
    list: fn(&NodeSeries) -> &[super::NamedSeries],
    value: fn(&Series) -> Option<f64>,
) -> Vec<String> {
    let values = list(node).iter().map(|it| format!("{} {}", it.name, number(value(&it.series))));
    vec![node.name.clone(), values.collect::<Vec<_>>().join(", ")]
}

/// Writes a table with a title; nothing if it has no rows.
fn table(text: &mut String, title: &str, heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let rows: Vec<_> = rows.into_iter().collect();
    if rows.is_empty() {
        return;
    }
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let _ = write!(text, "\n## {title}\n\n| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        text.push_str(&line(&row.iter().map(|it| cell(it)).collect::<Vec<_>>()));
    }
}

/// Escapes a text so that it stays in its cell, whatever the names in a scenario.
fn cell(text: &str) -> String {
    // A backslash before a bar would cancel the bar's escape.
    text.replace(['\n', '\r'], " ").replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;")
}

/// Formats a value as tables of figures do.
fn number(value: Option<f64>) -> String {
    match value {
        None => NONE.to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(value) => super::number(value),
    }
}

#[cfg(test)]
mod tests {
    use crate::report::run::tests::report;

    /// Goal: a reader finds the verdict first, then the harness's own figures, then every series.
    #[test]
    fn a_report_reads_from_verdict_to_series() {
        let text = report().to_markdown();
        assert!(text.starts_with("# primary-killed: 1 of 2 criteria failed\n"), "{text}");
        let parts = [
            "## Harness",
            "## Criteria\n",
            "## Faults",
            "## Liars",
            "## Phases",
            "## Latencies",
            "## Audit",
            "## Search of main: 400/s sustained",
            "## Load",
            "## Catch-up",
            "## Nodes",
            "## Stages",
            "## Peers",
        ];
        let places: Vec<_> =
            parts.iter().map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"))).collect();
        assert!(places.is_sorted(), "{text}");
        assert!(text.contains("| head-age | **FAILED** | 3.1 s | at most 2 s |"), "{text}");
        assert!(text.contains("| kill | validator-0 | 0.5 s | 0.9 s |"), "{text}");
        assert!(
            text.contains(
                "| late | 0a1b2c3d4e | forged_heads | 0.5 s | 1.5 s | no quorum | 0 | 2 |\n\
                 | late | ffffffffff | snapshot_drip | 0.5 s | no | – | 200 | 0 |"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "| 400 | 398 | 90.00 | 700 | sustained |\n| 800 | 510 | – | – | too few were committed in time |"
            ),
            "{text}"
        );
        assert!(text.contains("| relay overhead p99, us | – |"), "{text}");
        assert!(text.contains("| validator-0 | fetch 2.00 |"), "{text}");
        assert!(text.contains("| generators | **they were the limit, not the nodes** |"), "{text}");
        assert!(text.contains("| main | read fullnode-0 by WebSocket | 3 | 1 | 5.00 | 7.00 |"), "{text}");
        assert!(text.contains("| main | 59880 | 0 | 0 | 0 | 0 | 2 | 812 | 0 |"), "{text}");
    }

    #[test]
    fn a_name_stays_in_its_cell() {
        let mut report = report();
        report.nodes[0].name = "a|b\n<c>\\|d".into();
        assert!(report.to_markdown().contains("| a\\|b &lt;c>\\\\\\|d |"), "{}", report.to_markdown());
    }
}
