//! `slipnet relay`: links beside a node that runs in a container, where a devnet cannot lay them itself.

use std::{fmt, net::SocketAddr, num::NonZeroU64, str::FromStr, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use super::{Relay, Shape, links::raise_open_files};
use crate::{accounts, output, time};

/// How often the names of targets are resolved anew: a container that was started again has another address.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);
/// How often the figures are noted.
const STATS_INTERVAL: Duration = Duration::from_secs(60);
/// Links of one sidecar: as many as a node has configured peers.
const LINKS_MAX: usize = 4_096;

/// A link: `LISTEN=HOST:PORT[,delay=46ms][,jitter=1ms][,bandwidth=BYTES][,loss=0.01]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    /// Where the node dials.
    pub listen: SocketAddr,
    /// Where the link leads: a name or an IP, and a port.
    pub target: String,
    /// What it does.
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
        shape.check().map_err(|error| anyhow!("{text}: {error}"))?;
        Ok(Link { listen, target: target.to_owned(), shape })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { delay, jitter, bandwidth_bytes_per_second, loss } = self.shape;
        write!(f, "{}={}", self.listen, self.target)?;
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
}

/// `slipnet relay`.
#[derive(Args, Clone, Debug)]
pub struct RelayOptions {
    /// A link, as 127.0.0.1:7401=validator-1:7400,delay=46ms,jitter=1ms,bandwidth=1000000,loss=0.01. All but the ends may be left out;
    /// bandwidth is bytes a second.
    #[arg(long = "link", required = true)]
    pub links: Vec<Link>,
    /// Decides which datagrams are lost, and the jitter of each.
    #[arg(long, default_value = accounts::DEFAULT_SEED)]
    pub seed: String,
}

impl RelayOptions {
    /// Relays until the process ends.
    ///
    /// # Errors
    /// If there are too many links, or one cannot be laid.
    pub async fn run(&self) -> Result<()> {
        ensure!(
            self.links.len() <= LINKS_MAX,
            "{} links are too many: at most {LINKS_MAX}",
            self.links.len()
        );
        raise_open_files();
        let mut relays: Vec<Option<Relay>> = self.links.iter().map(|_| None).collect();
        let mut resolve = tokio::time::interval(RESOLVE_INTERVAL);
        let mut tell = tokio::time::interval(STATS_INTERVAL);
        loop {
            tokio::select! {
                _ = resolve.tick() => self.resolve(&mut relays).await?,
                _ = tell.tick() => self.tell(&relays)?,
            }
        }
    }

    /// Notes what each link did.
    fn tell(&self, relays: &[Option<Relay>]) -> Result<()> {
        for (link, relay) in self.links.iter().zip(relays) {
            let Some(relay) = relay else { continue };
            let stats = serde_json::to_string(&relay.stats())?;
            output::note(&format!("{} to {}: {stats}", link.listen, link.target));
        }
        Ok(())
    }

    /// Starts what has an address by now, and moves what has another one.
    async fn resolve(&self, relays: &mut [Option<Relay>]) -> Result<()> {
        for (link, relay) in self.links.iter().zip(relays) {
            // A name without an address is a container that does not run: it is asked for again.
            let Ok(mut found) = tokio::net::lookup_host(&link.target).await else { continue };
            let Some(target) = found.next() else { continue };
            match relay {
                Some(relay) => relay.retarget(target),
                None => {
                    let seed = accounts::number(&self.seed, &format!("link {} {}", link.listen, link.target));
                    *relay = Some(Relay::start_seeded(link.listen, target, link.shape, seed)?);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a Compose file says to a sidecar is what was meant.
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
}
