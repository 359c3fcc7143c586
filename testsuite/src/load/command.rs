//! [`LoadCommand`]: the command line of `slipnet load`.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::{Found, LoadOptions, Mix, Rate, Rule, SaturationOptions, Workload, awaited};
use crate::{
    accounts::{Account, DEFAULT_SEED},
    manifest::Manifest,
    output,
    progress::Progress,
    rpc::Rpc,
    time::duration,
};

/// Sends transactions and reads at the times of a schedule, and reports how long they took.
#[derive(Args, Debug)]
pub struct LoadCommand {
    /// The kind of transactions.
    #[arg(long, value_enum, default_value_t = Workload::Transfers)]
    workload: Workload,
    /// Several kinds by weight, instead of one: transfers=7,erc20=2,amm=1.
    #[arg(long, conflicts_with = "workload")]
    mix: Option<Mix>,
    /// Transactions per second; for a ramp, those at the start.
    #[arg(long, default_value_t = 500)]
    tps: u32,
    /// Changes the rate linearly to this one.
    #[arg(long, conflicts_with_all = ["burst", "saturate"])]
    ramp_to: Option<u32>,
    /// Peaks above --tps: PEAK:PERIOD:LENGTH, such as 5000:10s:1s.
    #[arg(long, value_parser = burst, conflicts_with = "saturate")]
    burst: Option<Burst>,
    /// Searches for the highest rate that the chain sustains, starting at --tps; --duration applies to each step.
    #[arg(long)]
    saturate: bool,
    /// With --saturate: the highest 99th percentile of commit latency of a sustained step, in milliseconds.
    #[arg(long, default_value_t = Rule::default().p99_ms_max, requires = "saturate", value_parser = milliseconds)]
    p99_max_ms: f64,
    /// The duration of the load: 30s, 5m, or a number of seconds.
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// With --saturate: the longest duration of the search.
    #[arg(long, requires = "saturate", value_parser = duration)]
    search_for: Option<Duration>,
    /// Waits up to this long until each node answers and has a batch, for a load that starts together with its chain.
    /// Without it, the load ends if no --api answers.
    #[arg(long, value_parser = duration)]
    wait: Option<Duration>,
    /// Reads per second at each node, half over HTTP and half over WebSocket; also subscribes to its heads.
    #[arg(long, default_value_t = 0)]
    reads: u32,
    /// A directory of access lists (NUMBER.rlp.gz), for the workload access-lists.
    #[arg(long)]
    access_lists: Option<PathBuf>,
    /// The manifest.json of a devnet, which names its nodes and accounts.
    #[arg(long, conflicts_with = "api")]
    manifest: Option<PathBuf>,
    /// The API of a node; may be repeated. Commits are read from the first one. Without --follower, the last of several
    /// is the follower.
    #[arg(long)]
    api: Vec<String>,
    /// The API of a follower, instead of the last --api; may be repeated. It receives transactions only if it is also
    /// an --api.
    #[arg(long, requires = "api")]
    follower: Vec<String>,
    /// The number of sending accounts.
    #[arg(long, default_value_t = 200)]
    accounts: u32,
    /// Skips this many accounts of the seed, which other loads use.
    #[arg(long, default_value_t = 0, conflicts_with = "manifest")]
    skip_accounts: u32,
    /// The seed of the accounts if there is no manifest.
    #[arg(long, default_value = DEFAULT_SEED)]
    seed: String,
    /// The seed of all random choices: receivers, amounts, and the order of the workloads.
    #[arg(long, default_value_t = 1)]
    random: u64,
    /// Connections; each has one batch in flight.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Generator processes; one for every four cores if not given.
    #[arg(long)]
    generators: Option<usize>,
    /// Receipts are audited this many batches behind the head while the load goes on. If the nodes prune, it must be
    /// less than they keep.
    #[arg(long, default_value_t = LoadOptions::default().audit_behind)]
    audit_behind: u64,
    /// Also writes the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The rate, period and length of peaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Burst {
    peak: u32,
    period_ms: u64,
    peak_ms: u64,
}

impl LoadCommand {
    /// Sends the load, and prints its figures.
    ///
    /// # Errors
    /// If the load cannot run, commits nothing, or leaves receipts or balances that differ from the expected ones.
    pub async fn run(self, progress: Progress) -> Result<()> {
        let (options, json) = (self.options()?, self.json.as_deref());
        if let Some(longest) = self.wait {
            awaited::all(&options, longest).await?;
        }
        if self.saturate {
            let rule = Rule { p99_ms_max: self.p99_max_ms, ..Rule::default() };
            let until = self.search_for.and_then(|longest| Instant::now().checked_add(longest));
            let search = SaturationOptions { rule, start: self.tps, step: self.duration, until };
            let saturation = super::saturate(&options, search, progress).await?;
            show(&saturation, json)?;
            ensure!(
                !matches!(saturation.found, Found::AtLeast { rate: 0 }),
                "the generators were the limit at the first rate: start with a lower --tps, or use more --generators"
            );
            let is_clean = saturation.steps.iter().all(|step| step.audit.is_clean());
            ensure!(is_clean, "the audit of a step found differences: --json lists them");
            return Ok(());
        }
        let summary = super::run(&options, progress).await?;
        show(&summary, json)?;
        ensure!(summary.committed > 0, "nothing was committed");
        let audit = &summary.audit;
        ensure!(audit.is_clean(), "the audit found differences: {}", serde_json::to_string(audit)?);
        Ok(())
    }

