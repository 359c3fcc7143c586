//! The comparison of answers, and the table of allowed differences.

use std::collections::BTreeSet;

use serde_json::Value;
use slipnet::rpc::RpcError;

/// Fields of a simulated block and its logs that identify the chain; the roots of a simulated state are zeros here.
const OF_THE_CHAIN: [&str; 14] = [
    "hash",
    "parentHash",
    "parentBeaconBlockRoot",
    "number",
    "timestamp",
    "miner",
    "mixHash",
    "size",
    "stateRoot",
    "transactionsRoot",
    "receiptsRoot",
    "blockHash",
    "blockNumber",
    "blockTimestamp",
];

/// The allowed relative difference of gas estimates. Both programs search for the least sufficient gas, and stop at
/// most 1.5 % above it.
const ESTIMATES_APART_MAX: f64 = 0.02;

/// The programs that show a difference.
enum Programs {
    All,
    Only(&'static [&'static str]),
    Except(&'static [&'static str]),
}
use Programs::{All, Except, Only};

/// A difference by design.
struct Row {
    questions: &'static [&'static str],
    /// The path in the answer, with `*` for an index or an address.
    path: &'static str,
    programs: Programs,
    why: &'static str,
}

const STEPS: &[&str] = &["steps", "steps with memory", "steps alone"];
const FLAT: &[&str] = &["flat calls", "flat calls as parity's"];
const SIMULATED: &[&str] = &["eth_simulateV1", "eth_simulateV1 with transfers"];

const FORGETS_OPERANDS: &str = "geth tells the length of the stack, and the opcode that it does not know";
const CHAINS_ERRORS: &str = "geth writes `out of gas: ` before what else went wrong while it priced an instruction, and precompiles of \
     geth name their errors otherwise";
const NO_CODE_HASH: &str =
    "geth also tells the hash of code; that of an account that is not there is zero, and counts as a change";
const FLAT_FORM: &str =
    "geth's flat calls are in no block: they have number 0, position 0 and a hash of null";
const FLAT_RESULT: &str =
    "a flat call without a result has null here, as in parity; geth leaves the field out";
const FLAT_ERRORS: &str =
    "flat calls have parity's errors, with or without `convertParityErrors`, where geth has some of its own";
const FLAT_REVERTED: &str = "what a creation reverts with is its output; geth shows it as its code";

/// Programs whose calls undo all their effects.
const FAILED: &[&str] = &[
    "calls that log, then revert",
    "invalid",
    "invalid jump",
    "logs then revert",
    "memory out of gas",
    "out of gas",
    "returndata bounds",
    "revert",
    "revert reason",
    "stack overflow",
    "stack underflow",
    "unknown",
];
/// Programs in which an inner call runs out of gas, or fails in a precompile.
const INNER_FAILED: Programs = Only(&["inner out of gas", "precompile fails", "staticcall fails"]);
const NO_OPERANDS: Programs = Only(&["stack underflow", "unknown"]);

