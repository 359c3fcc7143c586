//! `slipnet relay`: links beside a node in a container, where no devnet can create them.

use std::{fmt, net::SocketAddr, num::NonZeroU64, str::FromStr, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use parking_lot::Mutex;

use super::{Relay, Shape, links::raise_open_files};
use crate::{accounts, output, time};

/// The interval at which targets' names are resolved again: a restarted container has another address.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which statistics are printed.
const STATS_INTERVAL: Duration = Duration::from_secs(60);
/// The most links of one sidecar: the number of configured peers that a node may have.
const LINKS_MAX: usize = 4_096;
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
            format!("{text}: expected LISTEN=HOST:PORT, such as 127.0.0.1:7401=validator-1:7400,delay=46ms")
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
fn read_shape<'a>(parts: impl Iterator<Item = &'a str>) -> Result<Shape> {
    let mut shape = Shape::default();
    for part in parts {
        let (key, value) = part.split_once('=').with_context(|| format!("{part}: expected KEY=VALUE"))?;
        let wrong = |reason: &str| anyhow!("{part}: {reason}");
        match key {
            "delay" => shape.delay = time::duration(value).map_err(|error| wrong(&error))?,
            "jitter" => shape.jitter = time::duration(value).map_err(|error| wrong(&error))?,
            "bandwidth" => {
                let bytes = value.parse::<NonZeroU64>().map_err(|_| wrong("expected bytes per second"))?;
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
fn write_shape(f: &mut fmt::Formatter<'_>, shape: &Shape) -> fmt::Result {
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
    /// Decides which datagrams are lost, and the jitter of each.
    #[arg(long, default_value = accounts::DEFAULT_SEED)]
    pub seed: String,
}

/// All links in the order of the options; `None` while the target's name has no address yet.
type LaidLinks = Mutex<Vec<Option<Relay>>>;

impl RelayOptions {
    /// Relays until the process ends.
    ///
    /// # Errors
    /// If there are too many links, or a link cannot be laid.
    pub async fn run(&self) -> Result<()> {
        let links = self.links.len();
        ensure!(links <= LINKS_MAX, "{links} links are too many: at most {LINKS_MAX}");
        raise_open_files();
        let laid = Mutex::new(self.links.iter().map(|_| None).collect());
        tokio::try_join!(self.resolve(&laid), self.log(&laid))?;
        Ok(())
    }

    /// Logs the figures of each link once a minute.
    async fn log(&self, laid: &LaidLinks) -> Result<()> {
        let mut interval = tokio::time::interval(STATS_INTERVAL);
        loop {
            interval.tick().await;
            for (link, laid) in self.links.iter().zip(laid.lock().iter()) {
                let Some(relay) = laid else { continue };
                let stats = serde_json::to_string(&relay.stats())?;
                output::note(&format!("{} to {}: {stats}", link.listen, link.target));
            }
        }
    }

    /// Lays each link once its target has an address, and follows the target to another address.
    async fn resolve(&self, laid: &LaidLinks) -> Result<()> {
        let mut interval = tokio::time::interval(RESOLVE_INTERVAL);
        loop {
            interval.tick().await;
            for (index, link) in self.links.iter().enumerate() {
                // A name without an address is a container that does not run: it is resolved again later.
                let Ok(mut found) = tokio::net::lookup_host(&link.target).await else { continue };
                let Some(target) = found.next() else { continue };
                self.lay(&mut laid.lock()[index], link, target)?;
            }
        }
    }

    fn lay(&self, laid: &mut Option<Relay>, link: &Link, target: SocketAddr) -> Result<()> {
        match laid {
            Some(relay) => relay.retarget(target),
            None => {
                let seed = accounts::number(&self.seed, &format!("link {} {}", link.listen, link.target));
                *laid = Some(Relay::start_seeded(link.listen, target, link.shape, seed)?);
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

    /// Goal: what a node sends to the sidecar's address arrives at the target, which has a name and starts later.
    #[tokio::test]
    async fn a_sidecar_relays_to_a_name() {
        let local = || tokio::net::UdpSocket::bind("127.0.0.1:0");
        let (target, node) = (local().await.unwrap(), local().await.unwrap());
        // Its port is free again once it is dropped.
        let listen = local().await.unwrap().local_addr().unwrap();
        let port = target.local_addr().unwrap().port();
        let link = Link { listen, target: format!("localhost:{port}"), shape: Shape::default() };
        let options = RelayOptions { links: vec![link], seed: "s".to_owned() };
        let relay = tokio::spawn(async move { options.run().await });
        let mut buffer = [0; 8];
        let heard = loop {
            node.send_to(b"hello", listen).await.unwrap();
            let heard = target.recv_from(&mut buffer);
            if let Ok(heard) = tokio::time::timeout(Duration::from_millis(100), heard).await {
                break heard.unwrap().0;
            }
        };
        assert_eq!(&buffer[..heard], b"hello");
        assert!(!relay.is_finished());
        relay.abort();
    }
}