    fn rate(&self) -> Rate {
        match (self.ramp_to, self.burst) {
            (Some(to), _) => Rate::Ramp { from: self.tps, to },
            (None, Some(Burst { peak, period_ms, peak_ms })) => {
                Rate::Burst { base: self.tps, peak, period_ms, peak_ms }
            }
            (None, None) => Rate::constant(self.tps),
        }
    }

    fn options(&self) -> Result<LoadOptions> {
        let defaults = match &self.manifest {
            Some(path) => LoadOptions::for_manifest(&Manifest::load(path)?, self.accounts as usize)?,
            None => {
                ensure!(!self.api.is_empty(), "name the chain with --manifest FILE or --api URL");
                let apis = self.api.iter().map(|url| Rpc::new(url)).collect::<Result<Vec<_>>>()?;
                let last = self
                    .skip_accounts
                    .checked_add(self.accounts)
                    .context("the sum of --skip-accounts and --accounts is too large")?;
                let mut accounts = Account::derive_many(&self.seed, last);
                let accounts = accounts.split_off(self.skip_accounts as usize);
                let followers = match self.follower.is_empty() {
                    false => self.follower.iter().map(|url| Rpc::new(url)).collect::<Result<Vec<_>>>()?,
                    true => apis.last().filter(|_| apis.len() > 1).cloned().into_iter().collect(),
                };
                let followers = followers.into_iter().map(|rpc| (rpc.url().to_owned(), rpc)).collect();
                LoadOptions { accounts, submit: apis, followers, ..LoadOptions::default() }
            }
        };
        Ok(LoadOptions {
            workload: self.mix.clone().unwrap_or_else(|| self.workload.into()),
            rate: self.rate(),
            duration: self.duration,
            connections: self.connections,
            generators: self.generators.unwrap_or(defaults.generators),
            reads_per_second: self.reads,
            access_lists: self.access_lists.clone(),
            audit_behind: self.audit_behind,
            seed: self.random,
            ..defaults
        })
    }
}

/// Prints a result, and writes it as JSON to a file if one is given.
fn show(result: &(impl fmt::Display + Serialize), json: Option<&Path>) -> Result<()> {
    output::print(&result.to_string())?;
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(result)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn milliseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ms) if ms.is_finite() && ms > 0.0 => Ok(ms),
        _ => Err(format!("{text}: expected milliseconds above 0, such as 2000")),
    }
}

fn burst(text: &str) -> Result<Burst, String> {
    let form = || format!("{text}: expected PEAK:PERIOD:LENGTH, such as 5000:10s:1s");
    let parts: Vec<&str> = text.split(':').collect();
    let [peak, period, length] = parts[..] else { return Err(form()) };
    let peak = peak.parse().map_err(|_| form())?;
    let ms = |text| duration(text).map(|time| time.as_millis() as u64);
    Ok(Burst { peak, period_ms: ms(period)?, peak_ms: ms(length)? })
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<LoadCommand, clap::Error> {
        let command = LoadCommand::augment_args(Command::new("load").no_binary_name(true));
        LoadCommand::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn the_flags_of_earlier_releases_mean_what_they_meant() {
        let text = "--workload erc20 --tps 100 --duration 5s --api a:1 --api b:2 --accounts 3 --seed s --connections 2";
        let command = parse(&text.split(' ').collect::<Vec<_>>()).unwrap();
        let options = command.options().unwrap();
        assert_eq!((options.workload, options.rate), (Workload::Erc20.into(), Rate::constant(100)));
        assert_eq!((options.accounts.len(), options.submit.len(), options.connections), (3, 2, 2));
        assert_eq!(options.followers[0].0, "http://b:2");
    }

    /// Goal: parallel loads have separate accounts, and a follower named as such receives no transactions.
    #[test]
    fn a_load_leaves_accounts_and_the_follower_to_others() {
        let text =
            "--api a:1 --api b:2 --follower c:3 --follower d:4 --accounts 2 --skip-accounts 3 --seed s";
        let command = parse(&text.split(' ').collect::<Vec<_>>()).unwrap();
        let options = command.options().unwrap();
        let all = Account::derive_many("s", 5);
        let addresses = |accounts: &[Account]| accounts.iter().map(|it| it.address).collect::<Vec<_>>();
        assert_eq!(addresses(&options.accounts), addresses(&all[3..]));
        assert_eq!((options.submit.len(), options.followers.len()), (2, 2));
        assert_eq!(
            options.followers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["http://c:3", "http://d:4"]
        );
        assert!(parse(&["--follower", "c:3"]).is_err());
        assert!(parse(&["--search-for", "10s"]).is_err());
    }

    #[test]
    fn rates_are_ramps_and_bursts() {
        let rate = |text: &str| parse(&text.split(' ').collect::<Vec<_>>()).map(|command| command.rate());
        assert_eq!(rate("--tps 10 --ramp-to 90").unwrap(), Rate::Ramp { from: 10, to: 90 });
        let burst = Rate::Burst { base: 10, peak: 90, period_ms: 10_000, peak_ms: 500 };
        assert_eq!(rate("--tps 10 --burst 90:10s:500ms").unwrap(), burst);
        assert!(rate("--burst 90:10s").unwrap_err().to_string().contains("PEAK:PERIOD:LENGTH"));
        assert!(rate("--burst 90:10s:1s --ramp-to 5").is_err());
        assert!(rate("--mix transfers,amm --workload erc20").is_err());
        assert!(rate("--saturate --p99-max-ms 500").is_ok());
        assert!(rate("--saturate --p99-max-ms NaN").unwrap_err().to_string().contains("above 0"));
    }
}
