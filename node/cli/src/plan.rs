//! `slipstream plan`: what each way to the head would cost a running node, and how it would start without a ledger.

use clap::Args;
use miette::Result;
use slipstream_status::NodeStatus;
use slipstream_sync::plan::{EmptyPlan, RangesStatus, WayStatus};

use super::{
    ask::{ask, parse},
    output::print,
    rows::Rows,
    status::{
        NodeArgs,
        units::{count, duration},
    },
};

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Print the plan as JSON: `sync.plan` of the status
    #[arg(long)]
    json: bool,
}

pub(super) fn plan(args: &PlanArgs) -> Result<()> {
    let node = args.node.address()?;
    let status: NodeStatus = parse(&ask(&node, "/v1/status")?)?;
    match args.json {
        true => print(&serde_json::to_string_pretty(&status.sync.plan).expect("a plan is plain data")),
        false => print(shown(&status).trim_end()),
    }
}

fn shown(status: &NodeStatus) -> String {
    let (sync, mut rows) = (&status.sync, Rows::default());
    let plan = &sync.plan;
    let ahead = match plan.batches {
        0 => "nothing".into(),
        batches => {
            format!("{batches} batches, {} transactions", count(plan.transactions as f64))
        }
    };
    rows.add("ahead", Some(ahead));
    rows.add("does", Some(format!("{} (mode {})", sync.phase, sync.mode.name())));
    rows.add("because", Some(sync.reason.clone()).filter(|reason| !reason.is_empty()));
    rows.add("eta", sync.eta_seconds.map(duration));
    plan.ways.iter().for_each(|way| rows.add(&format!("  {}", way.way.name()), Some(told(way))));
    for RangesStatus { first, last, way, stage } in &plan.ranges {
        rows.add("under way", Some(format!("{first} to {last} by {}, in {}", way.name(), stage.name())));
    }
    if let Some(empty) = &plan.if_empty {
        let EmptyPlan { transactions, way, reason, ways } = empty;
        let way = way.map_or("nothing", |way| way.name());
        let ledger = count(*transactions as f64);
        rows.add("if empty", Some(format!("{way}, for a ledger of {ledger} transactions")));
        rows.add("because", Some(reason.clone()));
        ways.iter().for_each(|way| rows.add(&format!("  {}", way.way.name()), Some(told(way))));
    }
    rows.0
}

/// The cost of a way, or why it is not available.
fn told(WayStatus { seconds, bound, snapshot, why_not, .. }: &WayStatus) -> String {
    let price = seconds.map(|seconds| {
        let bound = bound.map_or_else(String::new, |bound| format!(", bound by {bound}"));
        let by = snapshot.map_or_else(String::new, |number| format!(" by snapshot {number}"));
        format!("{}{by}{bound}", duration(seconds))
    });
    let why_not = why_not.as_ref().map(|why| format!("not taken: {why}"));
    price.into_iter().chain(why_not).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slipstream_status::fixture;

    use super::*;

    /// Goal: an operator sees the cost of each way, the work in progress, and what an empty node would do.
    #[test]
    fn each_way_has_its_price_or_its_reason() {
        let price = |way: &str, seconds: f64| json!({ "way": way, "seconds": seconds, "bound": "execution", "snapshot": null, "why_not": null });
        let barred = json!({ "way": "delta", "seconds": 8.5, "bound": "cpu", "snapshot": null, "why_not": "sync.forbid names delta" });
        let snapshot = json!({ "way": "snapshot", "seconds": 1.04, "bound": "network", "snapshot": 1_900, "why_not": null });
        let none = json!({ "way": "range_delta", "seconds": null, "bound": null, "snapshot": null, "why_not": "no peer offers a snapshot" });
        let plan = json!({
            "batches": 2_000, "transactions": 680_000, "gas": 14_000_000_000_u64,
            "ways": [price("replay", 40.8), barred, none],
            "ranges": [{ "first": 1, "last": 64, "way": "replay", "stage": "execute" }],
            "if_empty": { "transactions": 680_000, "way": "snapshot", "reason": "the snapshot takes 1.0 s", "ways": [snapshot] },
        });
        let sync =
            json!({ "phase": "replay", "reason": "replay takes 40.8 s", "plan": plan, "eta_seconds": 41.2 });
        let text = shown(&fixture::status(json!({ "sync": sync })));
        for line in [
            "ahead        2000 batches, 680 k transactions",
            "does         replay (mode auto)",
            "  replay     41 s, bound by execution",
            "  delta      8.5 s, bound by cpu; not taken: sync.forbid names delta",
            "  range_delta not taken: no peer offers a snapshot",
            "under way    1 to 64 by replay, in execute",
            "if empty     snapshot, for a ledger of 680 k transactions",
            "  snapshot   1.0 s by snapshot 1900, bound by network",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
