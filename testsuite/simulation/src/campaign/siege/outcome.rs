//! [`Outcome`]: an attack's harm to the honest users, and the summary of all attacks.

use std::fmt;

use slipnet::{
    quantiles::quantile,
    report::{Aim, Figure, Report},
};

use super::{attack::AttackInfo, honest::User};

/// The targets, as in the other benches: the honest users' p99 over that without an attack, the node's memory, and the
/// share of attacks survived.
const RATIO_MAX: f64 = 3.0;
const MEMORY_MIB_MAX: f64 = 768.0;
const SURVIVED_MIN: f64 = 1.0;
/// The reported quantiles of the waits.
const SHARES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// Waits of each honest user in milliseconds, sorted, in the order of [`User::ALL`].
pub(super) type Waits = [Vec<f64>; 3];

/// The machine's own contribution to the waits: p99, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Machine {
    /// How late the honest users got a core; [`Outcome::waits`] includes it.
    pub(super) late_ms: f64,
    /// The duration of a short write to the disk that all nodes share.
    pub(super) disk_ms: f64,
}

impl Machine {
    fn worst(self, other: Machine) -> Machine {
        Machine { late_ms: self.late_ms.max(other.late_ms), disk_ms: self.disk_ms.max(other.disk_ms) }
    }
}

/// The measurements of the honest users without an attack, in order.
#[derive(Clone, Debug)]
pub(super) struct Quiet(Vec<Waits>);

impl Quiet {
    /// Returns the quantile `share` of one user's waits: the median over the measurements. So a measurement on a busy
    /// machine can neither hide an attack nor invent one. Returns `None` if the user had no waits.
    fn quantile(&self, user: User, share: f64) -> Option<f64> {
        let mut looks: Vec<f64> =
            self.0.iter().filter_map(|waits| quantile(&waits[user as usize], share)).collect();
        looks.sort_by(f64::total_cmp);
        // Of an even number of measurements, the lower middle one: in doubt the ratio is greater.
        looks.get(looks.len().checked_sub(1)? / 2).copied()
    }
}

/// The result of an attack.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) info: AttackInfo,
    /// The waits during the attack.
    pub(super) waits: Waits,
    /// The machine's contribution during the attack.
    pub(super) machine: Machine,
    /// The peak memory of the victim, or of a joiner if that is higher.
    pub(super) memory_mib: f64,
    /// CPU time of the victim and of the attackers, in cores.
    pub(super) victim_cores: f64,
    pub(super) attacker_cores: f64,
    /// Seconds after the attack until victim and follower were at the head; `None` if they were late.
    pub(super) catch_up_s: Option<f64>,
    /// Seconds that a fresh fullnode took to the head during the attack. The outer `None` means that none joined, the
    /// inner one that it was late.
    pub(super) join_s: Option<Option<f64>>,
    /// The complaints of honest nodes about each other.
    pub(super) blamed: Vec<String>,
    /// The number of acknowledged transfers for which the follower has no receipt.
    pub(super) lost: usize,
    /// How the victim's process ended, if it did.
    pub(super) ended: Option<String>,
    /// The attackers' attempts, and the successful ones.
    pub(super) tally: (u64, u64),
}

