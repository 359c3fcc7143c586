//! [`Bans`]: which peers are banned, until when, and why. It only decides; the caller supplies the clock and does the
//! I/O.

use std::{cmp::Reverse, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::{sync::Notify, time::Instant};

use crate::{PeerId, refusal::clipped_to};

/// Longest ban. A longer ban is practically endless, and adding it to the current time might overflow.
const BAN_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Longest ban that a node imposes by itself, for a proven lie. A longer one is cut to this length: otherwise a clock
/// that jumped during a restart could make a ban endless.
pub const OWN_BAN_MAX: Duration = Duration::from_secs(3_600);

/// Maximum number of bans remembered at once: keys are free, so a peer could cause any number of bans. When the table
/// is full, the node's own ban that ends first is dropped. An operator's ban is dropped only if the node has no ban of
/// its own.
pub(crate) const BANS_MAX: usize = 4_096;

/// Maximum number of the operator's bans at once. It leaves room for the node's own bans, and keeps the file of the
/// operator's bans small.
pub(crate) const ORDERED_BANS_MAX: usize = 1_024;

/// Maximum number of the node's own bans that are stored across restarts, so that lies under ever new keys do not fill
/// the disk. The bans that end first are left out.
pub(crate) const OWN_BANS_KEPT_MAX: usize = 1_024;

/// Maximum bytes of a reason that are kept: a MiB for all bans.
const REASON_BYTES_MAX: usize = 256;

/// Who banned a peer.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum BannedBy {
    /// This node, for what the peer sent.
    Node,
    /// Its operator.
    Operator,
}

impl BannedBy {
    /// The serialized name.
    pub fn name(self) -> &'static str {
        match self {
            BannedBy::Node => "node",
            BannedBy::Operator => "operator",
        }
    }
}

impl fmt::Display for BannedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BannedBy::Node => "this node",
            BannedBy::Operator => "this node's operator",
        })
    }
}

/// When a ban ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum BanEnd {
    /// At this moment.
    At(Instant),
    /// Only once the operator lifts it.
    Never,
}

impl BanEnd {
    /// The moment, or `None` if the ban never ends.
    pub fn instant(self) -> Option<Instant> {
        match self {
            BanEnd::At(at) => Some(at),
            BanEnd::Never => None,
        }
    }

    /// The end of a ban of this duration, a year at most.
    pub(crate) fn after(duration: Duration, now: Instant) -> BanEnd {
        BanEnd::At(now + duration.min(BAN_MAX))
    }

    fn is_after(self, now: Instant) -> bool {
        self > BanEnd::At(now)
    }
}

/// A current ban.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ban {
    /// The banned peer.
    pub peer: PeerId,
    /// Whether the operator or the node banned it.
    pub by: BannedBy,
    /// The reason: at most 256 bytes, without control characters.
    pub reason: String,
    /// When the ban ends.
    pub until: BanEnd,
}

/// All bans of a node.
#[derive(Debug, Default)]
pub(crate) struct Bans {
    standing: BTreeMap<PeerId, BanRecord>,
    /// Notified when the node's own bans change, for the task that stores them.
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct BanRecord {
    by: BannedBy,
    reason: String,
    until: BanEnd,
    /// The node's own reason, if the node prolonged the operator's ban. Such a ban is also stored as one of the node's
    /// own, because the operator's order has the earlier end.
    prolonged: Option<String>,
}

impl BanRecord {
    /// Whether the node itself set the ban's end.
    fn is_own(&self) -> bool {
        self.by == BannedBy::Node || self.prolonged.is_some()
    }

