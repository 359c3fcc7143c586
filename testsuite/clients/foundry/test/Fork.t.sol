// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.0;

import {Counter} from "../src/Counter.sol";

interface Vm {
    function createSelectFork(string calldata url, bytes32 transaction) external returns (uint256);
    function envAddress(string calldata name) external view returns (address);
    function envBytes32(string calldata name) external view returns (bytes32);
    function envString(string calldata name) external view returns (string memory);
    function envUint(string calldata name) external view returns (uint256);
    function rollFork(uint256 number) external;
}

/// COUNTER is at URL. TRANSACTION, in batch NUMBER, wrote 7 to it.
contract ForkTest {
    Vm constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
    Counter counter;

    function setUp() external {
        counter = Counter(vm.envAddress("COUNTER"));
    }

    function testReads() external view {
        require(block.chainid == 7357 && block.number > vm.envUint("NUMBER"));
        require(counter.number() == 7);
    }

    function testWrites() external {
        counter.set(9);
        require(counter.number() == 9);
    }

    function testGoesBack() external {
        uint256 then = vm.envUint("NUMBER");
        vm.rollFork(then - 1);
        require(block.number == then - 1, "rolled to another batch than the one before");
        require(counter.number() == 0, "another number in the batch before");
        vm.rollFork(then);
        require(block.number == then, "rolled to another batch");
        require(counter.number() == 7, "another number in the batch");
    }

    function testForksBeforeATransaction() external {
        vm.createSelectFork(vm.envString("URL"), vm.envBytes32("TRANSACTION"));
        require(counter.number() == 0);
    }
}
