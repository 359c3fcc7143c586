//! [`BatchEnv`]: the batch's values as the EVM sees them.

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, U256};
pub use revm::primitives::hardfork::SpecId;
use slipstream_types::{BatchHeader, BatchNumber, ChainConfig, Epoch, RulesId, chain::Fork, limits};

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
    /// GASLIMIT: most gas that all transactions together may use.
    pub gas_limit: u64,
    /// Maximum gas that one transaction may ask for; `gas_limit` applies as well.
    pub transaction_gas_max: u64,
    /// BASEFEE in wei per gas, which the chain's rules fix; it is burnt.
    pub base_fee_wei: u64,
    /// DIFFICULTY before the Merge, else zero.
    pub difficulty: U256,
    /// PREVRANDAO from the Merge on.
    pub prev_randao: Option<B256>,
    /// Digest of the previous batch's header, for BLOCKHASH; from Prague on it is also written to state (EIP-2935).
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
    /// parent's proposer could grind it, so contracts must not use it as a lottery. BLOBBASEFEE is at its minimum.
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

    /// The environment of an existing batch, under its own rules, for calls that run as if they were in it.
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
}

/// The parts of a batch that are settled before it executes.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// The header before this batch.
    pub parent: &'a BatchHeader,
    /// The epoch whose validators certify the batch.
    pub epoch: Epoch,
    /// Timestamp in milliseconds since 1970, which the proposer sets.
    pub timestamp_ms: u64,
    /// The account that receives the fees.
    pub proposer: Address,
}

impl<'a> Basis<'a> {
    /// The basis of a batch whose header is known.
    pub fn of(parent: &'a BatchHeader, header: &BatchHeader) -> Basis<'a> {
        let BatchHeader { epoch, timestamp_ms, proposer, .. } = *header;
        Basis { parent, epoch, timestamp_ms, proposer }
    }

    /// The environment that the EVM sees.
    pub fn env(&self, chain: &ChainConfig) -> BatchEnv {
        BatchEnv::new(chain, self.parent, self.timestamp_ms, self.proposer)
    }
}

/// The EVM rules of a chain's fork.
pub fn chain_spec(fork: Fork) -> SpecId {
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
