//! [`Questions`]: the queries that a wallet makes to a node, in turn, based on earlier answers. Sans-I/O.
//!
//! Logs and receipts are requested only for batches that this node has shown to this reader. A node that shows a
//! transaction but has no receipt of it has failed the read.

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::receipt::TRANSFER_EVENT;
use crate::{contracts, rpc::quantity};

/// The number of queries in a cycle.
const TURNS: usize = 7;
/// Batches of one log query: a second or two of the chain.
const LOG_BATCHES: u64 = 10;
/// The most transactions of a batch that are kept for receipt queries.
const TRANSACTIONS_KEPT: usize = 16;
/// The slots that one call reads, and the range from which they are chosen: those of the workload `storage`.
const CALL_SLOTS: u64 = 20;
const SLOT_SPACE: u64 = 1_000_000;
/// The length of a 32-byte answer in hexadecimal digits, with `0x`.
const WORD_DIGITS: usize = 66;

/// A contract of the workload, for `eth_call`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Contract {
    /// An ERC-20; the call reads a balance.
    Token(Address),
    /// A contract of slots; the call returns the sum of some of them.
    Lists(Address),
}

/// One query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Question {
    Head,
    Balance(Address),
    Nonce(Address),
    /// The last batch, with the hashes of its transactions.
    Batch,
    Call(Address, Bytes),
    /// The logs that match this filter.
    Logs(Value),
    Receipt(B256),
}

impl Question {
    /// Returns the method and parameters.
    pub(super) fn call(&self) -> (&'static str, Value) {
        match self {
            Question::Head => ("eth_blockNumber", json!([])),
            Question::Balance(account) => ("eth_getBalance", json!([account, "latest"])),
            Question::Nonce(account) => ("eth_getTransactionCount", json!([account, "pending"])),
            Question::Batch => ("eth_getBlockByNumber", json!(["latest", false])),
            Question::Call(to, input) => ("eth_call", json!([{ "to": to, "input": input }, "latest"])),
            Question::Logs(filter) => ("eth_getLogs", json!([filter])),
            Question::Receipt(hash) => ("eth_getTransactionReceipt", json!([hash])),
        }
    }
}

/// A reader's queries to one node.
#[derive(Clone, Default, Debug)]
pub(super) struct Questions {
    accounts: Vec<Address>,
    contract: Option<Contract>,
    /// The last batch that the node showed.
    head: Option<u64>,
    /// Some transactions of the last batch that had any.
    transactions: Vec<B256>,
}

impl Questions {
    /// Makes queries about these accounts, and a contract if there is one.
    pub(super) fn new(accounts: Vec<Address>, contract: Option<Contract>) -> Questions {
        Questions { accounts, contract, ..Questions::default() }
    }

    /// Returns the query of a turn. Without a contract, the contract's turn queries the head. Turns that need a known
    /// batch query the last batch while none is known.
    pub(super) fn next(&self, read: usize, turn: usize) -> Question {
        let account = self.accounts.get(read % self.accounts.len().max(1)).copied().unwrap_or_default();
        match turn % TURNS {
            0 => Question::Head,
            1 => Question::Balance(account),
            2 => Question::Nonce(account),
            3 => Question::Batch,
            4 => self.contract.map_or(Question::Head, |contract| contract.asked(turn, account)),
            5 => self.head.map_or(Question::Batch, |head| self.logs(head, account)),
            _ => {
                let place = turn / TURNS % self.transactions.len().max(1);
                self.transactions.get(place).map_or(Question::Batch, |hash| Question::Receipt(*hash))
            }
        }
    }

    /// Returns the query for an account's transfers of a token in the last batches; without a token, for the account's
    /// own logs.
    fn logs(&self, head: u64, account: Address) -> Question {
        let from = head.saturating_sub(LOG_BATCHES - 1);
        let mut filter = json!({ "fromBlock": format!("{from:#x}"), "toBlock": format!("{head:#x}") });
        match self.contract {
            Some(Contract::Token(token)) => {
                filter["address"] = json!(token);
                filter["topics"] = json!([keccak256(TRANSFER_EVENT), account.into_word()]);
            }
            _ => filter["address"] = json!(account),
        }
        Question::Logs(filter)
    }

    /// Checks an answer, and keeps what later queries need.
    ///
    /// # Errors
    /// If the answer does not fit the query.
    pub(super) fn learn(&mut self, question: &Question, answer: &Value) -> Result<()> {
        let text = answer.as_str();
        match question {
            Question::Head | Question::Balance(_) | Question::Nonce(_) => {
                let is_number = text.is_some_and(|text| text.starts_with("0x"));
                ensure!(is_number, "expected a number, found {answer}");
            }
            Question::Batch => {
                let hashes =
                    answer["transactions"].as_array().context("the batch has no list of transactions")?;
                self.head = Some(quantity(&answer["number"])?);
                if !hashes.is_empty() {
                    let kept = hashes.iter().take(TRANSACTIONS_KEPT);
                    self.transactions = kept.filter_map(|hash| hash.as_str()?.parse().ok()).collect();
                }
            }
            Question::Call(..) => {
                ensure!(text.is_some_and(|text| text.len() == WORD_DIGITS), "a call answered {answer}");
            }
            Question::Logs(_) => ensure!(answer.is_array(), "expected logs, found {answer}"),
            Question::Receipt(hash) => {
                ensure!(answer["transactionHash"] == json!(hash), "there is no receipt of {hash}");
            }
        }
        Ok(())
    }

