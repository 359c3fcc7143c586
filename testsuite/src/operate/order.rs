//! [`Order`]: what is done to a node at a time, or for a while.

use std::{fmt, str::FromStr, time::Duration};

use alloy_primitives::Address;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use slipstream_types::PublicKey;

use super::programs;
use crate::{
    scenario::{ATTACKS, fault::PROGRAM_LIES},
    time,
};

/// Stands behind an order for whoever orders the batches then.
const PRIMARY: &str = "primary";
/// What orders do, as they are written.
const KINDS: &str = "join, kill, pause, restart, wipe, full-disk, old-data, export-snapshot, upgrade=NAME, bit-flip=N, slow-disk-ms=N, clock-jump-ms=N, \
                     add-validator=KEY:0xADDRESS, remove-validator=KEY, lie=LIE, lying-peers=ATTACK:N and attack=ATTACK";
/// Liars of one order: each takes a place among the node's peers.
const LIARS_MAX: u32 = 16;

/// An order: `FROM..UNTIL,WHAT`, as `30s..34s,kill`. UNTIL may be left out, and `,primary` may follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// When it begins, after the common start.
    pub from: Duration,
    /// When it ends; never if it is not given.
    pub until: Option<Duration>,
    /// What is done.
    pub what: What,
    /// Whether it is done only if the node is the primary when it begins.
    pub to_primary: bool,
}

/// What is done to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// It starts for the first time.
    Join,
    /// It is killed, and started again when the order ends.
    Kill,
    /// Its process stands still until the order ends.
    Pause,
    /// It is asked to end, and started again when the order ends; at once if nothing ends it.
    Restart,
    /// It is asked to end, and started again as the program of this name.
    Upgrade(String),
    /// It is killed, loses what it keeps on its disk, and is started again as after [`What::Restart`].
    Wipe,
    /// It is asked to end, one bit of its state changes, and it is started again. The number decides which bit.
    BitFlip(u64),
    /// When the order ends its data are put back to what they were when it began. It is asked to end at both times, and started again.
    OldData,
    /// Its disk has no room left until the order ends.
    FullDisk,
    /// Each flush of its disk takes so many milliseconds longer.
    SlowDisk(u64),
    /// Its wall clock is ahead by so many milliseconds, or behind if they are negative.
    ClockJump(i64),
    /// It exports its newest snapshot, beside its data.
    ExportSnapshot,
    /// It is given the owner's transaction that adds this validator, whose fees go there.
    AddValidator(PublicKey, Address),
    /// It is given the owner's transaction that removes this validator.
    RemoveValidator(PublicKey),
    /// A program takes its place, with its key, and lies in this way until the order ends.
    Lie(&'static str),
    /// It is given so many peers that lie, by this attack of the siege, until the order ends.
    LyingPeers(&'static str, u32),
    /// This attack of the siege goes on against it until the order ends.
    Attack(&'static str),
}

impl What {
    /// Whether programs run beside the node for it.
    pub(crate) fn has_attackers(&self) -> bool {
        matches!(self, What::LyingPeers(..) | What::Attack(_))
    }

    /// Whether the node ends for it at its beginning, if only to start again.
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
    /// Whether the node that takes it tells whoever judges: nobody else knows which one it met, and a lie excuses the liar alone.
    pub(crate) fn is_told(&self) -> bool {
        self.to_primary && matches!(self.what, What::Lie(_) | What::LyingPeers(..) | What::OldData)
    }

    pub(super) fn has_begun(&self, moment: Option<Duration>) -> bool {
        moment.is_some_and(|moment| self.from <= moment)
    }

    pub(super) fn holds_at(&self, moment: Option<Duration>) -> bool {
        self.has_begun(moment) && self.until.is_none_or(|until| moment < Some(until))
    }

    /// Whether nothing comes of it if whatever carries it out begins at this moment: it is done once, at its time, or it is over.
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

    /// Whether it is one that begins after the first moment, and not after the second.
    pub(super) fn begins_within(&self, after: Option<Duration>, moment: Option<Duration>) -> bool {
        self.has_begun(moment) && !self.has_begun(after)
    }
}

/// Whether each copy of the node's data that is to be put back can be kept until then: there is one.
///
/// # Errors
/// If two orders would need one at a time. Those to the primary may meet the same node.
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

/// A name as the list has it.
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

    /// Goal: what a Compose file says to a node's container is what was meant.
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

    /// Goal: whoever begins late knows what it cannot make up for.
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

    /// Goal: of two copies of a node's data the second would take the place of the first.
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
