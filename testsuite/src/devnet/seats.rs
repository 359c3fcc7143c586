//! The roles and names of a devnet's nodes by index, and which nodes each one dials. Files for other machines use the
//! same.

use crate::manifest::Role;

/// Returns the role and name of the node with an index; validators come first.
pub(crate) fn seat(index: u32, validators: u32) -> (Role, String) {
    match index.checked_sub(validators) {
        None => (Role::Validator, format!("validator-{index}")),
        Some(index) => (Role::Fullnode, format!("fullnode-{index}")),
    }
}

/// Whether node `index` has node `other` as a peer. A node's peers are all validators and all nodes before it.
pub(crate) fn dials(index: usize, other: usize, validators: usize) -> bool {
    other != index && (other < validators || other < index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_dials_validators_and_who_was_there_before() {
        assert_eq!(seat(1, 2), (Role::Validator, "validator-1".to_owned()));
        assert_eq!(seat(2, 2), (Role::Fullnode, "fullnode-0".to_owned()));
        let of = |index| (0..4).filter(|other| dials(index, *other, 2)).collect::<Vec<usize>>();
        assert_eq!([of(0), of(1), of(2), of(3)], [vec![1], vec![0], vec![0, 1], vec![0, 1, 2]]);
    }
}