    /// Forgets the node's answers: after a failure, the node may have lost data.
    pub(super) fn forget(&mut self) {
        self.head = None;
        self.transactions.clear();
    }
}

impl Contract {
    fn asked(self, turn: usize, account: Address) -> Question {
        match self {
            Contract::Token(token) => Question::Call(token, contracts::balance_of(account)),
            Contract::Lists(lists) => {
                let first = turn as u64 * CALL_SLOTS;
                let slots = (first..first + CALL_SLOTS).map(|slot| U256::from(slot % SLOT_SPACE));
                Question::Call(lists, contracts::touch(slots.collect(), Vec::new()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(byte: u8) -> Address {
        Address::repeat_byte(byte)
    }

    fn methods(questions: &Questions) -> Vec<&'static str> {
        (0..TURNS).map(|turn| questions.next(0, turn).call().0).collect()
    }

    /// Goal: nothing unknown is queried; once a batch was shown, its logs and receipts are queried.
    #[test]
    fn what_a_node_showed_is_asked_about() {
        let mut questions = Questions::new(vec![at(1), at(2)], Some(Contract::Token(at(9))));
        let simple = ["eth_blockNumber", "eth_getBalance", "eth_getTransactionCount", "eth_getBlockByNumber"];
        let unknown = ["eth_call", "eth_getBlockByNumber", "eth_getBlockByNumber"];
        assert_eq!(methods(&questions), [&simple[..], &unknown[..]].concat());
        let hashes: Vec<B256> = (0..20).map(B256::repeat_byte).collect();
        let batch = json!({ "number": "0x20", "transactions": hashes });
        questions.learn(&Question::Batch, &batch).unwrap();
        let known = ["eth_call", "eth_getLogs", "eth_getTransactionReceipt"];
        assert_eq!(methods(&questions), [&simple[..], &known[..]].concat());
        // An empty batch advances the head and keeps the transactions.
        questions.learn(&Question::Batch, &json!({ "number": "0x21", "transactions": [] })).unwrap();
        let Question::Logs(filter) = questions.next(1, 5) else { panic!("logs") };
        assert_eq!((&filter["fromBlock"], &filter["toBlock"]), (&json!("0x18"), &json!("0x21")));
        assert_eq!((&filter["address"], &filter["topics"][1]), (&json!(at(9)), &json!(at(2).into_word())));
        assert_eq!(questions.next(0, TURNS + 6), Question::Receipt(hashes[1]));
        assert_eq!(questions.next(0, TRANSACTIONS_KEPT * TURNS + 6), Question::Receipt(hashes[0]));
        questions.forget();
        assert_eq!(methods(&questions), [&simple[..], &unknown[..]].concat());
    }

    #[test]
    fn a_workload_without_a_token_is_asked_otherwise() {
        use alloy_sol_types::SolCall;
        let lists = Questions::new(vec![at(1)], Some(Contract::Lists(at(8))));
        let Question::Call(to, input) = lists.next(0, 4) else { panic!("a call") };
        let call = contracts::Lists::touchCall::abi_decode(&input).unwrap();
        assert_eq!((to, call.reads.len(), call.writes.len()), (at(8), 20, 0));
        let mut none = Questions::new(vec![at(1)], None);
        assert_eq!(none.next(0, 4), Question::Head);
        none.learn(&Question::Batch, &json!({ "number": "0x2", "transactions": [] })).unwrap();
        let Question::Logs(filter) = none.next(0, 5) else { panic!("logs") };
        assert_eq!((&filter["fromBlock"], &filter["address"]), (&json!("0x0"), &json!(at(1))));
    }

    /// Goal: an invalid answer counts as a failure, however fast it was.
    #[test]
    fn answers_are_checked() {
        let mut questions = Questions::default();
        let hash = B256::repeat_byte(1);
        let receipt = json!({ "transactionHash": hash });
        for (question, good, bad) in [
            (Question::Head, json!("0x5"), Value::Null),
            (Question::Balance(at(1)), json!("0x0"), json!("many")),
            (Question::Batch, json!({ "number": "0x5", "transactions": [] }), Value::Null),
            (Question::Call(at(1), Bytes::new()), json!(B256::ZERO), json!("0x")),
            (Question::Logs(Value::Null), json!([]), Value::Null),
            (Question::Receipt(hash), receipt.clone(), Value::Null),
            (Question::Receipt(B256::ZERO), json!({ "transactionHash": B256::ZERO }), receipt),
        ] {
            questions.learn(&question, &good).unwrap();
            assert!(questions.learn(&question, &bad).is_err(), "{question:?}: {bad}");
        }
    }
}
