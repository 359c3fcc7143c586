//! [`Order`]: an event for one node at a time, or for a period.

use std::{fmt, str::FromStr, time::Duration};

use alloy_primitives::Address;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use slipstream_types::PublicKey;

use super::programs;
use crate::{
    scenario::{ATTACKS, fault::PROGRAM_LIES},
    time,
};

/// The suffix of an order to the primary.
const PRIMARY: &str = "primary";
/// The syntax of all kinds of orders.
const KINDS: &str = "join, kill, pause, restart, wipe, full-disk, old-data, export-snapshot, upgrade=NAME, bit-flip=N, slow-disk-ms=N, clock-jump-ms=N, \
                     add-validator=KEY:0xADDRESS, remove-validator=KEY, lie=LIE, lying-peers=ATTACK:N and attack=ATTACK";
/// The most liars of one order: each takes a place among the node's peers.
const LIARS_MAX: u32 = 16;

/// An order: `FROM..UNTIL,WHAT`, such as `30s..34s,kill`. UNTIL may be omitted, and `,primary` may follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// When it begins, after the common start.
    pub from: Duration,
    /// When it ends; never if `None`.
    pub until: Option<Duration>,
    /// What is done.
    pub what: What,
    /// Whether it applies only if the node is the primary when it begins.
    pub to_primary: bool,
}

