//! [`BatchEnv`]: the batch's values as the EVM sees them.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, U256};
pub use revm::primitives::hardfork::SpecId;
use slipstream_storage::{StateReader, StorageError};
use slipstream_types::{BatchHeader, BatchNumber, ChainConfig, RulesId, chain::Fork, limits};

use crate::overrides::BlockOverrides;

/// The block as the EVM sees it: everything that execution depends on besides the state and the transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchEnv {
    /// EIP-155 chain id, which the genesis fixes.
    pub chain_id: u64,
    /// Identifies the rules. Executions outside a chain's batches use the genesis rules.
    pub rules: RulesId,
    /// EVM rules that the schedule sets for this batch.
    pub spec: SpecId,
    /// NUMBER: the batch's number.
    pub number: u64,
    /// TIMESTAMP, in whole seconds.
    pub timestamp_s: u64,
    /// COINBASE; receives the tips.
    pub beneficiary: Address,
    /// GASLIMIT: maximum gas that all transactions together may use.
    pub gas_limit: u64,
    /// Maximum gas that one transaction may ask for; `gas_limit` applies as well.
    pub transaction_gas_max: u64,
    /// BASEFEE in wei per gas, which the chain's rules fix; it is burnt.
    pub base_fee_wei: u64,
    /// DIFFICULTY before the Merge, else zero.
    pub difficulty: U256,
    /// PREVRANDAO from the Merge on.
    pub prev_randao: Option<B256>,
    /// Digest of the previous batch's header, for BLOCKHASH; from Prague on, the digest is also written to state
    /// (EIP-2935).
    pub parent_hash: B256,
    /// Written to state from Cancun on (EIP-4788).
    pub parent_beacon_root: Option<B256>,
    /// Sets BLOBBASEFEE from Cancun on.
    pub excess_blob_gas: Option<u64>,
}

impl BatchEnv {
    /// The environment of the batch after `parent`.
    ///
    /// The chain has neither beacon nor blobs. PREVRANDAO and the parent beacon root are the parent's digest. The
    /// parent's proposer could grind that digest, so contracts must not use it as a lottery. BLOBBASEFEE is at its
    /// minimum.
    pub fn new(chain: &ChainConfig, parent: &BatchHeader, timestamp_ms: u64, proposer: Address) -> BatchEnv {
        let parent_hash = B256::from(parent.digest());
        BatchEnv::behind(parent_hash, chain, parent.number.next(), timestamp_ms, proposer)
    }

    /// As [`BatchEnv::new`], but takes the digest of the parent's header. An environment that only serves predictions
    /// may pass zero for an unknown digest: the digest decides no keys.
    pub fn behind(
        parent_hash: B256,
        chain: &ChainConfig,
        number: BatchNumber,
        timestamp_ms: u64,
        proposer: Address,
    ) -> BatchEnv {
        let rules = chain.rules_at(number, timestamp_ms);
        BatchEnv {
            chain_id: chain.chain_id,
            rules: rules.id,
            spec: chain_spec(rules.fork),
            number: number.get(),
            timestamp_s: timestamp_ms / 1000,
            beneficiary: proposer,
            gas_limit: rules.gas_limit,
            transaction_gas_max: rules.transaction_gas_max,
            base_fee_wei: rules.base_fee_wei,
            difficulty: U256::ZERO,
            prev_randao: Some(parent_hash),
            parent_hash,
            parent_beacon_root: Some(parent_hash),
            excess_blob_gas: Some(0),
        }
    }

    /// The environment of an existing batch, under its own rules, for calls that run as if they were in that batch.
    pub fn within(chain: &ChainConfig, header: &BatchHeader) -> BatchEnv {
        let BatchHeader { number, timestamp_ms, proposer, parent, .. } = *header;
        BatchEnv::behind(B256::from(parent), chain, number, timestamp_ms, proposer)
    }

    /// The environment of the Ethereum mainnet block with this header.
    pub fn mainnet(header: &Header) -> BatchEnv {
        let spec = mainnet_spec(header.number, header.timestamp);
        let is_capped = spec.is_enabled_in(SpecId::OSAKA);
        BatchEnv {
            chain_id: 1,
            rules: RulesId::GENESIS,
            spec,
            number: header.number,
            timestamp_s: header.timestamp,
            beneficiary: header.beneficiary,
            gas_limit: header.gas_limit,
            transaction_gas_max: if is_capped { limits::TRANSACTION_GAS_MAX } else { u64::MAX },
            base_fee_wei: header.base_fee_per_gas.unwrap_or_default(),
            difficulty: header.difficulty,
            prev_randao: Some(header.mix_hash),
            parent_hash: header.parent_hash,
            parent_beacon_root: header.parent_beacon_block_root,
            excess_blob_gas: header.excess_blob_gas,
        }
    }