    fn own_ban(&self, peer: PeerId) -> Ban {
        let reason = self.prolonged.as_ref().unwrap_or(&self.reason).clone();
        Ban { peer, by: BannedBy::Node, reason, until: self.until }
    }
}

impl Bans {
    /// Bans a peer. Of two bans, the later end and the operator's reason win. The node's own ban lasts an hour at most.
    pub(crate) fn add(&mut self, peer: PeerId, by: BannedBy, reason: &str, until: BanEnd, now: Instant) {
        let until = match by {
            BannedBy::Node => until.min(BanEnd::after(OWN_BAN_MAX, now)),
            BannedBy::Operator => until,
        };
        match self.standing.get_mut(&peer).filter(|standing| standing.until.is_after(now)) {
            Some(standing) if by < standing.by => {
                if until > standing.until {
                    standing.until = until;
                    standing.prolonged = Some(clipped_to(reason, REASON_BYTES_MAX));
                    self.changed.notify_one();
                }
                return;
            }
            Some(standing) if by == standing.by && until < standing.until => return,
            standing => {
                let is_own = by == BannedBy::Node || standing.as_ref().is_some_and(|it| it.is_own());
                let until = standing.map_or(until, |standing| standing.until.max(until));
                let reason = clipped_to(reason, REASON_BYTES_MAX);
                self.standing.insert(peer, BanRecord { by, reason, until, prolonged: None });
                if is_own {
                    self.changed.notify_one();
                }
            }
        }
        if self.standing.len() > BANS_MAX {
            self.standing.retain(|_, standing| standing.until.is_after(now));
        }
        if self.standing.len() > BANS_MAX
            && let Some(first) =
                self.standing.iter().min_by_key(|(_, it)| (it.by, it.until)).map(|(id, _)| *id)
        {
            self.standing.remove(&first);
        }
    }

    /// Lifts a ban. Returns false if the peer is not banned.
    pub(crate) fn lift(&mut self, peer: PeerId, now: Instant) -> bool {
        let Some(standing) = self.standing.remove(&peer) else { return false };
        if standing.is_own() {
            self.changed.notify_one();
        }
        standing.until.is_after(now)
    }

    /// Returns the handle that is notified when the node's own bans change. Each change wakes one waiter.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// The end of a peer's ban, or `None` if it is not banned.
    pub(crate) fn until(&self, peer: PeerId, now: Instant) -> Option<BanEnd> {
        self.standing.get(&peer).map(|standing| standing.until).filter(|until| until.is_after(now))
    }

    /// Whether the operator may ban this peer: a new ban needs room, a repeated one does not.
    pub(crate) fn has_room_for_order(&self, peer: PeerId, now: Instant) -> bool {
        let ordered = |it: &BanRecord| it.by == BannedBy::Operator && it.until.is_after(now);
        self.standing.get(&peer).is_some_and(ordered)
            || self.standing.values().filter(|it| ordered(it)).count() < ORDERED_BANS_MAX
    }

    /// The ban of a peer, or `None`.
    pub(crate) fn of(&self, peer: PeerId, now: Instant) -> Option<Ban> {
        let BanRecord { by, reason, until, .. } = self.standing.get(&peer)?;
        until.is_after(now).then(|| Ban { peer, by: *by, reason: reason.clone(), until: *until })
    }

    /// The node's own bans that are stored across restarts, including the operator's bans that the node prolonged. If
    /// there are too many, the bans that end last are stored.
    pub(crate) fn own(&self, now: Instant) -> Vec<Ban> {
        let own = self.standing.iter().filter(|(_, it)| it.is_own() && it.until.is_after(now));
        let mut own: Vec<Ban> = own.map(|(peer, it)| it.own_ban(*peer)).collect();
        own.sort_by_key(|ban| Reverse(ban.until));
        own.truncate(OWN_BANS_KEPT_MAX);
        own
    }