/// All allowed differences; each must occur. docs/clients.md describes them.
const TABLE: &[Row] = &[
    Row {
        questions: &["three steps"],
        path: "/structLogs/length",
        programs: Except(&["empty", "invalid"]),
        why: "`limit` counts instructions here, and bytes of the answer in geth",
    },
    Row {
        questions: &["steps", "steps with memory"],
        path: "/error",
        programs: Only(&["stack overflow"]),
        why: "a trace has at most `api.trace_mib_max`",
    },
    Row {
        questions: STEPS,
        path: "/structLogs/*/error",
        programs: Only(&["inner out of gas", "staticcall fails"]),
        why: CHAINS_ERRORS,
    },
    Row {
        questions: STEPS,
        path: "/structLogs/*/error",
        programs: Only(&["stack underflow"]),
        why: FORGETS_OPERANDS,
    },
    Row {
        questions: STEPS,
        path: "/structLogs/*/gasCost",
        programs: Only(&["memory out of gas", "out of gas", "returndata bounds"]),
        why: "an instruction that fails has the cost that it paid here, and that which it would have had in geth",
    },
    Row { questions: STEPS, path: "/structLogs/*/op", programs: Only(&["unknown"]), why: FORGETS_OPERANDS },
    Row {
        questions: &["calls", "calls with logs"],
        path: "/calls/*/error",
        programs: INNER_FAILED,
        why: CHAINS_ERRORS,
    },
    Row {
        questions: &["several"],
        path: "/callTracer/calls/*/error",
        programs: INNER_FAILED,
        why: CHAINS_ERRORS,
    },
    Row {
        questions: &["calls", "calls with logs", "top call", "top call with logs", "eth_createAccessList"],
        path: "/error",
        programs: NO_OPERANDS,
        why: FORGETS_OPERANDS,
    },
    Row { questions: &["several"], path: "/callTracer/error", programs: NO_OPERANDS, why: FORGETS_OPERANDS },
    Row { questions: &["eth_call"], path: "/error/message", programs: NO_OPERANDS, why: FORGETS_OPERANDS },
    Row {
        questions: &["eth_estimateGas"],
        path: "/error/message",
        programs: Only(&[
            "invalid",
            "invalid jump",
            "returndata bounds",
            "stack overflow",
            "stack underflow",
            "unknown",
        ]),
        why: "an estimate that fails tells with how much gas",
    },
    Row {
        questions: SIMULATED,
        path: "/*/calls/*/error/message",
        programs: NO_OPERANDS,
        why: FORGETS_OPERANDS,
    },
    Row {
        questions: SIMULATED,
        path: "/*/calls/*/maxUsedGas",
        programs: All,
        why: "a simulated call tells the gas after refunds alone",
    },
    Row {
        questions: &["eth_simulateV1 with transfers"],
        path: "/*/logsBloom",
        programs: Except(FAILED),
        why: "the bloom filter has the logs of transfers, too",
    },
    Row {
        questions: &["prestate", "prestate alone"],
        path: "/*/codeHash",
        programs: Except(&["empty"]),
        why: NO_CODE_HASH,
    },
    Row {
        questions: &["diff"],
        path: "/pre/*/codeHash",
        programs: Except(&[
            "empty",
            "calls that log, then revert",
            "invalid",
            "invalid jump",
            "logs then revert",
            "memory out of gas",
            "out of gas",
            "returndata bounds",
            "revert",
            "revert reason",
            "stack overflow",
            "stack underflow",
            "unknown",
        ]),
        why: NO_CODE_HASH,
    },
    Row {
        questions: &["diff"],
        path: "/post/*/codeHash",
        programs: Only(&["create", "create2"]),
        why: NO_CODE_HASH,
    },
    Row { questions: &["diff"], path: "/post/*", programs: All, why: NO_CODE_HASH },
    Row { questions: FLAT, path: "/*/blockHash", programs: All, why: FLAT_FORM },
    Row { questions: FLAT, path: "/*/blockNumber", programs: All, why: FLAT_FORM },
    Row { questions: FLAT, path: "/*/transactionPosition", programs: All, why: FLAT_FORM },
    Row {
        questions: FLAT,
        path: "/*/result",
        programs: Only(&[
            "call too rich",
            "create ef",
            "inner out of gas",
            "invalid",
            "invalid jump",
            "memory out of gas",
            "out of gas",
            "returndata bounds",
            "selfdestruct",
            "selfdestruct self",
            "stack overflow",
            "stack underflow",
            "staticcall fails",
            "unknown",
        ]),
        why: FLAT_RESULT,
    },
    Row {
        questions: &["flat calls as parity's"],
        path: "/*/result",
        programs: Only(&["precompile fails"]),
        why: FLAT_RESULT,
    },
    Row {
        questions: &["flat calls"],
        path: "/*/error",
        programs: Only(&[
            "call reverts",
            "call too rich",
            "calls that log, then revert",
            "create ef",
            "create reverts",
            "inner out of gas",
            "invalid",
            "invalid jump",
            "logs then revert",
            "memory out of gas",
            "out of gas",
            "returndata bounds",
            "revert",
            "revert reason",
            "stack overflow",
            "stack underflow",
            "staticcall fails",
            "unknown",
        ]),
        why: FLAT_ERRORS,
    },
    Row {
        questions: &["flat calls as parity's"],
        path: "/*/error",
        programs: Only(&["call too rich", "create ef", "precompile fails", "staticcall fails"]),
        why: FLAT_ERRORS,
    },
    Row { questions: FLAT, path: "/*/result/code", programs: Only(&["create reverts"]), why: FLAT_REVERTED },
    Row {
        questions: FLAT,
        path: "/*/result/output",
        programs: Only(&["create reverts"]),
        why: FLAT_REVERTED,
    },
];

/// A program, a question and a path in its answer.
type Place = (&'static str, &'static str, String);

/// The differences found, with both values.
#[derive(Default)]
pub(super) struct Differences {
    found: Vec<(Place, String)>,
}