impl Outcome {
    /// Returns the reasons why the node lost; empty if it survived.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if let Some(ended) = &self.ended {
            failures.push(format!("the victim exited: {ended}"));
        }
        if self.catch_up_s.is_none() {
            failures.push("the victim or its follower did not reach the head".to_owned());
        }
        if self.join_s == Some(None) {
            failures.push("the joining node did not reach the head".to_owned());
        }
        failures.extend(self.blamed.iter().cloned());
        if self.lost > 0 {
            failures.push(format!("{} acknowledged transfers are lost", self.lost));
        }
        failures
    }

    pub(super) fn survived(&self) -> bool {
        self.failures().is_empty()
    }

    /// Returns the p99 under attack over the p99 without, for the honest user that suffered most.
    pub(super) fn ratio(&self, quiet: &Quiet) -> f64 {
        let p99 = |user: User| quantile(&self.waits[user as usize], 0.99);
        let ratio = |user| Some(p99(user)? / quiet.quantile(user, 0.99)?.max(f64::MIN_POSITIVE));
        User::ALL.into_iter().filter_map(ratio).fold(0.0, f64::max)
    }

    fn figures(&self, quiet: &Quiet) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |name: &str, unit, value: f64| {
            figures.push(Figure::new(format!("{}.{name}", self.info.name), unit, vec![value]));
        };
        add("p99_ratio", "ratio", self.ratio(quiet));
        add("memory_mib", "MiB", self.memory_mib);
        add("survived", "1", f64::from(u8::from(self.survived())));
        for user in User::ALL {
            for (name, share) in SHARES {
                if let Some(value) = quantile(&self.waits[user as usize], share) {
                    add(&format!("{}_{name}_ms", user.name()), "ms", value);
                }
            }
        }
        if let Some(seconds) = self.catch_up_s {
            add("catch_up_s", "s", seconds);
        }
        if let Some(Some(seconds)) = self.join_s {
            add("join_s", "s", seconds);
        }
        add("blamed", "1", self.blamed.len() as f64);
        add("lost", "1", self.lost as f64);
        add("victim_cores", "cores", self.victim_cores);
        add("late_ms", "ms", self.machine.late_ms);
        add("disk_ms", "ms", self.machine.disk_ms);
        add("attacker_cores", "cores", self.attacker_cores);
        add("tried", "1", self.tally.0 as f64);
        add("done", "1", self.tally.1 as f64);
        figures
    }
}

/// The result of a campaign.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The measurements without an attack, before and after each surface.
    pub(super) quiet: Quiet,
    /// The machine's contribution to these measurements: the worst of all.
    pub(super) machine: Machine,
    /// Seconds that a fresh fullnode took to the head without an attack, if measured.
    pub(super) join_s: Option<f64>,
    pub(super) outcomes: Vec<Outcome>,
    /// Attacks that the attackers could not start, and why.
    pub(super) untried: Vec<(&'static str, String)>,
}

impl Summary {
    /// Starts a summary with the first measurement without an attack.
    pub(super) fn new((quiet, machine): (Waits, Machine)) -> Summary {
        Summary {
            quiet: Quiet(vec![quiet]),
            machine,
            join_s: None,
            outcomes: Vec::new(),
            untried: Vec::new(),
        }
    }

    /// Adds a further measurement without an attack.
    pub(super) fn add_quiet(&mut self, (more, machine): (Waits, Machine)) {
        self.machine = self.machine.worst(machine);
        self.quiet.0.push(more);
    }

    /// Returns the attacks that the node lost to, and the untried attacks, whose outcome is unknown.
    pub fn lost_to(&self) -> Vec<&'static str> {
        let lost = self.outcomes.iter().filter(|outcome| !outcome.survived());
        lost.map(|outcome| outcome.info.name).chain(self.untried.iter().map(|(name, _)| *name)).collect()
    }

    /// Returns all figures; the headline ones first, under the names of their targets.
    pub fn report(&self) -> Report {
        let mut figures = self.headlines();
        for user in User::ALL {
            for (name, share) in SHARES {
                if let Some(value) = self.quiet.quantile(user, share) {
                    figures.push(Figure::new(format!("quiet.{}_{name}_ms", user.name()), "ms", vec![value]));
                }
            }
        }
        figures.push(Figure::new("quiet.late_ms", "ms", vec![self.machine.late_ms]));
        figures.push(Figure::new("quiet.disk_ms", "ms", vec![self.machine.disk_ms]));
        figures.extend(self.join_s.map(|seconds| Figure::new("quiet.join_s", "s", vec![seconds])));
        figures.extend(self.outcomes.iter().flat_map(|outcome| outcome.figures(&self.quiet)));
        Report { bench: "siege", runs: 1, figures, notes: Vec::new() }
    }

    fn headlines(&self) -> Vec<Figure> {
        let worst = |value: &dyn Fn(&Outcome) -> f64| self.outcomes.iter().map(value).fold(0.0, f64::max);
        let survived = self.outcomes.iter().filter(|outcome| outcome.survived()).count();
        let share = survived as f64 / (self.outcomes.len() + self.untried.len()).max(1) as f64;
        let one = |name, unit, value, aim| Figure::new(name, unit, vec![value]).aim(aim);
        vec![
            one(
                "honest_p99_ratio",
                "ratio",
                worst(&|outcome| outcome.ratio(&self.quiet)),
                Aim::AtMost(RATIO_MAX),
            ),
            one("memory_mib", "MiB", worst(&|outcome| outcome.memory_mib), Aim::AtMost(MEMORY_MIB_MAX)),
            one("attacks_survived", "1", share, Aim::AtLeast(SURVIVED_MIN)),
        ]
    }
}

