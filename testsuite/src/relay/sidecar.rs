//! `slipnet relay`: links beside a node in a container, where no devnet can create them.

use std::{fmt, net::SocketAddr, num::NonZeroU64, str::FromStr, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use parking_lot::Mutex;

use super::{
    Relay, Shape,
    links::raise_open_files,
    schedule::{self, Change},
};
use crate::{
    accounts, output,
    time::{self, StartClock},
};

/// The interval at which targets' names are resolved again: a restarted container has another address.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which statistics are printed.
const STATS_INTERVAL: Duration = Duration::from_secs(60);
/// The most links of one sidecar: the number of configured peers that a node may have.
const LINKS_MAX: usize = 4_096;
/// The most changes of one sidecar: its command line stays below the system's limit.
pub(crate) const CHANGES_MAX: usize = 4_096;

/// A link: `LISTEN=HOST:PORT[,delay=46ms][,jitter=1ms][,bandwidth=BYTES][,loss=0.01]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    /// The address at which the node dials the link.
    pub listen: SocketAddr,
    /// The target of the link: a name or an IP, and a port.
    pub target: String,
    /// The link's properties.
    pub shape: Shape,
}

impl FromStr for Link {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Link> {
        let mut parts = text.split(',');
        let (listen, target) = parts.next().and_then(|ends| ends.split_once('=')).with_context(|| {
            format!("{text}: expected LISTEN=HOST:PORT, as 127.0.0.1:7401=validator-1:7400,delay=46ms")
        })?;
        let listen = listen.parse().with_context(|| format!("{listen} is not IP:PORT"))?;
        ensure!(
            target
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()),
            "{target} is not HOST:PORT"
        );
        let shape = read_shape(parts).map_err(|error| anyhow!("{text}: {error}"))?;
        Ok(Link { listen, target: target.to_owned(), shape })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.listen, self.target)?;
        write_shape(f, &self.shape)
    }
}

/// Parses a shape such as `delay=46ms`; omitted properties are perfect.
pub(super) fn read_shape<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Shape> {
    let mut shape = Shape::default();
    for part in parts {
        let (key, value) = part.split_once('=').with_context(|| format!("{part}: expected KEY=VALUE"))?;
        let wrong = |reason: &str| anyhow!("{part}: {reason}");
        match key {
            "delay" => shape.delay = time::duration(value).map_err(|error| wrong(&error))?,
            "jitter" => shape.jitter = time::duration(value).map_err(|error| wrong(&error))?,
            "bandwidth" => {
                let bytes = value.parse::<NonZeroU64>().map_err(|_| wrong("expected bytes a second"))?;
                shape.bandwidth_bytes_per_second = Some(bytes);
            }
            "loss" => shape.loss = value.parse().map_err(|_| wrong("expected a number from 0 to 1"))?,
            _ => return Err(wrong("the keys are delay, jitter, bandwidth and loss")),
        }
    }
    shape.check()?;
    Ok(shape)
}

/// Formats a shape, with a comma before each property.
pub(super) fn write_shape(f: &mut fmt::Formatter<'_>, shape: &Shape) -> fmt::Result {
    let Shape { delay, jitter, bandwidth_bytes_per_second, loss } = *shape;
    for (key, time) in [("delay", delay), ("jitter", jitter)] {
        if !time.is_zero() {
            write!(f, ",{key}={}ms", time.as_micros() as f64 / 1_000.0)?;
        }
    }
    if let Some(bandwidth) = bandwidth_bytes_per_second {
        write!(f, ",bandwidth={bandwidth}")?;
    }
    if loss > 0.0 {
        write!(f, ",loss={loss}")?;
    }
    Ok(())
}

