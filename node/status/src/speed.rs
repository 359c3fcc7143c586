//! `MachineSpeed`: the gas per second of each kind of work on this machine, and whether that suffices for the chain. It
//! is measured at the first start, and again when program, CPU or the chain's fork have changed. A file in the data
//! directory stores it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::RwLock;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use slipstream_base::{
    client_version,
    kept_file::{FileForm, KeptContent},
    tasks::TaskError,
};
use slipstream_executor::speed::{Speeds, Work, measure};
use slipstream_fair::{Rank, Workers, step_back};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{Rules, chain::Fork};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const FORM: FileForm = FileForm {
    name: "speed.json",
    damaged_name: "speed.damaged",
    version: 1,
    // The file takes 500 bytes.
    bytes_max: 64 << 10,
    loss: "cannot read the saved speed of this machine; the node measures it again",
};
/// The part of a view in which one node may execute a batch: the primary executes first, and then the others.
const VIEW_SHARE: f64 = 0.5;

/// The measurement starts this long after the node. While the node catches up, the measurement waits in steps of
/// [`WAIT`], up to [`WAIT_MAX`].
const WAIT_FIRST: Duration = Duration::from_secs(10);
const WAIT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The machine's speed, and the chain's demands on it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SpeedStatus {
    /// Gas per second of each kind of work, on one core.
    pub gas_per_second: Speeds,
    /// The kind of work that executes its gas most slowly.
    pub slowest: Work,
    /// The gas limit of a batch, according to the chain's rules.
    pub gas_limit: u64,
    /// Seconds for a batch that spends all of its gas on that kind.
    pub batch_seconds_max: f64,
    /// Seconds of a view, `consensus.view_timeout_ms`. A batch that takes more than half of them may cost its primary
    /// the view.
    pub view_seconds: f64,
}

impl SpeedStatus {
    fn of(gas_per_second: Speeds, rules: &Rules, view: Duration) -> Option<SpeedStatus> {
        let (slowest, speed) = gas_per_second.slowest()?;
        Some(SpeedStatus {
            slowest,
            gas_limit: rules.gas_limit,
            // The file may contain any number.
            batch_seconds_max: rules.gas_limit as f64 / speed.max(1) as f64,
            view_seconds: view.as_secs_f64(),
            gas_per_second,
        })
    }

    /// The chain's demand that the machine cannot meet.
    pub fn problem(&self) -> Option<String> {
        let SpeedStatus { slowest, gas_limit, batch_seconds_max, view_seconds, .. } = self;
        (*batch_seconds_max > VIEW_SHARE * view_seconds).then(|| {
            format!(
                "a batch of {gas_limit} gas, all of it {}, takes {batch_seconds_max:.1} s here, and a view lasts {view_seconds:.1} s: lower \
                 `gas_limit` by a fork, raise `consensus.view_timeout_ms` of all validators, or use a faster machine",
                slowest.name()
            )
        })
    }
}

/// The conditions under which a measurement is valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Conditions {
    program: String,
    cpu: String,
    fork: Fork,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    conditions: Conditions,
    gas_per_second: Speeds,
}

/// The speed of the node's machine; `None` until it is known.
pub struct MachineSpeed {
    data_dir: PathBuf,
    store: Store,
    view: Duration,
    speeds: RwLock<Option<Speeds>>,
}

impl MachineSpeed {
    /// The speed of the machine of the node with this data directory, not known yet. The caller holds the directory's
    /// lock.
    pub fn new(data_dir: PathBuf, store: Store, view: Duration) -> Arc<MachineSpeed> {
        Arc::new(MachineSpeed { data_dir, store, view, speeds: RwLock::default() })
    }

    /// Compares the speed with the rules of the batch after the head.
    pub fn status(&self) -> Result<Option<SpeedStatus>, StorageError> {
        let Some(speeds) = self.speeds.read().clone() else { return Ok(None) };
        Ok(SpeedStatus::of(speeds, &self.store.next_rules()?, self.view))
    }