/// The table, attack by attack, and the headline figures below it.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "waits of honest users in ms, p50/p99; late: p99 of their wait for a core; disk: p99 of a short write; node and att.: CPU of the victim and of the attackers, in cores"
        )?;
        writeln!(
            f,
            "{:<22} {:>11} {:>11} {:>11} {:>6} {:>5} {:>5} {:>5} {:>5} {:>5} {:>6} {:>5} {:>5} {:>8}/{:<8}",
            "attack",
            "wallet",
            "reader",
            "follower",
            "ratio",
            "late",
            "disk",
            "MiB",
            "catch",
            "join",
            "blamed",
            "node",
            "att.",
            "tried",
            "done"
        )?;
        let [wallet, reader, follower] =
            User::ALL.map(|user| spread(|share| self.quiet.quantile(user, share)));
        writeln!(
            f,
            "{:<22} {wallet:>11} {reader:>11} {follower:>11} {:>12.0} {:>5.0} {:>11} {:>5}",
            "none",
            self.machine.late_ms,
            self.machine.disk_ms,
            "",
            seconds(self.join_s)
        )?;
        self.outcomes.iter().try_for_each(|outcome| row(f, outcome, &self.quiet))?;
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.survived()) {
            writeln!(f, "{} is NOT SURVIVED:", outcome.info.name)?;
            outcome.failures().iter().try_for_each(|failure| writeln!(f, "  {failure}"))?;
        }
        for (name, why) in &self.untried {
            writeln!(f, "{name} could not be tried: {why}")?;
        }
        let all = self.outcomes.len() + self.untried.len();
        let notes = vec![format!(
            "{} of {all} attacks survived: nodes reached the head afterwards, blamed no honest node, and lost no acknowledged transfer",
            all - self.lost_to().len(),
        )];
        Report { bench: "siege", runs: 1, figures: self.headlines(), notes }.fmt(f)
    }
}

/// Formats the p50 and the p99 of the waits.
fn spread(wait: impl Fn(f64) -> Option<f64>) -> String {
    let [p50, p99] =
        SHARES.map(|(_, share)| wait(share).map_or_else(|| "-".to_owned(), |wait| format!("{wait:.0}")));
    format!("{p50}/{p99}")
}

fn seconds(time: Option<f64>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.1}"))
}