    /// Returns the environment with the overrides applied. Two overrides are left out: BLOBBASEFEE, which an
    /// environment only derives, and a NUMBER that is too high for an environment.
    ///
    /// # Errors
    /// If the hash before an overridden number cannot be read.
    pub(crate) fn overridden(
        &self,
        overrides: &BlockOverrides,
        state: &dyn StateReader,
    ) -> Result<BatchEnv, StorageError> {
        let mut env = self.clone();
        if let Some(number) = overrides.number {
            let number = number.saturating_to::<u64>();
            env.number = number;
            let before = number.checked_sub(1).map(BatchNumber::new);
            let hash = before.map_or(Ok(None), |before| state.header_digest(before))?;
            env.parent_hash = hash.map_or(B256::ZERO, B256::from);
        }
        let parent = env.number.checked_sub(1).and_then(|number| overrides.hashes.get(&number));
        env.parent_hash = parent.copied().unwrap_or(env.parent_hash);
        Ok(env.with_values_of(overrides))
    }

    /// Returns the environment with the overrides of the batch's own values, but not of its number or of earlier
    /// batches' hashes.
    pub(crate) fn with_values_of(self, overrides: &BlockOverrides) -> BatchEnv {
        BatchEnv {
            timestamp_s: overrides.timestamp_s.unwrap_or(self.timestamp_s),
            beneficiary: overrides.beneficiary.unwrap_or(self.beneficiary),
            gas_limit: overrides.gas_limit.unwrap_or(self.gas_limit),
            base_fee_wei: overrides.base_fee_wei.unwrap_or(self.base_fee_wei),
            difficulty: overrides.difficulty.unwrap_or(self.difficulty),
            prev_randao: overrides.prev_randao.or(self.prev_randao),
            ..self
        }
    }
}

/// The EVM rules of a chain's fork.
pub(super) fn chain_spec(fork: Fork) -> SpecId {
    match fork {
        Fork::Cancun => SpecId::CANCUN,
        Fork::Prague => SpecId::PRAGUE,
        Fork::Osaka => SpecId::OSAKA,
    }
}

/// The rules of Ethereum mainnet at a block: by number up to the Merge, by time from Shanghai on.
fn mainnet_spec(number: u64, timestamp_s: u64) -> SpecId {
    const BY_TIME: [(u64, SpecId); 4] = [
        (1_764_798_551, SpecId::OSAKA),
        (1_746_612_311, SpecId::PRAGUE),
        (1_710_338_135, SpecId::CANCUN),
        (1_681_338_455, SpecId::SHANGHAI),
    ];
    const BY_NUMBER: [(u64, SpecId); 9] = [
        (15_537_394, SpecId::MERGE),
        (12_965_000, SpecId::LONDON),
        (12_244_000, SpecId::BERLIN),
        (9_069_000, SpecId::ISTANBUL),
        (7_280_000, SpecId::PETERSBURG),
        (4_370_000, SpecId::BYZANTIUM),
        (2_675_000, SpecId::SPURIOUS_DRAGON),
        (2_463_000, SpecId::TANGERINE),
        (1_150_000, SpecId::HOMESTEAD),
    ];
    let by_time = BY_TIME.iter().find(|(first, _)| timestamp_s >= *first);
    let rules = by_time.or_else(|| BY_NUMBER.iter().find(|(first, _)| number >= *first));
    rules.map_or(SpecId::FRONTIER, |(_, spec)| *spec)
}

#[cfg(test)]
mod tests {
    use slipstream_types::{
        Genesis, Schedule, ScheduledFork,
        schedule::{Activation, Forks},
    };

    use super::*;

    /// Goal: a batch keeps the rules of its own number and time, even when it is queried later. At a chain's head
    /// before a fork, a call sees the old rules, and the next batch the new ones.
    #[test]
    fn a_batch_has_its_own_rules_for_good() {
        let forks = vec![
            ScheduledFork::evm("osaka", Activation::Batch(BatchNumber::new(8)), Fork::Osaka),
            ScheduledFork {
                fork: None,
                gas_limit: Some(50_000_000),
                base_fee_wei: Some(3),
                ..ScheduledFork::evm("room", Activation::TimeMs(9_000), Fork::Osaka)
            },
        ];
        let schedule = Schedule::new(Forks::new(forks).expect("two"));
        let chain = ChainConfig { fork: Fork::Prague, schedule, ..ChainConfig::default() };
        let genesis = Genesis::default().header().expect("an empty state");
        let header = |number, timestamp_ms| BatchHeader {
            number: BatchNumber::new(number),
            timestamp_ms,
            ..genesis.clone()
        };
        let seen = |env: BatchEnv| (env.number, env.spec, env.gas_limit, env.base_fee_wei);
        let limit = chain.gas_limit;
        let fee = chain.base_fee_wei;
        let last = header(7, 8_000);
        assert_eq!(seen(BatchEnv::within(&chain, &last)), (7, SpecId::PRAGUE, limit, fee));
        let next = |timestamp_ms| seen(BatchEnv::new(&chain, &last, timestamp_ms, Address::ZERO));
        assert_eq!(next(8_999), (8, SpecId::OSAKA, limit, fee));
        assert_eq!(next(9_000), (8, SpecId::OSAKA, 50_000_000, 3));
        let env = BatchEnv::within(&chain, &header(9, 9_001));
        assert_eq!(env.rules, chain.schedule.forks()[1].1);
        assert_eq!(seen(env), (9, SpecId::OSAKA, 50_000_000, 3));
    }
}
