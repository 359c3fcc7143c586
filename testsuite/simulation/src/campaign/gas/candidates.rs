//! The [`Candidate`]s: contracts that repeat one operation until their gas is used up. They cover each opcode and
//! precompile, with the inputs that may be slowest, and mixes of them. All inputs are in the code: call data would cost
//! the attacker gas.

use alloy_primitives::{Address, U256};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use slipstream_executor::speed::programs;
use slipstream_types::chain::Fork;

/// A contract to measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    pub(super) name: String,
    pub(super) code: Vec<u8>,
    /// Other contracts that the candidate calls, with their addresses.
    pub(super) others: Vec<(Address, Vec<u8>)>,
}

/// The address of a contract of the maximum size (EIP-170), which other candidates copy and call.
pub(super) const LARGE: Address = Address::repeat_byte(0xb1);
/// The size of that contract.
pub(super) const CODE_BYTES_MAX: usize = 24_576;
/// The address byte of a mix's first contract; the others follow.
const MIXED: u8 = 0x60;
/// The number of contracts in a mix.
const MIXED_COUNT: usize = 3;

/// Opcodes of arithmetic and comparison, with their number of operands; the last operand decides how slow a slow opcode
/// is.
const ARITHMETIC: [(&str, u8, usize); 26] = [
    ("ADD", 0x01, 2),
    ("MUL", 0x02, 2),
    ("SUB", 0x03, 2),
    ("DIV", 0x04, 2),
    ("SDIV", 0x05, 2),
    ("MOD", 0x06, 2),
    ("SMOD", 0x07, 2),
    ("ADDMOD", 0x08, 3),
    ("MULMOD", 0x09, 3),
    ("EXP", 0x0a, 2),
    ("SIGNEXTEND", 0x0b, 2),
    ("LT", 0x10, 2),
    ("GT", 0x11, 2),
    ("SLT", 0x12, 2),
    ("SGT", 0x13, 2),
    ("EQ", 0x14, 2),
    ("ISZERO", 0x15, 1),
    ("AND", 0x16, 2),
    ("OR", 0x17, 2),
    ("XOR", 0x18, 2),
    ("NOT", 0x19, 1),
    ("BYTE", 0x1a, 2),
    ("SHL", 0x1b, 2),
    ("SHR", 0x1c, 2),
    ("SAR", 0x1d, 2),
    ("CLZ", 0x1e, 1),
];
/// Widths of the last operand, in bits.
const WIDTHS: [usize; 5] = [8, 64, 128, 192, 256];

/// Opcodes that push a value of the environment.
const FACTS: [(&str, u8); 16] = [
    ("ADDRESS", 0x30),
    ("ORIGIN", 0x32),
    ("CALLER", 0x33),
    ("CALLVALUE", 0x34),
    ("CALLDATASIZE", 0x36),
    ("CODESIZE", 0x38),
    ("GASPRICE", 0x3a),
    ("RETURNDATASIZE", 0x3d),
    ("TIMESTAMP", 0x42),
    ("PREVRANDAO", 0x44),
    ("CHAINID", 0x46),
    ("SELFBALANCE", 0x47),
    ("BASEFEE", 0x48),
    ("BLOBBASEFEE", 0x4a),
    ("MSIZE", 0x59),
    ("GAS", 0x5a),
];

/// Returns every single candidate, at the prices of new chains.
pub(super) fn all() -> Vec<Candidate> {
    let mut all = arithmetic();
    all.extend(FACTS.map(|(name, opcode)| looped(name, &[], &[opcode, 0x50], 64)));
    all.extend(memory());
    all.extend(state());
    all.extend(frames());
    all.extend(precompiles());
    all
}

fn arithmetic() -> Vec<Candidate> {
    let mut all = Vec::new();
    for (name, opcode, operands) in ARITHMETIC {
        for bits in WIDTHS {
            // The last operand is pushed first; each body copies all of them.
            let mut before = push(U256::MAX >> (256 - bits));
            before.extend(push(U256::MAX).repeat(operands - 1));
            let copies = vec![0x7f + operands as u8; operands];
            all.push(looped(
                &format!("{name} {bits} bits"),
                &before,
                &[&copies[..], &[opcode, 0x50]].concat(),
                32,
            ));
        }
    }
    all
}