fn row(f: &mut fmt::Formatter<'_>, outcome: &Outcome, quiet: &Quiet) -> fmt::Result {
    let spread_of = |user| spread(|share| quantile(&outcome.waits[user as usize], share));
    let [wallet, reader, follower] = User::ALL.map(spread_of);
    write!(f, "{:<22} {wallet:>11} {reader:>11} {follower:>11}", outcome.info.name)?;
    let in_time = |time: Option<f64>| if time.is_some() { seconds(time) } else { "NEVER".to_owned() };
    let join = outcome.join_s.map_or_else(|| seconds(None), in_time);
    writeln!(
        f,
        " {:>6.1} {:>5.0} {:>5.0} {:>5.0} {:>5} {join:>5} {:>6} {:>5.2} {:>5.2} {:>8}/{:<8}{}",
        outcome.ratio(quiet),
        outcome.machine.late_ms,
        outcome.machine.disk_ms,
        outcome.memory_mib,
        in_time(outcome.catch_up_s),
        if outcome.blamed.is_empty() { "no" } else { "YES" },
        outcome.victim_cores,
        outcome.attacker_cores,
        outcome.tally.0,
        outcome.tally.1,
        if outcome.survived() { "" } else { " NOT SURVIVED" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::siege::attack::AttackSurface;

    fn quiet() -> Waits {
        [vec![1.0, 10.0], vec![2.0], vec![]]
    }

    fn summary() -> Summary {
        Summary::new((quiet(), Machine::default()))
    }

    fn outcome(p99: f64) -> Outcome {
        Outcome {
            info: AttackInfo::new(AttackSurface::Http, "slow", "is slow"),
            waits: [vec![1.0, p99], vec![3.0], vec![5.0]],
            machine: Machine { late_ms: 1.0, disk_ms: 2.0 },
            memory_mib: 100.0,
            victim_cores: 0.5,
            attacker_cores: 0.1,
            catch_up_s: Some(0.2),
            join_s: None,
            blamed: Vec::new(),
            lost: 0,
            ended: None,
            tally: (7, 5),
        }
    }

    /// Goal: the worst attack decides, and within an attack the user that suffered most; a user without quiet waits is
    /// left out.
    #[test]
    fn the_worst_counts() {
        let summary = Summary { outcomes: vec![outcome(20.0), outcome(70.0)], ..summary() };
        let ratios = summary.outcomes.iter().map(|outcome| outcome.ratio(&summary.quiet));
        assert_eq!(ratios.collect::<Vec<_>>(), [2.0, 7.0]);
        let figures = summary.headlines();
        assert_eq!(figures.iter().map(Figure::value).collect::<Vec<_>>(), [7.0, 100.0, 1.0]);
        assert_eq!(
            figures.iter().map(Figure::name).collect::<Vec<_>>(),
            ["honest_p99_ratio", "memory_mib", "attacks_survived"]
        );
        assert!(summary.lost_to().is_empty());
        let text = summary.to_string();
        assert!(text.contains("<= 3.00 MISSED") && text.contains("2 of 2 attacks survived"), "{text}");
    }

    /// Goal: a measurement on a busy machine hides no attack.
    #[test]
    fn one_bad_look_decides_nothing() {
        let mut summary = Summary { outcomes: vec![outcome(70.0)], ..summary() };
        let bad = Machine { late_ms: 300.0, disk_ms: 40.0 };
        summary.add_quiet(([vec![700.0], vec![900.0], vec![]], bad));
        summary.add_quiet((quiet(), Machine { late_ms: 2.0, disk_ms: 60.0 }));
        assert_eq!(summary.headlines()[0].value(), 7.0);
        assert_eq!(summary.machine, Machine { late_ms: 300.0, disk_ms: 60.0 });
        assert_eq!(summary.quiet.quantile(User::Follower, 0.5), None);
    }

    #[test]
    fn each_kind_of_harm_is_named() {
        let mut hurt = outcome(20.0);
        (hurt.catch_up_s, hurt.join_s, hurt.lost) = (None, Some(None), 2);
        hurt.blamed = vec!["follower banned victim: x".to_owned()];
        hurt.ended = Some("signal 9".to_owned());
        assert_eq!(hurt.failures().len(), 5);
        let summary = Summary {
            outcomes: vec![hurt, outcome(20.0)],
            untried: vec![("odd", "no address".to_owned())],
            ..summary()
        };
        assert_eq!(summary.lost_to(), ["slow", "odd"]);
        assert_eq!(summary.headlines()[2].value(), 1.0 / 3.0);
        let text = summary.to_string();
        assert!(text.contains("2 acknowledged transfers are lost") && text.contains("NEVER"), "{text}");
        assert!(
            summary
                .report()
                .figures
                .iter()
                .any(|figure| figure.name() == "slow.survived" && figure.value() == 0.0)
        );
    }
}
