// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// Reads and writes the slots that a call lists: a storage-heavy contract, and what access lists of other chains are replayed with.
contract Lists {
    /// Reads all slots of the first list, and adds one to all slots of the second.
    function touch(uint256[] calldata reads, uint256[] calldata writes) external returns (uint256 sum) {
        for (uint256 i = 0; i < reads.length; i++) {
            uint256 slot = reads[i];
            assembly {
                sum := add(sum, sload(slot))
            }
        }
        for (uint256 i = 0; i < writes.length; i++) {
            uint256 slot = writes[i];
            assembly {
                sstore(slot, add(sload(slot), 1))
            }
        }
    }
}
