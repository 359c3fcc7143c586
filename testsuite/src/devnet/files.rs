//! The files that a devnet writes before its processes start: the genesis, and each node's key and configuration.

use std::{collections::BTreeMap, fmt::Write as _, fs, io, net::SocketAddr, path::Path};

use alloy_eips::eip2935::{HISTORY_STORAGE_ADDRESS, HISTORY_STORAGE_CODE};
use alloy_primitives::{Address, U256, utils::parse_ether};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipstream_types::{
    ChainConfig, Genesis, SecretKey, Validator, bounded::BoundedVec, delta::Code, genesis::GenesisAccount,
};

use super::DevnetOptions;
use crate::{
    accounts::{Account, fee_recipient, node_key},
    file_names::{CONFIG, DATA, GENESIS, KEY},
    manifest::Role,
    private_file::write_private,
};

/// 1 January 2025. Fixed, so that a seed alone decides the chain's identity.
const GENESIS_TIMESTAMP_MS: u64 = 1_735_689_600_000;
/// Small: many nodes share one machine.
pub(super) const BLOCK_CACHE_MIB: u64 = 32;

/// How a fullnode catches up: `sync.mode` in node.yaml.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// The node decides.
    #[default]
    Auto,
    /// Downloads transactions and executes them, helped by hints.
    Replay,
    /// Downloads state changes and applies them.
    Delta,
    /// Downloads the state itself, then goes on as `auto` does.
    Snapshot,
}

impl SyncMode {
    /// The mode's name in node.yaml.
    pub fn name(self) -> &'static str {
        match self {
            SyncMode::Auto => "auto",
            SyncMode::Replay => "replay",
            SyncMode::Delta => "delta",
            SyncMode::Snapshot => "snapshot",
        }
    }
}

/// The settings that differ between nodes, apart from their identity.
pub(super) struct Settings<'a> {
    pub(super) peers: &'a [String],
    /// Entries of `network.names`.
    pub(super) names: Vec<String>,
    pub(super) mode: SyncMode,
    /// The waypoint at which trust starts, instead of the genesis file.
    pub(super) waypoint: Option<&'a str>,
    pub(super) snapshot_interval_batches: u64,
    pub(super) batch_interval_ms: Option<u64>,
    pub(super) block_cache_mib: Option<u64>,
    pub(super) state_history: Option<u64>,
    pub(super) outbound: Option<u32>,
    pub(super) log_filter: &'a str,
    pub(super) extra: &'a str,
}

/// Builds a chain's genesis. It has the funded `accounts`, the EIP-2935 contract, which stores block hashes in the
/// state, and the validators contract, which [`Account::owner`] owns.
pub fn genesis(seed: &str, validators: u32, accounts: &[Account]) -> Genesis {
    let validator = |index| Validator {
        public_key: node_key(seed, index).public(),
        fee_recipient: fee_recipient(seed, index),
    };
    let balance = parse_ether("1000000").expect("a constant");
    let funded = accounts.iter().map(|account| (account.address, funded(balance)));
    let owner = Account::owner(seed).address;
    let mut accounts: BTreeMap<Address, GenesisAccount> = funded.collect();
    accounts.insert(owner, self::funded(balance));
    let code = Code::new(HISTORY_STORAGE_CODE.to_vec()).expect("83 bytes");
    accounts.insert(HISTORY_STORAGE_ADDRESS, GenesisAccount { nonce: 1, code, ..GenesisAccount::default() });
    let genesis = Genesis {
        chain: ChainConfig::default(),
        timestamp_ms: GENESIS_TIMESTAMP_MS,
        validators: BoundedVec::new((0..validators).map(validator).collect()).unwrap_or_default(),
        accounts,
        ..Genesis::default()
    };
    genesis.with_validators_contract(owner, 1).expect("the contract's code was compiled")
}

fn funded(balance: U256) -> GenesisAccount {
    GenesisAccount { balance, ..GenesisAccount::default() }
}

/// Additions to the genesis that make a chain easier to experiment with.
#[derive(Clone, Copy)]
pub(crate) struct Extras {
    /// See [`DevnetOptions::predeploys`].
    pub(crate) predeploys: bool,
    /// See [`DevnetOptions::unprotected_transactions`].
    pub(crate) unprotected_transactions: bool,
}