    /// Reads the speed, or measures it once the node has caught up. Then waits for the node's end.
    pub async fn run(
        self: Arc<Self>,
        is_catching_up: impl Fn() -> bool,
        shutdown: CancellationToken,
    ) -> Result<(), TaskError> {
        let workers = Workers::new("speed", 1, Rank::Behind);
        let find_out = |may_measure| {
            let (speed, ending) = (Arc::clone(&self), shutdown.clone());
            workers.run(move || {
                step_back();
                speed.find_out(&cpu_model(), may_measure, || !ending.is_cancelled())
            })
        };
        let found = async {
            match find_out(false).await {
                Ok(Ok(false)) => {
                    await_rest(is_catching_up).await;
                    find_out(true).await
                }
                known => known,
            }
        };
        // The node's end does not wait for a low-priority thread.
        let found = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            found = found => found?,
        };
        if let Err(error) = found {
            tracing::warn!(%error, "the speed of this machine stays unknown");
        }
        shutdown.cancelled().await;
        Ok(())
    }

    /// Reads the speed, or measures it while `goes_on` returns true. Returns whether the speed is known afterwards.
    fn find_out(&self, cpu: &str, may_measure: bool, goes_on: impl Fn() -> bool) -> Result<bool, TaskError> {
        let rules = self.store.next_rules()?;
        let conditions = Conditions { program: client_version(), cpu: cpu.to_owned(), fork: rules.fork };
        let kept: KeptContent<Option<Saved>> =
            FORM.read(&self.data_dir, |text| serde_json::from_slice(text).map(Some));
        let file = FORM.establish(&self.data_dir, &kept)?;
        let before = kept.content.filter(|saved| saved.conditions == conditions);
        let speeds = match before {
            Some(saved) => saved.gas_per_second,
            None if !may_measure => return Ok(false),
            None => {
                let begun = thread_time();
                let measured = measure(rules.fork, thread_time, goes_on)?;
                let Some(gas_per_second) = measured else { return Ok(false) };
                let measured_in_ms = (thread_time() - begun).as_millis() as u64;
                tracing::info!(speed = ?gas_per_second, measured_in_ms, "measured the gas per second that this machine executes");
                let saved = Saved { version: FORM.version, conditions, gas_per_second };
                if let Err(error) = file.write(|| serde_json::to_string_pretty(&saved)) {
                    tracing::warn!(file = %file.path().display(), %error, "cannot save the speed of this machine; the next start \
                        measures it again");
                }
                saved.gas_per_second
            }
        };
        *self.speeds.write() = Some(speeds);
        if let Some(problem) = self.status()?.and_then(|status| status.problem()) {
            tracing::warn!(problem, "the chain may demand more than this machine can execute");
        }
        Ok(true)
    }
}

/// Waits until the node has caught up, because catching up needs all cores. The wait is bounded, for a node that never
/// catches up.
async fn await_rest(is_catching_up: impl Fn() -> bool) {
    let begun = Instant::now();
    tokio::time::sleep(WAIT_FIRST).await;
    while begun.elapsed() < WAIT_MAX && is_catching_up() {
        tokio::time::sleep(WAIT).await;
    }
}

/// The time for which this thread has had a core; other threads on that core do not add to it.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The CPU's model name; its architecture if it has none.
fn cpu_model() -> String {
    // The file holds some KiB per core, each with the model name.
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or(std::env::consts::ARCH, |(_, model)| model).to_owned()
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;
    use slipstream_types::ChainConfig;

    use super::*;

    /// Goal: the machine is measured once, and again on another CPU; an unreadable file costs one more measurement.
    #[test]
    fn a_measurement_is_kept_with_what_it_depends_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FORM.name);
        let store = Store::memory(&StorageConfig::default());
        store
            .initialize(&slipstream_testkit::genesis(&slipstream_testkit::keys([1]), 1_700_000_000_000))
            .unwrap();
        let find_out = |cpu| {
            let speed = MachineSpeed::new(dir.path().to_owned(), store.clone(), Duration::from_secs(2));
            assert_eq!(speed.status().unwrap(), None);
            speed.find_out(cpu, true, || true).unwrap();
            speed.status().unwrap().unwrap().gas_per_second
        };
        let first = find_out("one");
        assert_eq!(first.iter().count(), Work::ALL.len());
        assert_eq!(find_out("one"), first);
        // The stored value is reported, so a changed number shows whether the file was used.
        let mut saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        saved["gas_per_second"]["plain"] = 7.into();
        let change = || std::fs::write(&path, saved.to_string()).unwrap();
        change();
        assert_eq!(find_out("one").of(Work::Plain), Some(7));
        assert_ne!(find_out("two").of(Work::Plain), Some(7));
        change();
        assert_eq!(find_out("one").of(Work::Plain), Some(7), "the file is the last machine's again");
        std::fs::write(&path, "damaged").unwrap();
        assert_ne!(find_out("one").of(Work::Plain), Some(7));
        assert!(dir.path().join(FORM.damaged_name).exists());
    }

    #[test]
    fn more_than_half_a_view_is_a_problem() {
        let speeds: Speeds = [(Work::Plain, 1_000_000_000), (Work::Modexp, 10_000_000)].into_iter().collect();
        let rules = ChainConfig { gas_limit: 30_000_000, ..ChainConfig::default() }.first_rules();
        let under = |view| SpeedStatus::of(speeds.clone(), &rules, Duration::from_secs(view)).unwrap();
        let text = under(5).problem().unwrap();
        assert!(
            text.starts_with(
                "a batch of 30000000 gas, all of it modexp, takes 3.0 s here, and a view lasts 5.0 s:"
            ),
            "{text}"
        );
        assert_eq!(under(6).problem(), None);
        assert_eq!(SpeedStatus::of(Speeds::default(), &rules, Duration::from_secs(1)), None);
    }
}