/// The arguments of `slipnet relay`.
#[derive(Args, Clone, Debug)]
pub struct RelayOptions {
    /// A link, as 127.0.0.1:7401=validator-1:7400,delay=46ms,jitter=1ms,bandwidth=1000000,loss=0.01. All parts except
    /// the two addresses may be omitted; bandwidth is in bytes per second.
    #[arg(long = "link", required = true)]
    pub links: Vec<Link>,
    /// A temporary change of a link, as 127.0.0.1:7401@125s..133s,cut or 127.0.0.1:7401@10s..,delay=150ms,loss=0.02.
    /// The link is cut while any change cuts it, otherwise it has the shape of the change that began last.
    #[arg(long = "change")]
    pub changes: Vec<Change>,
    /// The time from which --change counts, in seconds since 1970, so that all relays change together; the present if
    /// not given.
    #[arg(long)]
    pub start: Option<u64>,
    /// The seed of losses and of jitter.
    #[arg(long, default_value = accounts::DEFAULT_SEED)]
    pub seed: String,
}

/// A link whose target has an address.
struct Laid {
    relay: Relay,
    /// Its shape, and whether it is cut.
    state: (Shape, bool),
}

/// All links in the order of the options; `None` while the target's name has no address.
type LaidLinks = Mutex<Vec<Option<Laid>>>;

impl RelayOptions {
    /// Relays until the process ends.
    ///
    /// # Errors
    /// If there are too many links or changes, a change names no link, or a link cannot be created.
    pub async fn run(&self) -> Result<()> {
        self.check()?;
        raise_open_files();
        let clock = StartClock::new(self.start);
        let laid = Mutex::new(self.links.iter().map(|_| None).collect());
        tokio::try_join!(self.resolve(&laid, &clock), self.follow(&laid, &clock), self.tell(&laid))?;
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let (links, changes) = (self.links.len(), self.changes.len());
        ensure!(links <= LINKS_MAX, "{links} links are too many: at most {LINKS_MAX}");
        ensure!(changes <= CHANGES_MAX, "{changes} changes are too many: at most {CHANGES_MAX}");
        let is_known = |change: &&Change| self.links.iter().any(|link| link.listen == change.listen);
        if let Some(change) = self.changes.iter().find(|change| !is_known(change)) {
            bail!("--change {change}: no --link listens at {}", change.listen);
        }
        Ok(())
    }

    /// Prints each link's statistics at intervals.
    async fn tell(&self, laid: &LaidLinks) -> Result<()> {
        let mut interval = tokio::time::interval(STATS_INTERVAL);
        loop {
            interval.tick().await;
            for (link, laid) in self.links.iter().zip(laid.lock().iter()) {
                let Some(laid) = laid else { continue };
                let stats = serde_json::to_string(&laid.relay.stats())?;
                output::note(&format!("{} to {}: {stats}", link.listen, link.target));
            }
        }
    }

    /// Creates links whose targets have an address by now, and moves those whose address has changed, repeatedly.
    /// Resolving takes time, and changes do not wait for it.
    async fn resolve(&self, laid: &LaidLinks, clock: &StartClock) -> Result<()> {
        let mut interval = tokio::time::interval(RESOLVE_INTERVAL);
        loop {
            interval.tick().await;
            for (index, link) in self.links.iter().enumerate() {
                // A name without an address is a container that does not run: it is resolved again later.
                let Ok(mut found) = tokio::net::lookup_host(&link.target).await else { continue };
                let Some(target) = found.next() else { continue };
                self.lay(&mut laid.lock()[index], link, target, clock)?;
            }
        }
    }

    fn lay(
        &self,
        laid: &mut Option<Laid>,
        link: &Link,
        target: SocketAddr,
        clock: &StartClock,
    ) -> Result<()> {
        if let Some(laid) = laid {
            laid.relay.retarget(target);
            return Ok(());
        }
        let seed = accounts::number(&self.seed, &format!("link {} {}", link.listen, link.target));
        let state = self.state(link, clock.passed());
        let relay = Relay::start_seeded(link.listen, target, state.0, seed)?;
        relay.cut(state.1);
        *laid = Some(Laid { relay, state });
        Ok(())
    }

    /// Returns a link's current state; the normal one before the start.
    fn state(&self, link: &Link, passed: Option<Duration>) -> (Shape, bool) {
        let usual = (link.shape, false);
        passed.map_or(usual, |moment| schedule::state(&self.changes, link.listen, link.shape, moment))
    }