fn memory() -> Vec<Candidate> {
    let mut all = vec![
        looped("JUMP", &[], &[], 1),
        looped("PUSH0", &[], &bytes("5f50"), 64),
        looped("PUSH32", &[], &[push(U256::MAX), vec![0x50]].concat(), 64),
        looped("DUP16", &[0x5f; 16], &bytes("8f50"), 64),
        looped("SWAP16", &[0x5f; 17], &bytes("9f"), 64),
        looped("MLOAD", &bytes("5f610fe052"), &bytes("610fc15150"), 64),
        looped("MSTORE", &bytes("5f610fe052"), &bytes("5f610fc152"), 64),
        looped("MSTORE8", &bytes("5f610fe052"), &bytes("5f610fc153"), 64),
        looped("CALLDATALOAD", &[], &bytes("5f3550"), 64),
        looped("BLOCKHASH", &[], &bytes("5f4050"), 64),
        looped("TLOAD", &[], &bytes("5f5c50"), 64),
    ];
    for size in [0, 1, 32, 135, 136, 1_024, 4_096, 32_768] {
        let size = number(size);
        let expanded = bytes("5f61ffe052");
        let of =
            |name: &str, body: Vec<u8>, times| looped(&format!("{name} {size}"), &expanded, &body, times);
        let [wide, zero] = [push(size), vec![0x5f]];
        all.push(of("KECCAK256", [&wide[..], &bytes("5f2050")].concat(), 16));
        all.push(of("MCOPY", [&wide[..], &zero, &bytes("6001 5e")].concat(), 16));
        all.push(of("CODECOPY", [&wide[..], &zero, &zero, &[0x39]].concat(), 16));
        all.push(of("CALLDATACOPY", [&wide[..], &zero, &zero, &[0x37]].concat(), 16));
        all.push(of("EXTCODECOPY", [&wide[..], &zero, &zero, &push_address(LARGE), &[0x3c]].concat(), 16));
        all.push(of("LOG0", [&wide[..], &zero, &[0xa0]].concat(), 16));
        all.push(of("LOG4", [&[0x5f; 4][..], &wide, &zero, &[0xa4]].concat(), 16));
        // The data that the identity precompile returned is copied again.
        let returned = [&bytes("5f5f")[..], &wide, &bytes("5f60045afa50"), &wide, &bytes("5f5f3e")].concat();
        all.push(of("RETURNDATACOPY", returned, 8));
    }
    all
}

/// Returns reads and writes of the state; the number on the stack increases, so that each access is cold.
fn state() -> Vec<Candidate> {
    let cold = |name: &str, body: &str| looped(name, &[0x5f], &bytes(&format!("{body} 600101")), 16);
    let account = "80 61ffff 01";
    vec![
        cold("SLOAD cold", "80 54 50"),
        cold("BALANCE cold", &format!("{account} 31 50")),
        cold("EXTCODESIZE cold", &format!("{account} 3b 50")),
        cold("EXTCODEHASH cold", &format!("{account} 3f 50")),
        cold("CALL cold", "5f5f5f5f5f 85 61ffff 01 5a f1 50"),
        cold("CALL new", "5f5f5f5f6001 85 61ffff 01 5a f1 50"),
        cold("SSTORE new", "6001 81 55"),
        cold("TSTORE new", "6001 81 5d"),
        looped("SLOAD warm", &[], &bytes("5f5450"), 64),
        looped("BALANCE warm", &[], &bytes("5f3150"), 64),
        looped("SSTORE warm", &[], &bytes("60015f55 60025f55"), 32),
        looped("SSTORE back", &[], &bytes("60015f55 5f5f55"), 32),
        looped("TSTORE warm", &[], &bytes("60015f5d"), 32),
    ]
}

/// Returns calls and creations.
fn frames() -> Vec<Candidate> {
    let call = |name: &str, opcode: u8, to: Address| {
        let value: &[u8] = if matches!(opcode, 0xf1 | 0xf2) { &[0x5f; 5] } else { &[0x5f; 4] };
        looped(name, &[], &[value, &push_address(to), &[0x5a, opcode, 0x50]].concat(), 16)
    };
    // Fills memory with a STOP and then JUMPDESTs, by doubling. That is init code of the maximum size (EIP-3860), which
    // is analysed and stops at once.
    let mut init = [push(U256::MAX / U256::from(0xff) * U256::from(0x5b)), bytes("602052")].concat();
    for copied in (5..16).map(|power| number(1 << power)) {
        init.extend([push(copied), bytes("6020"), push(copied + U256::from(0x20)), vec![0x5e]].concat());
    }
    vec![
        call("CALL large", 0xf1, LARGE),
        call("CALLCODE large", 0xf2, LARGE),
        call("DELEGATECALL large", 0xf4, LARGE),
        call("STATICCALL large", 0xfa, LARGE),
        call("CALL nobody", 0xf1, Address::repeat_byte(0xee)),
        // Calls itself with all but a 64th of its gas, as deep as possible.
        looped("recursion", &[], &bytes("5f5f5f5f5f305af150"), 1),
        looped("CREATE empty", &[], &bytes("5f5f5ff050"), 4),
        looped("CREATE 48 KiB", &init, &bytes("61c0005f5ff050"), 4),
        looped("CREATE2 48 KiB", &[&init[..], &[0x5f]].concat(), &bytes("80 61c0005f5f f5 50 600101"), 4),
        // Init code that returns 24 KiB of zeros, which are then stored: 200 gas a byte.
        looped("CREATE stored", &bytes("655f6160005ff35f52"), &bytes("6006601a5ff050"), 4),
        looped("SELFDESTRUCT", &bytes("6133ff5f52"), &bytes("6002601e5ff050"), 4),
        // Init code that reverts its own creation.
        looped("REVERT", &bytes("625f5ffd5f52"), &bytes("6003601d5ff050"), 4),
    ]
}

