//! Finds the primary: asks all validators. Of those that claim to be primary, takes the validator with the newest view.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::join_all;

use super::{Stage, nodes::ANSWER_MAX};
use crate::{
    devnet::Status,
    scenario::names::{NodeIndex, may_validate},
};

/// How many times validators are asked which of them is primary.
const LOOKS: usize = 8;
const POLL: Duration = Duration::from_millis(250);

/// A validator's report of its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ViewReport {
    place: NodeIndex,
    /// The epoch and the view: views start over with each epoch.
    view: (u64, u64),
    /// Whether the validator has left the earlier views and waits for this one to begin.
    changing: bool,
    is_primary: bool,
}

impl ViewReport {
    /// Parses the status of a node; `None` if it only follows.
    fn of(place: NodeIndex, status: &Status) -> Option<ViewReport> {
        let consensus = status.consensus.as_ref()?;
        Some(ViewReport {
            place,
            view: (status.epoch.number, consensus["view"].as_u64().unwrap_or_default()),
            changing: consensus["changing"] == true,
            is_primary: consensus["is_primary"] == true,
        })
    }
}

/// Returns the primary of the newest view that has begun. `None` if that node does not claim it, or if most validators
/// have left that view.
///
/// A validator that is cut off stays primary of its view, because it does not hear of the next one.
fn newest(stands: &[ViewReport]) -> Option<NodeIndex> {
    let begun = stands.iter().filter(|stand| !stand.changing).map(|stand| stand.view).max()?;
    let left = stands.iter().filter(|stand| stand.view > begun).count();
    if 2 * left > stands.len() {
        return None;
    }
    let is_it = |stand: &&ViewReport| stand.is_primary && !stand.changing && stand.view == begun;
    stands.iter().find(is_it).map(|stand| stand.place)
}

impl Stage<'_> {
    /// Returns the current primary. During a view change there is none for a moment. If none appears, returns the first
    /// validator that runs and is not cut off.
    pub(super) async fn primary(&self) -> Result<NodeIndex> {
        let may_be = |place: &NodeIndex| may_validate(&self.scenario.topology, &self.names, *place);
        let running: Vec<NodeIndex> = self.running().into_iter().filter(may_be).collect();
        for _ in 0..LOOKS {
            let stands = join_all(running.iter().map(|place| self.stand(*place))).await;
            let stands: Vec<ViewReport> = stands.into_iter().flatten().collect();
            if let Some(place) = newest(&stands) {
                return Ok(place);
            }
            tokio::time::sleep(POLL).await;
        }
        self.not_cut_off(&running).first().copied().context("no validator that could be primary is running")
    }

    /// Returns the report of a node, or `None` if the node fails to answer or only follows.
    async fn stand(&self, place: NodeIndex) -> Option<ViewReport> {
        let status = tokio::time::timeout(ANSWER_MAX, self.node(place).ok()?.status()).await;
        ViewReport::of(place, &status.ok()?.ok()?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn stand(place: usize, view: u64, is_primary: bool) -> ViewReport {
        ViewReport { place: NodeIndex(place), view: (0, view), changing: false, is_primary }
    }

    /// Goal: a fault of the primary does not affect a cut-off node that is primary of a view that the others have left.
    #[test]
    fn the_newest_view_counts() {
        let (old, new) = (stand(0, 0, true), stand(1, 1, true));
        let others = [stand(2, 1, false), stand(3, 1, false)];
        let all = [old, new, others[0], others[1]];
        assert_eq!(newest(&all), Some(NodeIndex(1)));
        assert_eq!(newest(&[old, others[0], others[1]]), None, "the new one is down");
        assert_eq!(newest(&[old, stand(1, 0, false), stand(2, 0, false)]), Some(NodeIndex(0)));
        assert_eq!(newest(&[]), None);
    }

    /// Goal: while most validators move to the next view, there is no primary. One that moves alone changes nothing,
    /// even if it would be primary.
    #[test]
    fn views_that_change_have_no_primary() {
        let (old, follows) = (stand(0, 0, true), stand(1, 0, false));
        let goes = |place, is_primary| ViewReport { changing: true, ..stand(place, 7, is_primary) };
        assert_eq!(newest(&[old, follows, goes(2, true), stand(3, 0, false)]), Some(NodeIndex(0)));
        assert_eq!(newest(&[old, goes(1, true), goes(2, false), goes(3, false)]), None);
        assert_eq!(newest(&[goes(1, true), goes(2, false)]), None);
    }

    /// Goal: views start over with an epoch, and the primary of its first view is newer than any of the previous epoch.
    #[test]
    fn an_epoch_is_newer_than_any_view() {
        let status = |epoch: u64, consensus: Value| -> Status {
            serde_json::from_value(json!({
                "head": { "number": 1, "state_root": format!("0x{}", "00".repeat(32)) },
                "epoch": { "number": epoch, "validators": [] },
                "consensus": consensus,
            }))
            .unwrap()
        };
        let primary = |view: u64| json!({ "view": view, "changing": false, "is_primary": true });
        let of = |place, epoch, consensus| ViewReport::of(NodeIndex(place), &status(epoch, consensus));
        let stands: Vec<ViewReport> = [of(0, 0, primary(9)), of(1, 1, primary(0)), of(2, 1, Value::Null)]
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(stands.len(), 2, "one only follows");
        assert_eq!(newest(&stands), Some(NodeIndex(1)));
    }
}
