// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.0;

import {Counter} from "../src/Counter.sol";

interface Vm {
    function startBroadcast() external;
    function stopBroadcast() external;
}

/// Four transactions: two ways to create a contract, and a call of each, of which one needs what the other wrote.
contract Deploy {
    Vm constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
    bool public constant IS_SCRIPT = true;

    function run() external {
        vm.startBroadcast();
        Counter made = new Counter();
        Counter salted = new Counter{salt: 0}();
        made.set(7);
        salted.set(made.number() + 1);
        vm.stopBroadcast();
    }
}
