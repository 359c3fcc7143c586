// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.0;

contract Counter {
    uint256 public number;

    event Set(address indexed by, uint256 number);

    function set(uint256 to) external {
        number = to;
        emit Set(msg.sender, to);
    }
}
