//! Converts the deliveries of loads and nodes to results of phases and orders.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    load::{Ending, LoadSummary, Source},
    scenario::{
        engine::phase::{self, PhaseEnd},
        model::Phase,
        names::Names,
    },
};

/// Returns the result of a phase, with names of nodes instead of their addresses. The error says why the load failed.
pub(super) fn phase_end(
    phase: &Phase,
    names: &Names,
    urls: &BTreeMap<&str, &str>,
    ending: Ending,
) -> Result<PhaseEnd, String> {
    let planned = phase.read_from.as_ref().and_then(|name| names.find(name).first().copied());
    let planned = planned.or_else(|| names.find_all(&phase.to).first().copied());
    let planned = planned.map_or("", |place| names.name(place));
    let followers = names.find_all(&phase.followers);
    let named = |summary: &mut LoadSummary| {
        // The planned node may have been down when the load began: then commits were read from another.
        let first = urls.get(summary.commits_from.as_str()).copied().unwrap_or(planned);
        let follows_itself = followers.iter().any(|place| names.name(*place) == first);
        rename(summary, urls);
        phase::name_first(summary, first, first, follows_itself);
    };
    match ending {
        Ending::Run { begin_ms, mut summary } => {
            named(&mut summary);
            Ok(phase::ran(phase, begin_ms, &summary))
        }
        Ending::Search { begins_ms, mut saturation } => {
            saturation.steps.iter_mut().for_each(named);
            Ok(phase::searched(phase, &begins_ms, &saturation))
        }
        Ending::Failed(why) => Err(why),
        Ending::Taken { .. } | Ending::Orders { .. } => Err("it brought no figures".to_owned()),
    }
}

/// Returns the failure that a node reports, or that its report is missing.
pub(super) fn undone(node: &Source, ending: Option<Ending>) -> Option<String> {
    match ending {
        Some(Ending::Orders { failed }) => failed.map(|why| format!("{node}: {why}")),
        _ => Some(format!("{node}: it did not tell whether its orders were carried out")),
    }
}

/// Returns the announced orders to the primary that not exactly one node carried out.
pub(super) fn not_taken_once(
    orders: &BTreeSet<String>,
    heard: &BTreeMap<String, BTreeSet<String>>,
) -> Vec<String> {
    let told = |order: &String| {
        let takers: Vec<&str> = heard.get(order).into_iter().flatten().map(String::as_str).collect();
        match takers[..] {
            [_] => None,
            [] => Some(format!("no validator took the order {order}: none was the primary at that moment")),
            _ => Some(format!("{} took the order {order}, which is for one", takers.join(" and "))),
        }
    };
    orders.iter().filter_map(told).collect()
}

/// Replaces the addresses of APIs, by which loads know nodes, with names.
fn rename(summary: &mut LoadSummary, urls: &BTreeMap<&str, &str>) {
    let name = |url: &str| urls.get(url).copied().unwrap_or(url).to_owned();
    summary.reads.iter_mut().for_each(|reads| reads.node = name(&reads.node));
    summary.news.iter_mut().for_each(|news| news.node = name(&news.node));
    summary.follow_ms = renamed(std::mem::take(&mut summary.follow_ms), name);
    summary.follow_per_second = renamed(std::mem::take(&mut summary.follow_per_second), name);
    summary.follow_points = renamed(std::mem::take(&mut summary.follow_points), name);
}

fn renamed<T>(map: BTreeMap<String, T>, name: impl Fn(&str) -> String) -> BTreeMap<String, T> {
    map.into_iter().map(|(url, value)| (name(&url), value)).collect()
}