impl Extras {
    pub(crate) fn of(options: &DevnetOptions) -> Extras {
        let DevnetOptions { predeploys, unprotected_transactions, .. } = *options;
        Extras { predeploys, unprotected_transactions }
    }

    fn all() -> impl Iterator<Item = Extras> {
        [(true, true), (true, false), (false, true), (false, false)]
            .into_iter()
            .map(|(predeploys, unprotected_transactions)| Extras { predeploys, unprotected_transactions })
    }

    fn added_to(self, plain: &Genesis) -> Genesis {
        let mut genesis = plain.clone();
        genesis.chain.unprotected_transactions = self.unprotected_transactions;
        if self.predeploys { genesis.with_predeploys() } else { genesis }
    }
}

/// Writes the genesis with `extras`, and returns it. If the directory already has a genesis, that one stays with the
/// extras it has; apart from extras it must define the same chain.
pub(crate) fn write_genesis(plain: &Genesis, extras: Extras, dir: &Path) -> Result<Genesis> {
    plain.check().context("these options give no valid genesis")?;
    let text = |genesis: &Genesis| Ok::<_, serde_json::Error>(serde_json::to_string_pretty(genesis)? + "\n");
    let path = dir.join(GENESIS);
    if let Ok(stored) = fs::read_to_string(&path) {
        for genesis in Extras::all().map(|extras| extras.added_to(plain)) {
            if stored == text(&genesis)? {
                return Ok(genesis);
            }
        }
        bail!(
            "{} belongs to another devnet (other validators, accounts or seed): use its options, or another --dir",
            path.display()
        );
    }
    let genesis = extras.added_to(plain);
    fs::write(&path, text(&genesis)?).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(genesis)
}

