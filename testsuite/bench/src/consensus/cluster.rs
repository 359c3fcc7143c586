//! [`Cluster`]: validators as real processes, each of which the others reach only through a relay.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::Result;
use parking_lot::Mutex;
use slipstream_network::PeerAddress;
use slipstream_types::Address;

use super::object;
use crate::harness::relay::Relay;
use slipnet::{
    devnet::{Devnet, DevnetOptions},
    load::Chain,
};

/// The settings of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterOptions {
    pub(super) validators: u32,
    pub(super) accounts: u32,
    /// The most transactions of a batch. Otherwise one batch would take everything in flight, and no other batch could
    /// execute while the validators agree on that one.
    pub(super) batch_max: u32,
}

/// Running validators; dropping this value ends them.
pub(super) struct Cluster {
    pub(super) devnet: Devnet,
    pub(super) chain: Chain,
    pub(super) contract: Address,
    /// The relay in front of each validator.
    relays: Vec<Relay>,
}

impl Cluster {
    /// Starts validators without latency, and deploys the contract.
    ///
    /// # Errors
    /// If the validators do not start.
    pub(super) async fn start(dir: &Path, options: ClusterOptions) -> Result<Cluster> {
        let ClusterOptions { validators, accounts, batch_max } = options;
        let relays = Mutex::new(BTreeMap::new());
        let route = |_, to: usize, peer: String| {
            let mut relays = relays.lock();
            let peer: PeerAddress = peer.parse()?;
            if let std::collections::btree_map::Entry::Vacant(place) = relays.entry(to) {
                place.insert(Relay::start(peer.address, Duration::ZERO)?);
            }
            Ok(PeerAddress { address: relays[&to].address(), ..peer }.to_string())
        };
        let options = DevnetOptions {
            validators,
            accounts,
            dir: Some(dir.to_owned()),
            log_filter: "info,slipstream_consensus=debug".to_owned(),
            extra: format!("executor:\n  hints: keys\nconsensus:\n  batch_transactions_max: {batch_max}\n"),
            snapshot_interval_batches: 0,
            ..DevnetOptions::default()
        };
        let devnet = Devnet::start_routed(options, &route).await?;
        let chain = Chain::connect(devnet.proposer().rpc().clone()).await?;
        let deployer = &devnet.accounts()[0];
        let contract = chain.deploy(deployer, object::init_code()).await?;
        let relays = relays.into_inner().into_values().collect();
        Ok(Cluster { devnet, chain, contract, relays })
    }

    /// Sets the one-way latency between any two validators.
    pub(super) fn set_one_way(&self, one_way: Duration) {
        self.relays.iter().for_each(|relay| relay.set_one_way(one_way));
    }

    /// Returns the bytes of all datagrams between validators so far.
    pub(super) fn bytes(&self) -> u64 {
        self.relays.iter().map(Relay::bytes).sum()
    }

    /// Returns the number of trains that the relays dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.relays.iter().map(Relay::dropped).sum()
    }
}