    /// The current bans: the operator's first, and in each group the longest first.
    pub(crate) fn list(&self, now: Instant) -> Vec<Ban> {
        let mut bans: Vec<Ban> = self.standing.keys().filter_map(|peer| self.of(*peer, now)).collect();
        bans.sort_by_key(|ban| Reverse((ban.by, ban.until)));
        bans
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.standing.len()
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;
    use tokio::time::timeout;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn peer(n: u32) -> PeerId {
        let mut key = [7; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        PublicKey(key)
    }

    /// Goal: strangers that make a key for every lie neither displace the operator's bans nor fill the memory.
    #[test]
    fn the_operators_bans_outlive_a_flood_of_others() {
        let (mut bans, now) = (Bans::default(), Instant::now());
        bans.add(peer(0), BannedBy::Operator, "mine", BanEnd::after(MINUTE, now), now);
        for n in 1..BANS_MAX as u32 + 10 {
            bans.add(
                peer(n),
                BannedBy::Node,
                &"lied\n".repeat(200),
                BanEnd::after(MINUTE + Duration::from_secs(n.into()), now),
                now,
            );
        }
        assert_eq!(bans.len(), BANS_MAX);
        let list = bans.list(now);
        assert_eq!(
            (list[0].peer, list[0].by, list[0].reason.as_str()),
            (peer(0), BannedBy::Operator, "mine")
        );
        assert!(list[1..].is_sorted_by_key(|ban| Reverse(ban.until)));
        assert!(list.iter().all(|ban| ban.reason.len() <= REASON_BYTES_MAX && !ban.reason.contains('\n')));
        assert!(bans.until(peer(1), now).is_none(), "the ban that would have ended first went");
    }

    /// Goal: a ban never gets shorter. The operator's bans stay apart from the node's own, which are dropped first.
    #[test]
    fn the_longer_ban_stands_until_it_ends_or_is_lifted() {
        let (mut bans, now) = (Bans::default(), Instant::now());
        let of = |bans: &Bans| {
            let Ban { by, reason, until, .. } = bans.of(peer(1), now).unwrap();
            (by, reason, until.instant().unwrap() - now)
        };
        bans.add(peer(1), BannedBy::Node, "a lie", BanEnd::after(3 * MINUTE, now), now);
        bans.add(peer(1), BannedBy::Node, "another", BanEnd::after(MINUTE, now), now);
        assert_eq!(of(&bans), (BannedBy::Node, "a lie".into(), 3 * MINUTE));
        bans.add(peer(1), BannedBy::Operator, "mine", BanEnd::after(MINUTE, now), now);
        assert_eq!(of(&bans), (BannedBy::Operator, "mine".into(), 3 * MINUTE));
        bans.add(peer(1), BannedBy::Node, "a lie", BanEnd::after(4 * MINUTE, now), now);
        assert_eq!(of(&bans), (BannedBy::Operator, "mine".into(), 4 * MINUTE));
        bans.add(peer(1), BannedBy::Operator, "longer", BanEnd::after(Duration::MAX, now), now);
        assert_eq!(of(&bans), (BannedBy::Operator, "longer".into(), BAN_MAX));
        assert!(bans.lift(peer(1), now) && !bans.lift(peer(1), now));
        bans.add(peer(1), BannedBy::Operator, "mine", BanEnd::after(MINUTE, now), now);
        let later = now + MINUTE;
        assert!(bans.until(peer(1), later).is_none() && bans.list(later).is_empty());
        bans.add(peer(1), BannedBy::Node, "a lie", BanEnd::after(MINUTE, later), later);
        assert_eq!(bans.of(peer(1), later).unwrap().by, BannedBy::Node, "the other has ended");
        assert!(!bans.lift(peer(1), later + MINUTE), "it has ended by itself");
    }

    /// Goal: a ban without an end outlasts all others, and the operator's bans have a bound of their own.
    #[test]
    fn a_ban_without_an_end_stands_until_it_is_lifted() {
        let (mut bans, now) = (Bans::default(), Instant::now());
        let much_later = now + 3 * BAN_MAX;
        bans.add(peer(1), BannedBy::Operator, "for good", BanEnd::Never, now);
        bans.add(peer(1), BannedBy::Operator, "an hour", BanEnd::after(MINUTE, now), now);
        assert_eq!(bans.until(peer(1), much_later), Some(BanEnd::Never));
        bans.add(peer(2), BannedBy::Operator, "a year", BanEnd::after(Duration::MAX, now), now);
        let listed: Vec<_> = bans.list(now).into_iter().map(|ban| ban.peer).collect();
        assert_eq!(listed, [peer(1), peer(2)]);
        assert!(bans.lift(peer(1), much_later) && bans.until(peer(1), now).is_none());
        for n in 0..ORDERED_BANS_MAX as u32 {
            assert!(bans.has_room_for_order(peer(n), now), "{n}");
            bans.add(peer(n), BannedBy::Operator, "mine", BanEnd::Never, now);
        }
        let last = peer(ORDERED_BANS_MAX as u32);
        bans.add(last, BannedBy::Node, "a lie", BanEnd::after(MINUTE, now), now);
        assert!(!bans.has_room_for_order(last, now) && bans.has_room_for_order(peer(7), now));
    }

    /// Goal: a ban by the node itself lasts an hour at most, whatever end is read from a file. Of many, the longest are
    /// kept.
    #[test]
    fn own_bans_are_bounded_in_time_and_number() {
        let (mut bans, now) = (Bans::default(), Instant::now());
        bans.add(peer(0), BannedBy::Node, "a lie", BanEnd::Never, now);
        bans.add(peer(1), BannedBy::Node, "a lie", BanEnd::after(Duration::MAX, now), now);
        let hour = Some(BanEnd::At(now + OWN_BAN_MAX));
        assert_eq!((bans.until(peer(0), now), bans.until(peer(1), now)), (hour, hour));
        bans.add(peer(2), BannedBy::Operator, "mine", BanEnd::Never, now);
        for n in 0..OWN_BANS_KEPT_MAX as u64 {
            let until = BanEnd::after(Duration::from_secs(n + 1), now);
            bans.add(peer(n as u32 + 3), BannedBy::Node, "a lie", until, now);
        }
        let own = bans.own(now);
        assert!(own.len() == OWN_BANS_KEPT_MAX && own.iter().all(|ban| ban.by == BannedBy::Node));
        let is_kept = |n| own.iter().any(|ban| ban.peer == peer(n));
        assert!(is_kept(0) && is_kept(1) && is_kept(5) && !is_kept(3) && !is_kept(4));
    }

    /// Goal: the task that stores the node's own bans is woken for each change of them, and for no other change.
    #[tokio::test]
    async fn changes_of_own_bans_are_told() {
        let (mut bans, now) = (Bans::default(), Instant::now());
        let changed = bans.changed();
        let is_told = async || timeout(Duration::ZERO, changed.notified()).await.is_ok();
        let end = |minutes: u32| BanEnd::after(minutes * MINUTE, now);
        bans.add(peer(1), BannedBy::Operator, "mine", end(3), now);
        bans.add(peer(1), BannedBy::Node, "a shorter ban", end(2), now);
        assert!(!is_told().await && bans.own(now).is_empty() && bans.lift(peer(1), now) && !is_told().await);
        bans.add(peer(2), BannedBy::Node, "a lie", end(3), now);
        assert!(is_told().await && !is_told().await);
        bans.add(peer(2), BannedBy::Node, "a shorter ban", end(2), now);
        assert!(!is_told().await);
        bans.add(peer(2), BannedBy::Operator, "mine by now", end(1), now);
        assert!(is_told().await && bans.own(now).is_empty());
        bans.add(peer(3), BannedBy::Node, "a lie", end(1), now);
        assert!(is_told().await && bans.lift(peer(3), now) && is_told().await);
    }

    /// Goal: the operator banned a peer for a short time. A lie of the peer prolongs the ban, also across a restart,
    /// until the operator's next order.
    #[tokio::test]
    async fn a_lie_that_prolongs_an_order_is_kept() {
        let (mut bans, now) = (Bans::default(), Instant::now());
        let changed = bans.changed();
        let is_told = async || timeout(Duration::ZERO, changed.notified()).await.is_ok();
        let end = |minutes: u32| BanEnd::after(minutes * MINUTE, now);
        bans.add(peer(1), BannedBy::Operator, "mine", end(1), now);
        bans.add(peer(1), BannedBy::Node, "a lie", end(5), now);
        assert!(is_told().await);
        let own = bans.own(now);
        let lie = Ban { peer: peer(1), by: BannedBy::Node, reason: "a lie".into(), until: end(5) };
        assert_eq!(own, [lie]);
        // Restarts after the order has ended, and before.
        for order in [None, Some(end(1))] {
            let mut again = Bans::default();
            if let Some(until) = order {
                again.add(peer(1), BannedBy::Operator, "mine", until, now);
            }
            again.add(peer(1), BannedBy::Node, &own[0].reason, own[0].until, now);
            assert_eq!((again.until(peer(1), now), again.own(now)), (Some(end(5)), own.clone()));
        }
        bans.add(peer(1), BannedBy::Operator, "longer", end(9), now);
        assert!(is_told().await && bans.own(now).is_empty(), "the order has the later end");
        bans.add(peer(1), BannedBy::Node, "a lie", end(10), now);
        assert!(is_told().await && bans.lift(peer(1), now) && is_told().await && bans.own(now).is_empty());
    }
}