impl Differences {
    /// Compares the answers to a question about a program.
    pub(super) fn compare(
        &mut self,
        program: &'static str,
        question: &'static str,
        geth: Result<Value, RpcError>,
        node: Result<Value, RpcError>,
    ) {
        let mut found = Vec::new();
        match (geth, node) {
            (Ok(geth), Ok(node)) if question == "eth_estimateGas" && are_near(&geth, &node) => {}
            (Ok(geth), Ok(node)) => {
                let is_simulated = SIMULATED.contains(&question);
                differ(&geth, &node, "", is_simulated, &mut found);
            }
            (Err(geth), Err(node)) => {
                differ(&geth.code.into(), &node.code.into(), "/error/code", false, &mut found);
                differ(&geth.message.into(), &node.message.into(), "/error/message", false, &mut found);
            }
            (geth, node) => {
                let show = |answer: &Result<Value, RpcError>| answer.as_ref().err().map(ToString::to_string);
                found.push(("/error".into(), format!("{:?} and {:?}", show(&geth), show(&node))));
            }
        }
        let place = |(path, values)| ((program, question, path), values);
        self.found.extend(found.into_iter().map(place));
    }

    /// Panics with each difference missing from the table, and each entry of the table that did not occur.
    pub(super) fn check(self, programs: &[&'static str]) {
        let mut expected = BTreeSet::new();
        for row in TABLE {
            for program in programs.iter().filter(|program| row.programs.contain(program)) {
                let places = row.questions.iter().map(|question| (*program, *question, row.path.to_owned()));
                expected.extend(places.map(|place| (place, row.why)));
            }
        }
        let expected_places: BTreeSet<&Place> = expected.iter().map(|(place, _)| place).collect();
        let found_places: BTreeSet<&Place> = self.found.iter().map(|(place, _)| place).collect();
        let mut wrong = String::new();
        for (place, values) in self.found.iter().filter(|(place, _)| !expected_places.contains(place)) {
            wrong += &format!("not in the table: {place:?}: {values}\n");
        }
        for (place, why) in expected.iter().filter(|(place, _)| !found_places.contains(place)) {
            wrong += &format!("in the table in vain: {place:?}: {why}\n");
        }
        assert!(wrong.is_empty(), "{wrong}");
    }
}

impl Programs {
    fn contain(&self, program: &str) -> bool {
        match self {
            All => true,
            Only(programs) => programs.contains(&program),
            Except(programs) => !programs.contains(&program),
        }
    }
}

fn are_near(one: &Value, other: &Value) -> bool {
    let gas = |value: &Value| u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok();
    let (Some(one), Some(other)) = (gas(one), gas(other)) else { return false };
    one.abs_diff(other) as f64 <= one.max(other) as f64 * ESTIMATES_APART_MAX
}

/// Lists where two answers differ. An object that lacks a field is one difference, not one for each part of the field.
fn differ(geth: &Value, node: &Value, path: &str, is_simulated: bool, found: &mut Vec<(String, String)>) {
    match (geth, node) {
        (Value::Object(geth), Value::Object(node)) => {
            let names: BTreeSet<_> = geth.keys().chain(node.keys()).collect();
            for name in names.into_iter().filter(|name| !is_simulated || !is_of_the_chain(name)) {
                let path = format!("{path}/{}", if name.starts_with("0x") { "*" } else { name.as_str() });
                match (geth.get(name), node.get(name)) {
                    (Some(geth), Some(node)) => differ(geth, node, &path, is_simulated, found),
                    (geth, node) => found.push((path, both(geth, node))),
                }
            }
        }
        (Value::Array(geth), Value::Array(node)) => {
            if geth.len() != node.len() {
                found.push((format!("{path}/length"), format!("{} and {}", geth.len(), node.len())));
            }
            for (geth, node) in geth.iter().zip(node) {
                differ(geth, node, &format!("{path}/*"), is_simulated, found);
            }
        }
        (geth, node) if geth == node => {}
        (geth, node) => found.push((path.to_owned(), both(Some(geth), Some(node)))),
    }
}

fn is_of_the_chain(name: &str) -> bool {
    OF_THE_CHAIN.contains(&name)
}

fn both(geth: Option<&Value>, node: Option<&Value>) -> String {
    let show = |value: Option<&Value>| {
        value
            .map_or_else(|| "nothing".into(), |value| value.to_string().chars().take(200).collect::<String>())
    };
    format!("geth has {}, the node {}", show(geth), show(node))
}
