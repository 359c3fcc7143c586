//! The load's contracts: their compiled form (`contracts/artifacts.json`) and their calls.

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes, U256, hex};
use alloy_sol_types::{SolCall, SolValue};
use serde::Deserialize;

/// The part of the contracts' Solidity interfaces that the load calls.
#[allow(missing_docs, reason = "the macro's items are documented by the sources in contracts")]
mod interface {
    alloy_sol_types::sol! {
        interface Token {
            function transfer(address to, uint256 value) external returns (bool);
            function approve(address spender, uint256 value) external returns (bool);
            function mintMany(address[] calldata to, uint256 value) external;
            function balanceOf(address owner) external view returns (uint256);
        }
        interface Amm {
            function addLiquidity(uint256 amount0, uint256 amount1) external returns (uint256 shares);
            function swap(address tokenIn, uint256 amountIn, uint256 leastOut) external returns (uint256 amountOut);
            function reserve0() external view returns (uint256);
            function reserve1() external view returns (uint256);
        }
        interface Lists {
            function touch(uint256[] calldata reads, uint256[] calldata writes) external returns (uint256 sum);
        }
    }
}
pub use interface::{Amm, Lists, Token};

/// The bytecode of one compiled contract.
#[derive(Deserialize)]
struct Artifact {
    bytecode: String,
}

#[derive(Deserialize)]
struct Artifacts {
    contracts: BTreeMap<String, Artifact>,
}

const ARTIFACTS: &str = include_str!("../contracts/artifacts.json");

fn artifacts() -> Artifacts {
    serde_json::from_str(ARTIFACTS).expect("compile.mjs writes this form")
}

fn init_code(name: &str, arguments: &[u8]) -> Bytes {
    let artifacts = artifacts();
    let artifact = artifacts.contracts.get(name).expect("compile.mjs compiles every contract named here");
    let mut code = hex::decode(&artifact.bytecode).expect("solc writes hexadecimal");
    code.extend_from_slice(arguments);
    code.into()
}

/// Returns the init code of an ERC-20 with this name and symbol. Its deployer may mint.
pub fn token_init_code(name: &str, symbol: &str) -> Bytes {
    init_code("Token", &(name.to_owned(), symbol.to_owned()).abi_encode_params())
}

/// Returns the init code of a pair of the two tokens.
pub fn amm_init_code(token0: Address, token1: Address) -> Bytes {
    init_code("Amm", &(token0, token1).abi_encode_params())
}

/// Returns the init code of the contract that reads and writes the slots named in its call data.
pub fn lists_init_code() -> Bytes {
    init_code("Lists", &[])
}

/// Call data of [`Lists::touchCall`].
pub fn touch(reads: Vec<U256>, writes: Vec<U256>) -> Bytes {
    Lists::touchCall { reads, writes }.abi_encode().into()
}

/// Call data of [`Token::transferCall`].
pub fn transfer(to: Address, value: U256) -> Bytes {
    Token::transferCall { to, value }.abi_encode().into()
}

/// Call data of [`Token::approveCall`].
pub fn approve(spender: Address, value: U256) -> Bytes {
    Token::approveCall { spender, value }.abi_encode().into()
}

/// Call data of [`Token::mintManyCall`].
pub fn mint_many(to: Vec<Address>, value: U256) -> Bytes {
    Token::mintManyCall { to, value }.abi_encode().into()
}

/// Call data of [`Token::balanceOfCall`].
pub fn balance_of(owner: Address) -> Bytes {
    Token::balanceOfCall { owner }.abi_encode().into()
}

/// Call data of [`Amm::addLiquidityCall`].
pub fn add_liquidity(amount0: U256, amount1: U256) -> Bytes {
    Amm::addLiquidityCall { amount0, amount1 }.abi_encode().into()
}

/// Call data of [`Amm::swapCall`] with no minimum output.
pub fn swap(token_in: Address, amount_in: U256) -> Bytes {
    Amm::swapCall { tokenIn: token_in, amountIn: amount_in, leastOut: U256::ZERO }.abi_encode().into()
}

#[cfg(test)]
mod tests {
    use alloy_primitives::keccak256;

    use super::*;

    /// Goal: the bytecode matches the sources. Otherwise a source that changed without `npm run compile` would go
    /// unnoticed.
    #[test]
    fn the_bytecode_is_that_of_the_committed_sources() {
        let sources = [
            ("Token", include_str!("../contracts/Token.sol")),
            ("Amm", include_str!("../contracts/Amm.sol")),
            ("Lists", include_str!("../contracts/Lists.sol")),
        ];
        let artifacts: serde_json::Value = serde_json::from_str(ARTIFACTS).unwrap();
        assert_eq!(artifacts["contracts"].as_object().unwrap().len(), sources.len());
        for (name, source) in sources {
            let expected = keccak256(source).to_string();
            let found = &artifacts["contracts"][name]["source_keccak256"];
            assert_eq!(*found, expected, "{name}.sol: run npm run compile");
        }
    }

    #[test]
    fn init_codes_end_with_their_arguments() {
        let code = amm_init_code(Address::repeat_byte(1), Address::repeat_byte(2));
        assert_eq!(code[code.len() - 20..], [2; 20]);
        assert!(token_init_code("Slip", "SLP").len() > 1_000);
    }
}