fn precompiles() -> Vec<Candidate> {
    let known = programs(Fork::default());
    let data = |name: &str| {
        let found = known.iter().find(|program| program.name == name);
        found.map(|program| program.data.to_vec())
    };
    let mut all = Vec::new();
    let mut add = |name: String, address: u16, data: Vec<u8>| all.push(calls(name, address, &data));
    for size in [0, 1, 55, 56, 64, 128, 1_024, 20_000] {
        for (name, address) in [("SHA256", 2), ("RIPEMD160", 3), ("IDENTITY", 4)] {
            add(format!("{name} {size}"), address, vec![0xa5; size]);
        }
    }
    for rounds in [0u32, 1, 12, 1_000, 1_000_000] {
        let data = [&rounds.to_be_bytes()[..], &[0xa5; 208], &[1]].concat();
        add(format!("BLAKE2F {rounds} rounds"), 9, data);
    }
    for (name, address) in [
        ("ecrecover", 1),
        ("bn254_add", 6),
        ("bn254_mul", 7),
        ("point_evaluation", 0x0a),
        ("bls_g1_add", 0x0b),
        ("bls_g2_add", 0x0d),
        ("bls_map_fp", 0x10),
        ("bls_map_fp2", 0x11),
        ("p256", 0x100),
    ] {
        data(name).into_iter().for_each(|data| add(name.to_owned(), address, data));
    }
    for (name, address) in
        [("bn254_pairing_1", 8), ("bls_g1_msm_1", 0x0c), ("bls_g2_msm_1", 0x0e), ("bls_pairing_1", 0x0f)]
    {
        let Some(one) = data(name) else { continue };
        for count in [1, 2, 4, 16, 64] {
            add(format!("{} {count}", name.trim_end_matches("_1")), address, one.repeat(count));
        }
    }
    for (name, data) in powers() {
        add(name, 5, data);
    }
    all
}

/// Returns inputs of MODEXP over the sizes of base, modulus and exponent, and the shape of the modulus.
fn powers() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for length in [1, 8, 16, 24, 32, 33, 40, 64, 128, 256, 512, 1_024] {
        for exponent in [1, 2, 8, 32, 33, 64, 81, 128, 512, 1_024] {
            for (shape, last) in [("odd", 0xff), ("even", 0xfe), ("by 256", 0)] {
                let mut modulus = vec![0xff; length];
                modulus[length - 1] = last;
                let lengths = [length, exponent, length].map(|it| number(it).to_be_bytes::<32>()).concat();
                let data = [&lengths[..], &vec![0xff; length], &vec![0xff; exponent], &modulus].concat();
                all.push((format!("MODEXP {length}^{exponent} {shape}"), data));
            }
        }
    }
    all
}

/// Returns contracts that call a few of the given ones in turn, with a random gas limit each. `seed` determines the
/// calls and the limits.
pub(super) fn mixes(of: &[Candidate], count: usize, seed: u64) -> Vec<Candidate> {
    let mut random = StdRng::seed_from_u64(seed);
    let mix = |_| {
        let parts: Vec<&Candidate> = of.choose_multiple(&mut random, MIXED_COUNT).collect();
        let mut body = Vec::new();
        let mut others = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let at = Address::repeat_byte(MIXED + index as u8);
            let gas = random.random_range(60_000..400_000);
            body.extend([&[0x5f; 5][..], &push_address(at), &push(number(gas)), &[0xf1, 0x50]].concat());
            others.push((at, part.code.clone()));
        }
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        Candidate { others, ..looped(&names.join(" + "), &[], &body, 1) }
    };
    (0..count).map(mix).collect()
}

/// Runs `before` once, and loops over `body`, with `times` copies to a jump.
fn looped(name: &str, before: &[u8], body: &[u8], times: usize) -> Candidate {
    let [high, low] = (before.len() as u16).to_be_bytes();
    let code = [before, &[0x5b], &body.repeat(times), &[0x61, high, low, 0x56]].concat();
    Candidate { name: name.to_owned(), code, others: Vec::new() }
}

/// Calls a precompile with `data`, which follows the code.
fn calls(name: String, address: u16, data: &[u8]) -> Candidate {
    let [size, to] = [data.len() as u16, address].map(u16::to_be_bytes);
    let body = [&[0x5f, 0x5f, 0x61][..], &size, &[0x5f, 0x61], &to, &[0x5a, 0xfa, 0x50]].concat();
    let with = |at: u16| {
        let before = [&[0x61][..], &size, &[0x61], &at.to_be_bytes(), &[0x5f, 0x39]].concat();
        looped(&name, &before, &body, 1).code
    };
    let code = with(with(0).len() as u16);
    Candidate { code: [code, data.to_vec()].concat(), name, others: Vec::new() }
}

fn push(value: U256) -> Vec<u8> {
    [&[0x7f][..], &value.to_be_bytes::<32>()].concat()
}

fn push_address(address: Address) -> Vec<u8> {
    [&[0x73][..], address.as_slice()].concat()
}

fn number(value: usize) -> U256 {
    U256::from(value)
}

fn bytes(code: &str) -> Vec<u8> {
    hex::decode(code.replace(' ', "")).expect("the table is hexadecimal")
}