/// What happens to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// The node starts for the first time.
    Join,
    /// The node is killed, and restarted when the order ends.
    Kill,
    /// The process is paused until the order ends.
    Pause,
    /// The node is stopped, and restarted when the order ends; at once if it has no end.
    Restart,
    /// The node is stopped, and restarted with the program of this name.
    Upgrade(String),
    /// The node is killed, loses its data, and is restarted as after [`What::Restart`].
    Wipe,
    /// The node is stopped, one bit of its state is flipped, and it is restarted. The number determines the bit.
    BitFlip(u64),
    /// When the order ends, the node's data is restored to that of the beginning. The node is stopped and restarted at
    /// both times.
    OldData,
    /// The node's disk is full until the order ends.
    FullDisk,
    /// Each flush of the node's disk takes this many milliseconds longer.
    SlowDisk(u64),
    /// The node's wall clock is ahead by this many milliseconds, or behind if negative.
    ClockJump(i64),
    /// The node exports its newest snapshot, beside its data.
    ExportSnapshot,
    /// The node gets the owner's transaction that adds this validator, with the recipient of its fees.
    AddValidator(PublicKey, Address),
    /// The node gets the owner's transaction that removes this validator.
    RemoveValidator(PublicKey),
    /// A program replaces the node, with its key, and tells this lie until the order ends.
    Lie(&'static str),
    /// The node gets this number of lying peers, by this attack of the siege, until the order ends.
    LyingPeers(&'static str, u32),
    /// This attack of the siege runs against the node until the order ends.
    Attack(&'static str),
}

impl What {
    /// Whether it needs programs beside the node.
    pub(crate) fn has_attackers(&self) -> bool {
        matches!(self, What::LyingPeers(..) | What::Attack(_))
    }

    /// Whether the node's process ends at the beginning of the order, even if it restarts at once.
    pub(super) fn ends_node(&self) -> bool {
        match self {
            What::Kill | What::Restart | What::Wipe | What::BitFlip(_) | What::OldData | What::Upgrade(_) => {
                true
            }
            What::Join | What::Pause | What::FullDisk | What::SlowDisk(_) | What::ClockJump(_) => false,
            What::ExportSnapshot | What::AddValidator(..) | What::RemoveValidator(_) => false,
            What::Lie(_) | What::LyingPeers(..) | What::Attack(_) => false,
        }
    }
}

impl Order {
    /// Whether the node that carries it out reports it to the judge: otherwise the affected node is unknown, and a lie
    /// excuses only the liar.
    pub(crate) fn is_told(&self) -> bool {
        self.to_primary && matches!(self.what, What::Lie(_) | What::LyingPeers(..) | What::OldData)
    }

    pub(super) fn has_begun(&self, moment: Option<Duration>) -> bool {
        moment.is_some_and(|moment| self.from <= moment)
    }

    pub(super) fn holds_at(&self, moment: Option<Duration>) -> bool {
        self.has_begun(moment) && self.until.is_none_or(|until| moment < Some(until))
    }

    /// Whether the order is lost if the operator starts at this moment: it applies only once, at its time, or is over.
    pub(super) fn is_missed_at(&self, moment: Option<Duration>) -> bool {
        let is_once = match self.what {
            What::Wipe
            | What::BitFlip(_)
            | What::Upgrade(_)
            | What::OldData
            | What::ExportSnapshot
            | What::AddValidator(..)
            | What::RemoveValidator(_) => true,
            What::Restart => self.until.is_none(),
            _ => false,
        };
        let is_over = self.until.is_some_and(|until| Some(until) <= moment);
        self.has_begun(moment) && (is_once || is_over)
    }

    /// Whether it begins after the moment `after`, and not after `moment`.
    pub(super) fn begins_within(&self, after: Option<Duration>, moment: Option<Duration>) -> bool {
        self.has_begun(moment) && !self.has_begun(after)
    }
}

/// Checks that each copy of the node's data can be kept until it is restored: there is only one at a time.
///
/// # Errors
/// If two orders would need a copy at the same time. Orders to the primary may affect the same node.
pub(crate) fn check_copies(orders: &[Order]) -> Result<()> {
    let mut copies: Vec<&Order> = orders.iter().filter(|order| order.what == What::OldData).collect();
    copies.sort_by_key(|order| order.from);
    for pair in copies.windows(2) {
        let [first, second] = pair else { continue };
        ensure!(
            first.until.is_some_and(|until| until < second.from),
            "{second} begins before {first} has put its data back, and a node keeps one copy: let it begin later"
        );
    }
    Ok(())
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Order> {
        let form = || format!("{text}: expected FROM..UNTIL,WHAT, as 30s..34s,kill or 30s..,restart");
        let mut parts = text.split(',');
        let (from, until) = parts.next().and_then(|times| times.split_once("..")).with_context(form)?;
        let what = parts.next().with_context(form)?;
        let to_primary = match parts.next() {
            None => false,
            Some(PRIMARY) => true,
            Some(other) => bail!("{text}: {other}: only {PRIMARY} may stand there"),
        };
        ensure!(parts.next().is_none(), form());
        let moment = |part: &str| time::duration(part).map_err(|error| anyhow!("{text}: {error}"));
        let order = Order {
            from: moment(from)?,
            until: if until.is_empty() { None } else { Some(moment(until)?) },
            what: what.parse::<What>().with_context(|| text.to_owned())?,
            to_primary,
        };
        ensure!(
            order.until.is_none_or(|until| order.from < until),
            "{text}: ends before it begins: swap the two times"
        );
        Ok(order)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms..", self.from.as_millis())?;
        if let Some(until) = self.until {
            write!(f, "{}ms", until.as_millis())?;
        }
        write!(f, ",{}", self.what)?;
        if self.to_primary { write!(f, ",{PRIMARY}") } else { Ok(()) }
    }
}

impl FromStr for What {
    type Err = Error;

    fn from_str(text: &str) -> Result<What> {
        let (name, number) = text.split_once('=').unwrap_or((text, ""));
        let wrong = || format!("{text}: expected a whole number behind {name}=");
        let no_count = || format!("{text}: expected {name}=ATTACK:N, with N from 1 to {LIARS_MAX}");
        let no_key = || format!("{text}: expected a validator's key behind {name}=, and for fees :0xADDRESS");
        match (name, number) {
            ("join", "") => Ok(What::Join),
            ("kill", "") => Ok(What::Kill),
            ("pause", "") => Ok(What::Pause),
            ("restart", "") => Ok(What::Restart),
            ("wipe", "") => Ok(What::Wipe),
            ("full-disk", "") => Ok(What::FullDisk),
            ("old-data", "") => Ok(What::OldData),
            ("export-snapshot", "") => Ok(What::ExportSnapshot),
            ("upgrade", to) => programs::check(to).map(|()| What::Upgrade(to.to_owned())),
            ("bit-flip", draw) => Ok(What::BitFlip(draw.parse().ok().with_context(wrong)?)),
            ("slow-disk-ms", ms) => Ok(What::SlowDisk(ms.parse().ok().with_context(wrong)?)),
            ("clock-jump-ms", ms) => Ok(What::ClockJump(ms.parse().ok().with_context(wrong)?)),
            ("add-validator", added) => {
                let (key, fees) = added.split_once(':').with_context(no_key)?;
                let key: PublicKey = key.parse().ok().with_context(no_key)?;
                Ok(What::AddValidator(key, fees.parse().ok().with_context(no_key)?))
            }
            ("lie", lie) => Ok(What::Lie(known(&PROGRAM_LIES, lie)?)),
            ("attack", attack) => Ok(What::Attack(known(ATTACKS, attack)?)),
            ("lying-peers", liars) => {
                let (attack, count) = liars.split_once(':').with_context(no_count)?;
                let count = count.parse::<u32>().ok().filter(|count| (1..=LIARS_MAX).contains(count));
                Ok(What::LyingPeers(known(ATTACKS, attack)?, count.with_context(no_count)?))
            }
            ("remove-validator", key) => Ok(What::RemoveValidator(key.parse().ok().with_context(no_key)?)),
            _ => bail!("{text}: it is one of {KINDS}"),
        }
    }
}

/// Returns the name from the list.
fn known(list: &[&'static str], name: &str) -> Result<&'static str> {
    let found = list.iter().find(|known| **known == name).copied();
    found.with_context(|| format!("{name}: there are {}", list.join(", ")))
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Join => f.write_str("join"),
            What::Kill => f.write_str("kill"),
            What::Pause => f.write_str("pause"),
            What::Restart => f.write_str("restart"),
            What::Wipe => f.write_str("wipe"),
            What::FullDisk => f.write_str("full-disk"),
            What::OldData => f.write_str("old-data"),
            What::Upgrade(to) => write!(f, "upgrade={to}"),
            What::BitFlip(draw) => write!(f, "bit-flip={draw}"),
            What::SlowDisk(ms) => write!(f, "slow-disk-ms={ms}"),
            What::ClockJump(ms) => write!(f, "clock-jump-ms={ms}"),
            What::ExportSnapshot => f.write_str("export-snapshot"),
            What::AddValidator(key, fees) => write!(f, "add-validator={key}:{fees}"),
            What::RemoveValidator(key) => write!(f, "remove-validator={key}"),
            What::Lie(lie) => write!(f, "lie={lie}"),
            What::LyingPeers(attack, count) => write!(f, "lying-peers={attack}:{count}"),
            What::Attack(attack) => write!(f, "attack={attack}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(texts: &[&str]) -> Vec<Order> {
        texts.iter().map(|text| text.parse().unwrap_or_else(|error| panic!("{error:#}"))).collect()
    }

    /// Goal: an order survives the round trip through a Compose file.
    #[test]
    fn an_order_survives_its_text() {
        for text in [
            "30000ms..34000ms,kill,primary",
            "1500ms..,restart",
            "0ms..10ms,bit-flip=18446744073709551615",
            "5ms..,clock-jump-ms=-90000",
            "5ms..7ms,slow-disk-ms=200",
            "5ms..7ms,full-disk",
            "5ms..7ms,old-data",
            "5ms..,upgrade=before-2",
            "5ms..,upgrade=current,primary",
            "5ms..7ms,lie=double-vote",
            "5ms..7ms,lying-peers=corrupt-answers:2",
            "5ms..7ms,attack=junk-transactions",
            "5ms..,export-snapshot",
        ] {
            assert_eq!(text.parse::<Order>().unwrap().to_string(), text);
        }
        let (key, fees) = (PublicKey([0xab; 32]), Address::repeat_byte(0xcd));
        for what in [What::AddValidator(key, fees), What::RemoveValidator(key)] {
            let order = Order { from: Duration::from_secs(1), until: None, what, to_primary: false };
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        let order: Order = "30s..1m,pause".parse().unwrap();
        assert_eq!((order.from.as_secs(), order.until), (30, Some(Duration::from_secs(60))));
    }

    #[test]
    fn a_wrong_order_says_what_is_wrong() {
        for (text, part) in [
            ("kill", "expected FROM..UNTIL,WHAT"),
            ("30s..", "expected FROM..UNTIL,WHAT"),
            ("30s..,kill,primary,now", "expected FROM..UNTIL,WHAT"),
            ("30s..,kill,validator-0", "validator-0: only primary may stand there"),
            ("30s..20s,kill", "swap the two times"),
            ("30d..,kill", "d: the units are"),
            ("30s..,shoot", "shoot: it is one of join"),
            ("30s..,kill=1", "kill=1: it is one of join"),
            ("30s..,upgrade", "is no name of a program"),
            ("30s..,upgrade=../sh", "../sh is no name of a program"),
            ("30s..,bit-flip", "expected a whole number behind bit-flip="),
            ("30s..,lie=often", "often: there are double-vote"),
            ("30s..,attack=nobody", "nobody: there are slow-headers"),
            ("30s..,lying-peers=corrupt-answers", "expected lying-peers=ATTACK:N"),
            ("30s..,lying-peers=corrupt-answers:17", "with N from 1 to 16"),
            ("30s..,add-validator=ab", "expected a validator's key behind add-validator="),
            ("30s..,remove-validator=ab", "expected a validator's key behind remove-validator="),
        ] {
            let error = format!("{:#}", text.parse::<Order>().unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Goal: an operator that begins late knows which orders are lost.
    #[test]
    fn what_is_missed_is_known() {
        for (text, missed) in [
            ("5s..,wipe", true),
            ("5s..20s,wipe", true),
            ("5s..,restart", true),
            ("5s..,upgrade=next", true),
            ("5s..20s,restart", false),
            ("5s..10s,kill", true),
            ("5s..11s,attack=junk-transactions", false),
            ("5s..,join", false),
            ("5s..,pause", false),
            ("11s..,wipe", false),
        ] {
            let order: Order = text.parse().unwrap();
            assert_eq!(order.is_missed_at(Some(Duration::from_secs(10))), missed, "{text}");
            assert!(!order.is_missed_at(None), "{text}");
        }
    }

    /// Goal: orders that would need two copies of a node's data at a time are refused: the second copy would replace
    /// the first.
    #[test]
    fn one_copy_is_kept_at_a_time() {
        for (second, is_refused) in
            [("20s..30s,old-data", true), ("40s..50s,old-data,primary", true), ("41s..50s,old-data", false)]
        {
            let orders = orders(&[second, "10s..40s,old-data", "15s..30s,kill"]);
            assert_eq!(check_copies(&orders).is_err(), is_refused, "{second}");
        }
    }
}