pub(super) fn write_node(
    dir: &Path,
    role: Role,
    key: &SecretKey,
    network: SocketAddr,
    api_port: u16,
    settings: &Settings<'_>,
) -> Result<()> {
    write_key(dir, key)?;
    let path = dir.join(CONFIG);
    fs::write(&path, node_yaml(role, network, api_port, settings))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the ports in a node's last written configuration, network first, or `None` if there is no configuration.
/// Others rely on these ports: peers attached to the devnet, wallets, dashboards.
pub(super) fn kept_ports(dir: &Path) -> Result<Option<(u16, u16)>> {
    #[derive(Deserialize)]
    struct Section {
        listen: SocketAddr,
    }
    #[derive(Deserialize)]
    struct Listens {
        network: Section,
        api: Section,
    }
    let path = dir.join(CONFIG);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let Listens { network, api } = serde_saphyr::from_str(&text).with_context(|| {
        format!(
            "{} does not name the node's ports; remove the file, and the node gets new ones",
            path.display()
        )
    })?;
    Ok(Some((network.listen.port(), api.listen.port())))
}

/// Writes a node's key into its directory, readable by the owner alone.
///
/// # Errors
/// If the file cannot be written.
pub fn write_key(dir: &Path, key: &SecretKey) -> Result<()> {
    write_private(&dir.join(KEY), &(hex::encode(key.seed()) + "\n"))
}

pub(super) fn node_yaml(role: Role, network: SocketAddr, api_port: u16, settings: &Settings<'_>) -> String {
    let (peers, names) = (list(settings.peers), list(&settings.names));
    let consensus = settings.batch_interval_ms.map_or_else(String::new, |interval| {
        format!("consensus:\n  batch_interval_ms: {interval}\n  empty_batch_interval_ms: {interval}\n")
    });
    let origin = match settings.waypoint {
        Some(waypoint) => format!("waypoint: \"{waypoint}\""),
        None => format!("genesis: ../{GENESIS}"),
    };
    let outbound = settings.outbound.map_or_else(String::new, |count| format!("  outbound: {count}\n"));
    let cache =
        settings.block_cache_mib.map_or_else(String::new, |mib| format!("  block_cache_mib: {mib}\n"));
    let history =
        settings.state_history.map_or_else(String::new, |states| format!("  state_history: {states}\n"));
    format!(
        "# Written by slipnet. Relative paths start at this file's directory.\n\
         role: {role}\n\
         data_dir: {DATA}\n\
         {origin}\n\
         key_file: {KEY}\n\
         network:\n  listen: \"{network}\"\n  peers:{peers}  names:{names}{outbound}\
         storage:\n{cache}{history}  snapshot_interval_batches: {interval}\n\
         sync:\n  mode: {mode}\n\
         {consensus}\
         api:\n  listen: \"127.0.0.1:{api_port}\"\n\
         log:\n  filter: \"{filter}\"\n\
         {extra}",
        role = role.name(),
        interval = settings.snapshot_interval_batches,
        mode = settings.mode.name(),
        filter = settings.log_filter,
        extra = settings.extra,
    )
}

/// Formats a YAML list of strings, two levels deep; the result follows the list's key.
fn list(items: &[String]) -> String {
    if items.is_empty() {
        return String::from(" []\n");
    }
    items.iter().fold(String::from("\n"), |mut text, item| {
        writeln!(text, "    - \"{item}\"").expect("a String takes everything");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERYTHING: Extras = Extras { predeploys: true, unprotected_transactions: true };
    const NOTHING: Extras = Extras { predeploys: false, unprotected_transactions: false };

    #[test]
    fn the_seed_decides_the_chain_and_a_directory_belongs_to_one() {
        let dir = tempfile::tempdir().unwrap();
        let accounts = Account::derive_many("a", 3);
        let plain = |validators| genesis("a", validators, &accounts);
        let first = write_genesis(&plain(4), EVERYTHING, dir.path()).unwrap();
        assert!(first.chain.unprotected_transactions);
        // A request for fewer extras, as from an earlier slipnet, returns the existing chain; so does a request for
        // more.
        for extras in Extras::all() {
            assert_eq!(write_genesis(&plain(4), extras, dir.path()).unwrap(), first);
        }
        let error = write_genesis(&plain(3), EVERYTHING, dir.path()).unwrap_err().to_string();
        assert!(error.contains("another --dir"), "{error}");
        let stored: Genesis =
            serde_json::from_str(&fs::read_to_string(dir.path().join(GENESIS)).unwrap()).unwrap();
        assert_eq!(stored.header().unwrap().digest(), first.header().unwrap().digest());
        assert_eq!(
            stored.accounts.len(),
            3 + 1 + 5,
            "accounts, the owner, the validators contract and four more"
        );
        let old = tempfile::tempdir().unwrap();
        assert_eq!(write_genesis(&plain(4), NOTHING, old.path()).unwrap(), plain(4));
        let kept = write_genesis(&plain(4), EVERYTHING, old.path()).unwrap();
        assert!(!kept.chain.unprotected_transactions);
        assert_eq!(kept.accounts.len(), 3 + 1 + 2, "accounts, the owner, and two system contracts");
        stored.check().unwrap();
    }

    #[test]
    fn ports_are_read_from_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept_ports(dir.path()).unwrap(), None);
        let settings = Settings {
            peers: &[],
            names: vec![format!("{}=validator-0", node_key("a", 0).public())],
            mode: SyncMode::Auto,
            waypoint: None,
            snapshot_interval_batches: 1,
            batch_interval_ms: None,
            block_cache_mib: None,
            state_history: Some(3_000),
            outbound: Some(0),
            log_filter: "info",
            extra: "",
        };
        write_node(
            dir.path(),
            Role::Validator,
            &node_key("a", 0),
            ([127, 0, 0, 1], 12_001).into(),
            12_002,
            &settings,
        )
        .unwrap();
        assert_eq!(kept_ports(dir.path()).unwrap(), Some((12_001, 12_002)));
        let text = fs::read_to_string(dir.path().join(CONFIG)).unwrap();
        assert!(text.contains("  peers: []\n  names:\n    - \""), "{text}");
        assert!(text.contains("=validator-0\"\n  outbound: 0\nstorage:\n  state_history: 3000\n"), "{text}");
        fs::write(dir.path().join(CONFIG), "role: validator\n").unwrap();
        assert!(kept_ports(dir.path()).unwrap_err().to_string().contains("remove the file"));
    }

    #[test]
    fn a_devnet_of_too_many_validators_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write_genesis(&genesis("a", 1_000, &[]), EVERYTHING, dir.path()).is_err());
        assert!(!dir.path().join(GENESIS).exists());
    }
}
