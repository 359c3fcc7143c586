//! The filter of a search as callers write it. Its values are read as strictly as all other parameters.

use alloy_primitives::{Address, B256};
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption, FilterSet};
use serde::Deserialize;

use crate::rpc::{errors::RpcError, params::Strict};

/// Places of topics in a log.
const TOPICS_MAX: usize = 4;

/// `{ fromBlock, toBlock, blockHash, address, topics }`, all of which may be left out. Other fields are passed over, as in geth:
/// libraries and indexers add some.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rpc) struct Wanted {
    from_block: Option<Strict<BlockNumberOrTag>>,
    to_block: Option<Strict<BlockNumberOrTag>>,
    block_hash: Option<Strict<B256>>,
    address: Option<OneOrMany<Address>>,
    topics: Option<Vec<Option<OneOrMany<B256>>>>,
}

/// One value or a list of them; null in a list stands for any.
#[derive(Deserialize)]
#[serde(untagged, bound(deserialize = "Strict<T>: Deserialize<'de>"))]
enum OneOrMany<T> {
    One(Strict<T>),
    Many(Vec<Option<Strict<T>>>),
}

impl<T> OneOrMany<T> {
    fn values(self) -> Vec<T> {
        match self {
            OneOrMany::One(Strict(value)) => vec![value],
            OneOrMany::Many(values) if values.iter().any(Option::is_none) => Vec::new(),
            OneOrMany::Many(values) => values.into_iter().flatten().map(|Strict(value)| value).collect(),
        }
    }
}

impl Wanted {
    /// The same in the library's words.
    ///
    /// # Errors
    /// If it names a range beside a batch, or more topics than a log has.
    pub(in crate::rpc) fn into_filter(self) -> Result<Filter, RpcError> {
        let (from_block, to_block) = (self.from_block.map(|it| it.0), self.to_block.map(|it| it.0));
        let block_option = match self.block_hash {
            Some(_) if from_block.is_some() || to_block.is_some() => {
                let text = "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other";
                return Err(RpcError::InvalidParams(text.into()));
            }
            Some(Strict(hash)) => FilterBlockOption::AtBlockHash(hash),
            None => FilterBlockOption::Range { from_block, to_block },
        };
        let address = self.address.map(OneOrMany::values).unwrap_or_default();
        let mut topics: [FilterSet<B256>; TOPICS_MAX] = Default::default();
        let given = self.topics.unwrap_or_default();
        if given.len() > TOPICS_MAX {
            return Err(RpcError::InvalidParams(format!(
                "exceed max topics: a log has at most {TOPICS_MAX}"
            )));
        }
        for (place, values) in topics.iter_mut().zip(given) {
            *place = FilterSet::from(values.map(OneOrMany::values).unwrap_or_default());
        }
        Ok(Filter { block_option, address: FilterSet::from(address), topics })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Goal: a filter with fields of a library's own is the filter without them, and its own fields stay strict.
    #[test]
    fn unknown_fields_are_passed_over() {
        let (from, address) = (json!("0x5"), json!(Address::repeat_byte(1)));
        let read = |value| serde_json::from_value::<Wanted>(value).unwrap().into_filter().unwrap();
        let plain = read(json!({ "fromBlock": from, "address": address }));
        let more =
            json!({ "limit": 100, "fromBlock": from, "includeRemoved": true, "address": address, "x": {} });
        assert_eq!(read(more), plain);
        let wrong = serde_json::from_value::<Wanted>(json!({ "limit": 100, "fromBlock": 5 }));
        assert!(wrong.err().unwrap().to_string().contains("expected a block"));
    }
}
