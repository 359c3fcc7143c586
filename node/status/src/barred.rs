//! The cost of bans to a validator's quorum. A ban of another validator is allowed, but its cost should not go
//! unnoticed.

use std::collections::BTreeSet;

use slipstream_network::{Ban, PeerId};
use slipstream_types::ValidatorSet;

/// Describes the validators that this validator bans and the quorum that remains. `None` for a node outside the set, or
/// one that bans no validator.
pub(crate) fn barred(set: &ValidatorSet, own: PeerId, bans: &[Ban]) -> Option<String> {
    set.index_of(&own)?;
    let banned: BTreeSet<PeerId> = bans.iter().map(|ban| ban.peer).collect();
    let positions = set.validators.iter().enumerate();
    let barred = positions.filter(|(_, it)| it.public_key != own && banned.contains(&it.public_key));
    let barred: Vec<String> = barred.map(|(position, _)| position.to_string()).collect();
    if barred.is_empty() {
        return None;
    }
    let (all, quorum) = (set.validators.len(), set.quorum());
    let left = all - barred.len();
    let so = match left < quorum {
        true => "it cannot take part in decisions until `slipstream peers unban` lifts a ban".to_owned(),
        false => format!("{} more may fail", left - quorum),
    };
    let barred = barred.join(", ");
    Some(format!(
        "this validator bans validators at position {barred}: with itself {left} of {all} are left, and a batch needs {quorum}; {so}"
    ))
}

#[cfg(test)]
mod tests {
    use slipstream_network::{BanEnd, BannedBy};
    use slipstream_testkit::set;
    use slipstream_types::{Address, SecretKey};

    use super::*;

    /// Goal: a validator is warned when its bans affect its quorum; a ban of a stranger, or by a fullnode, affects no
    /// quorum.
    #[test]
    fn bans_of_validators_are_told() {
        let keys: Vec<SecretKey> = (1..=4).map(|seed| SecretKey::from_seed([seed; 32])).collect();
        let set = set(0, &keys, Address::ZERO);
        let key = |position: usize| set.validators[position].public_key;
        let stranger = SecretKey::from_seed([9; 32]).public();
        let said = |own: PeerId, peers: &[PeerId]| {
            let ban = |peer: &PeerId| Ban {
                peer: *peer,
                by: BannedBy::Operator,
                reason: String::new(),
                until: BanEnd::Never,
            };
            barred(&set, own, &peers.iter().map(ban).collect::<Vec<_>>())
        };
        assert_eq!((said(key(0), &[stranger, key(0)]), said(stranger, &[key(1)])), (None, None));
        let one = said(key(0), &[key(2), stranger]).unwrap();
        assert!(
            one.contains("position 2: with itself 3 of 4 are left, and a batch needs 3; 0 more may fail"),
            "{one}"
        );
        let two = said(key(0), &[key(3), key(2)]).unwrap();
        assert!(
            two.contains("position 2, 3: with itself 2 of 4")
                && two.contains("it cannot take part in decisions"),
            "{two}"
        );
    }
}
