//! [`Resolver`]: the interface that turns names of peers into addresses.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use tokio::sync::Semaphore;

use crate::BoxFuture;

/// Maximum number of lookups at once. A hanging lookup holds a thread until the system returns, even if its caller gave up. Other
/// peers' lookups then wait and time out, and take no more threads.
const LOOKUPS_MAX: usize = 4;

/// Finds the addresses of a host.
pub trait Resolver: Send + Sync + 'static {
    /// The addresses at which the host is reached now, the best first. Must not return cached addresses.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The system's resolver: its hosts file and DNS, as for every program.
#[derive(Debug)]
pub struct SystemResolver {
    lookups: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        SystemResolver { lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }
}

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            let place = self.lookups.clone().acquire_owned().await.map_err(io::Error::other)?;
            let host = host.to_owned();
            let lookup = move || {
                // The permit is released when the system's call ends, even if the caller gave up earlier.
                let _place = place;
                (host, port).to_socket_addrs().map(|addresses| addresses.collect())
            };
            tokio::task::spawn_blocking(lookup).await.map_err(io::Error::other)?
        })
    }
}

/// A resolver without names: for networks that are not the system's, such as a simulated one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNames;

impl Resolver for NoNames {
    fn resolve<'a>(&'a self, _host: &'a str, _port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async { Err(io::Error::new(io::ErrorKind::Unsupported, "this network has no names")) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Goal: while lookups hang, others wait instead of taking more threads, and continue when one of them ends.
    #[tokio::test]
    async fn lookups_wait_for_a_place() {
        let resolver = SystemResolver::default();
        let hanging = resolver.lookups.clone().acquire_many_owned(LOOKUPS_MAX as u32).await.unwrap();
        let mut lookup = resolver.resolve("localhost", 7400);
        assert!(timeout(Duration::from_millis(100), &mut lookup).await.is_err());
        drop(hanging);
        assert!(!lookup.await.unwrap().is_empty());
    }
}
