//! The filter of a search as callers write it. Its values are parsed as strictly as all other parameters.

use std::{fmt, hash::Hash, marker::PhantomData};

use alloy_primitives::{Address, B256};
use alloy_rpc_types_eth::{BlockNumberOrTag, Filter, FilterBlockOption, FilterSet};
use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor, value::SeqAccessDeserializer},
};

use crate::{
    errors::RpcError,
    params::{AtMost, Strict, Text},
};

/// The number of topic positions in a log.
const TOPICS_MAX: usize = 4;
/// Maximum number of values at one position of a filter, as in geth: each is looked up in every batch's filter.
const POSITION_VALUES_MAX: usize = 1_000;

/// `{ fromBlock, toBlock, blockHash, address, topics }`, all optional. Other fields are ignored, as in geth, because
/// libraries and indexers add some.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Wanted {
    from_block: Option<Strict<BlockNumberOrTag>>,
    to_block: Option<Strict<BlockNumberOrTag>>,
    block_hash: Option<Strict<B256>>,
    address: Option<OneOrMany<Address>>,
    topics: Option<AtMost<Option<OneOrMany<B256>>, TOPICS_MAX>>,
}

/// One value or a list of them; null in a list matches anything. `Deserialize` is written by hand: a derived one would
/// first copy the whole list, with 32 bytes for each character and comma.
struct OneOrMany<T>(AtMost<Option<Strict<T>>, POSITION_VALUES_MAX>);

impl<'de, T: Text> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData)).map(Self)
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: Text> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = AtMost<Option<Strict<T>>, POSITION_VALUES_MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; or a list of them", T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let value = T::read(text).map_err(E::custom)?;
        Ok(AtMost { first: vec![Some(Strict(value))], len: 1 })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        AtMost::deserialize(SeqAccessDeserializer::new(list))
    }
}

/// The values that a position accepts; an empty set accepts any.
fn position<T: Eq + Hash>(values: Option<OneOrMany<T>>) -> Result<FilterSet<T>, RpcError> {
    let Some(OneOrMany(AtMost { first, len })) = values else { return Ok(FilterSet::default()) };
    if len > POSITION_VALUES_MAX {
        let text = format!(
            "exceed max addresses or topics per search position: at most {POSITION_VALUES_MAX} are taken"
        );
        return Err(RpcError::InvalidParams(text));
    }
    let named: Option<Vec<T>> = first.into_iter().map(|value| value.map(|Strict(value)| value)).collect();
    Ok(FilterSet::from(named.unwrap_or_default()))
}

impl Wanted {
    /// Converts this to the library's filter type.
    ///
    /// # Errors
    /// If the filter names both a range and a batch, more topics than a log has, or more values than a position allows.
    pub(crate) fn into_filter(self) -> Result<Filter, RpcError> {
        let (from_block, to_block) = (self.from_block.map(|it| it.0), self.to_block.map(|it| it.0));
        let block_option = match self.block_hash {
            Some(_) if from_block.is_some() || to_block.is_some() => {
                let text = "cannot specify both BlockHash and FromBlock/ToBlock, choose one or the other";
                return Err(RpcError::InvalidParams(text.into()));
            }
            Some(Strict(hash)) => FilterBlockOption::AtBlockHash(hash),
            None => FilterBlockOption::Range { from_block, to_block },
        };
        let address = position(self.address)?;
        let mut topics: [FilterSet<B256>; TOPICS_MAX] = Default::default();
        let given = self.topics.unwrap_or_default();
        if given.len > TOPICS_MAX {
            return Err(RpcError::InvalidParams(format!(
                "exceed max topics: a log has at most {TOPICS_MAX}"
            )));
        }
        for (place, values) in topics.iter_mut().zip(given.first) {
            *place = position(values)?;
        }
        Ok(Filter { block_option, address, topics })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Goal: unknown fields that a library adds do not change the filter, and its own fields stay strict.
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

    /// Goal: elements beyond the limit of a list are neither kept nor parsed. All elements count, even equal ones.
    #[test]
    fn lists_are_counted_and_not_kept() {
        let address = Address::repeat_byte(1);
        let read = |value| serde_json::from_value::<Wanted>(value).map_err(|error| error.to_string());
        let filter = |value| read(value).unwrap().into_filter().map_err(|error| error.to_string());
        let mut list = vec![json!(address); POSITION_VALUES_MAX];
        assert_eq!(filter(json!({ "address": list })).unwrap().address, FilterSet::from(address));
        list.push(json!({}));
        let wanted = read(json!({ "address": list })).unwrap();
        let OneOrMany(AtMost { first, len }) = wanted.address.as_ref().unwrap();
        assert_eq!((first.len(), *len), (POSITION_VALUES_MAX, POSITION_VALUES_MAX + 1));
        let refused = wanted.into_filter().unwrap_err().to_string();
        assert!(refused.starts_with("exceed max addresses or topics"), "{refused}");
        let refused = filter(json!({ "topics": [null, null, null, null, {}] })).unwrap_err();
        assert!(refused.starts_with("exceed max topics"), "{refused}");
        let open = filter(json!({ "address": [address, null], "topics": [null, B256::ZERO] })).unwrap();
        assert!(open.address.is_empty() && open.topics[0].is_empty());
        assert_eq!(open.topics[1], FilterSet::from(B256::ZERO));
        // The element's own parser reports what is wrong with it.
        for wrong in [json!([0]), json!(0), json!({})] {
            let refused = read(json!({ "address": wrong })).err().unwrap();
            assert!(refused.contains("expected an address"), "{wrong}: {refused}");
        }
    }
}