    /// Changes the links at the moments of the schedule, until its end.
    async fn follow(&self, laid: &LaidLinks, clock: &StartClock) -> Result<()> {
        let mut passed = clock.passed();
        while let Some(moment) = schedule::next(&self.changes, passed) {
            clock.wait_until(moment).await;
            // At least the moment itself, because the clock may be slightly before it.
            passed = clock.passed().max(Some(moment));
            for (link, laid) in self.links.iter().zip(laid.lock().iter_mut()) {
                let Some(laid) = laid else { continue };
                let state = self.state(link, passed);
                if laid.state != state {
                    laid.relay.reshape(state.0)?;
                    laid.relay.cut(state.1);
                    laid.state = state;
                    let now = if state.1 { "cut".to_owned() } else { state.0.to_string() };
                    output::note(&format!("{} to {}: {now}", link.listen, link.target));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a link survives the round trip through a Compose file.
    #[test]
    fn a_link_survives_its_text() {
        let text = "127.0.0.1:7401=validator-1:7400,delay=46.5ms,jitter=1ms,bandwidth=1000000,loss=0.01";
        let link: Link = text.parse().unwrap();
        assert_eq!(link.shape.delay, Duration::from_micros(46_500));
        assert_eq!(link.to_string(), text);
        assert_eq!("127.0.0.1:1=a:2".parse::<Link>().unwrap().shape, Shape::default());
    }

    #[test]
    fn a_wrong_link_says_what_is_wrong() {
        for (text, part) in [
            ("validator-1:7400", "expected LISTEN=HOST:PORT"),
            ("here=validator-1:7400", "here is not IP:PORT"),
            ("127.0.0.1:1=validator-1", "validator-1 is not HOST:PORT"),
            ("127.0.0.1:1=a:2,speed=1", "speed=1: the keys are delay"),
            ("127.0.0.1:1=a:2,delay=1d", "delay=1d: d: the units are"),
            ("127.0.0.1:1=a:2,loss=2", "loss=2: the loss of a link is from 0 to 1"),
        ] {
            let error = text.parse::<Link>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    fn options(change: &str) -> RelayOptions {
        RelayOptions {
            links: vec!["127.0.0.1:1=a:2,delay=5ms".parse().unwrap()],
            changes: vec![change.parse().unwrap()],
            start: None,
            seed: "s".to_owned(),
        }
    }

    /// Goal: a change that names no link is refused, and before the start every link is normal.
    #[test]
    fn changes_are_of_links_and_wait_for_the_start() {
        let error = options("127.0.0.1:9@1s..2s,cut").check().unwrap_err().to_string();
        assert!(error.contains("no --link listens at 127.0.0.1:9"), "{error}");
        let options = options("127.0.0.1:1@0s..2s,cut");
        options.check().unwrap();
        let link = &options.links[0];
        assert_eq!(options.state(link, None), (link.shape, false));
        assert_eq!(options.state(link, Some(Duration::ZERO)), (link.shape, true));
    }

    /// Goal: the schedule cuts and heals a link by itself.
    #[tokio::test]
    async fn the_schedule_is_followed() {
        let mut options = options("127.0.0.1:1@0ms..5s,cut");
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let target = socket.local_addr().unwrap();
        options.links[0].listen = "127.0.0.1:0".parse().unwrap();
        options.changes[0].listen = options.links[0].listen;
        let clock = StartClock::new(None);
        let laid = Mutex::new(vec![None]);
        options.lay(&mut laid.lock()[0], &options.links[0], target, &clock).unwrap();
        let is_cut = laid.lock()[0].as_ref().unwrap().state.1;
        let is_over = clock.passed() >= Some(Duration::from_secs(5));
        assert!(is_cut || is_over, "it is cut when it is laid");
        options.follow(&laid, &clock).await.unwrap();
        assert_eq!(laid.lock()[0].as_ref().unwrap().state, (options.links[0].shape, false));
    }
}
