//! The programs that are measured: loops that run until their gas is used up.

use std::iter::repeat_n;

use alloy_primitives::{Address, B256, Bytes, hex};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, BatchNumber, ChainConfig, StateKey, StateValue, chain::Fork};

use super::Work;
use crate::{call::call, error::ExecuteError, evm::BatchEnv, interrupt::Interrupt, request::CallRequest};

/// Code that runs until its gas is used up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The kind of its work.
    pub work: Work,
    /// Its unique name.
    pub name: &'static str,
    /// The code.
    pub code: Bytes,
    /// Its call data: a precompile's input.
    pub data: Bytes,
}

/// A state with one program, to run it repeatedly.
pub struct Runner {
    state: MemoryState,
    env: BatchEnv,
    request: CallRequest,
}

impl Runner {
    /// Puts the program's code in a state under a fork's rules.
    pub fn new(program: &Program, fork: Fork) -> Runner {
        const AT: Address = Address::repeat_byte(0x5e);
        let mut state = MemoryState::default();
        let code_hash = Some(state.insert_code(program.code.clone()));
        let account = AccountValue { nonce: 1, code_hash, ..AccountValue::default() };
        state.insert(StateKey::Account(AT), StateValue::Account(account));
        let chain = ChainConfig { fork, ..ChainConfig::default() };
        let env = BatchEnv::behind(B256::ZERO, &chain, BatchNumber::new(1), 0, Address::ZERO);
        let request = CallRequest { to: Some(AT), data: program.data.clone(), ..CallRequest::default() };
        Runner { state, env, request }
    }

    /// Runs the program with a gas limit of `gas`, and returns the gas that it used.
    ///
    /// # Errors
    /// If the EVM does not accept the call.
    pub fn run(&self, gas: u64) -> Result<u64, ExecuteError> {
        let request = CallRequest { gas: Some(gas), ..self.request.clone() };
        Ok(call(&self.state, &self.env, &request, &Interrupt::never())?.gas_used)
    }
}

/// Every program that a fork's EVM can run.
pub fn programs(fork: Fork) -> Vec<Program> {
    let mut programs = opcodes();
    programs.extend(hashes());
    programs.extend(signatures(fork));
    programs.extend(powers());
    programs.extend(bn254());
    if fork != Fork::Cancun {
        programs.extend(bls12381());
    }
    programs
}

fn opcodes() -> Vec<Program> {
    // The operands: two words of 256 one bits, and a divisor of 128.
    const OPERANDS: &str = "6fffffffffffffffffffffffffffffffff 5f19 5f19";
    vec![
        loops(Work::Plain, "jumps", "", "", 1),
        loops(Work::Plain, "stack", "", "5f50", 64),
        loops(Work::Plain, "memory", "", "5f5f52", 64),
        // MCOPY of 4 KiB within 8 KiB.
        loops(Work::Plain, "copies", "5f611fe052", "6110005f6110005e", 8),
        loops(Work::Arithmetic, "division", OPERANDS, "82810450", 32),
        loops(Work::Arithmetic, "mulmod", OPERANDS, "8282820950", 32),
        loops(Work::Arithmetic, "exponent", OPERANDS, "81810a50", 8),
    ]
}

fn hashes() -> Vec<Program> {
    let [long, rounds] = [vec![0xa5; 4096], [0, 0, 4, 0].into_iter().chain([0xa5; 208]).chain([1]).collect()];
    vec![
        loops(Work::Keccak, "keccak_4k", "", "6110005f2050", 1),
        loops(Work::Keccak, "keccak_empty", "", "5f5f2050", 32),
        precompile(Work::Sha256, "sha256_4k", 2, long.clone()),
        precompile(Work::Ripemd160, "ripemd160_4k", 3, long),
        precompile(Work::Blake2f, "blake2f_1024", 9, rounds),
    ]
}

fn signatures(fork: Fork) -> Vec<Program> {
    let mut programs = vec![
        precompile(
            Work::Ecrecover,
            "ecrecover",
            1,
            hex(&[
                "456e9aea5e197a1f1af7a3e85a3212fa4049a3ba34c2289b4c860fc0b0c64ef3",
                "000000000000000000000000000000000000000000000000000000000000001c",
                "9242685bf161793cc25603c231bc2f568eb630ea16aa137d2664ac8038825608",
                "4f8ae3bd7535248d0bd448298cc2e2071e56992d0774dc340c368ae950852ada",
            ]),
        ),
        precompile(
            Work::PointEvaluation,
            "point_evaluation",
            0x0a,
            hex(&[
                "01e798154708fe7789429634053cbf9f99b619f9f084048927333fce637f549b",
                "73eda753299d7d483339d80809a1d80553bda402fffe5bfeffffffff00000000",
                "1522a4a7f34e1ea350ae07c29c96c7e79655aa926122e95fe69fcbd932ca49e9",
                "8f59a8d2a1a625a17f3fea0fe5eb8c896db3764f3185481bc22f91b4aaffcca25f26936857bc3a7c2539ea8ec3a952b7",
                "a62ad71d14c5719385c0686f1871430475bf3a00f0aa3f7b8dd99a9abc2160744faf0070725e00b60ad9a026a15b1a8c",
            ]),
        ),
    ];
    if fork == Fork::Osaka {
        programs.push(precompile(
            Work::P256,
            "p256",
            0x100,
            hex(&[
                "4cee90eb86eaa050036147a12d49004b6b9c72bd725d39d4785011fe190f0b4d",
                "a73bd4903f0ce3b639bbbf6e8e80d16931ff4bcf5993d58468e8fb19086e8cac",
                "36dbcd03009df8c59286b162af3bd7fcc0450c9aa81be5d10d312af6c66b1d60",
                "4aebd3099c618202fcfe16ae7770b0c49ab5eadf74b754204a3bb6060e44eff3",
                "7618b065f9832de4ca6ca971a7a1adc826d0f7c00181a5fb2ddf79ae00b4e10e",
            ]),
        ));
    }
    programs
}

/// MODEXP's price depends on the sizes, and each fork prices different sizes too low. Even moduli take more work than
/// odd ones.
fn powers() -> Vec<Program> {
    let bits = |bytes: usize, last: u8| repeat_n(0xff, bytes - 1).chain([last]).collect::<Vec<u8>>();
    // A modulus of words of ones, each after a word of zeros.
    let sparse = [&[0][..], &bits(31, 0xff)].concat().repeat(32);
    let power = |name, base: Vec<u8>, exponent: Vec<u8>, modulus: Vec<u8>| {
        let length = |part: &[u8]| B256::from(alloy_primitives::U256::from(part.len())).0;
        let lengths = [length(&base), length(&exponent), length(&modulus)].concat();
        precompile(Work::Modexp, name, 5, [lengths, base, exponent, modulus].concat())
    };
    vec![
        power("modexp_8_81", bits(8, 0xff), bits(81, 0xff), bits(8, 0xfe)),
        power("modexp_8_112_even", bits(8, 0xff), bits(112, 0xff), bits(8, 0)),
        power("modexp_32_32_even", bits(32, 0xff), bits(32, 0xff), bits(32, 0)),
        power("modexp_256_128_odd", bits(256, 0xff), bits(128, 0xff), bits(256, 1)),
        power("modexp_1024_3", bits(1024, 0xff), vec![3], sparse),
    ]
}

fn bn254() -> Vec<Program> {
    const POINT: [&str; 2] = [
        "18b18acfb4c2c30276db5411368e7185b311dd124691610c5d3b74034e093dc9",
        "063c909c4720840cb5134cb9f59fa749755796819658d32efc0d288198f37266",
    ];
    const OTHER: [&str; 2] = [
        "07c2b7f58a84bd6145f00c9c2bc0bb1a187f20ff2c92963a88019e7c6a014eed",
        "06614e20c147e940f2d70da3f74c9a17df361706a4485c742bd6788478fa17d7",
    ];
    const SECOND_GROUP: [&str; 4] = [
        "198e9393920d483a7260bfb731fb5d25f1aa493335a9e71297e485b7aef312c2",
        "1800deef121f1e76426a00665e5c4479674322d4f75edadd46debd5cd992f6ed",
        "090689d0585ff075ec9e99ad690c3395bc4b313370b38ef355acdadcd122975b",
        "12c85ea5db8c6deb4aab71808dcb408fe3d1e7690c43d37b4ce6cc0166fa7daa",
    ];
    let scalar = &*"ff".repeat(32);
    let pair = hex(&[&POINT[..], &SECOND_GROUP].concat());
    vec![
        precompile(Work::Bn254, "bn254_add", 6, hex(&[POINT, OTHER].concat())),
        precompile(Work::Bn254, "bn254_mul", 7, hex(&[POINT[0], POINT[1], scalar])),
        precompile(Work::Bn254, "bn254_pairing_1", 8, pair.clone()),
        precompile(Work::Bn254, "bn254_pairing_4", 8, pair.repeat(4)),
    ]
}

fn bls12381() -> Vec<Program> {
    const G1: [&str; 2] = [
        "17f1d3a73197d7942695638c4fa9ac0fc3688c4f9774b905a14e3a3f171bac586c55e83ff97a1aeffb3af00adb22c6bb",
        "08b3f481e3aaa0f1a09e30ed741d8ae4fcf5e095d5d00af600db18cb2c04b3edd03cc744a2888ae40caa232946c5e7e1",
    ];
    const G2: [&str; 4] = [
        "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8",
        "13e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e",
        "0ce5d527727d6e118cc9cdc6da2e351aadfd9baa8cbdd3a76d429a695160d12c923ac9cc3baca289e193548608b82801",
        "0606c4a02ea734cc32acd2b02bc28b99cb3e287e85a763af267492ab572e99ab3f370d275cec1da1aaa9075ff05f79be",
    ];
    // Field elements take 64 bytes.
    let padded = |elements: &[&str]| {
        elements.iter().flat_map(|element| [vec![0; 16], hex(&[element])].concat()).collect::<Vec<u8>>()
    };
    let (first, second, scalar) = (padded(&G1), padded(&G2), vec![0xff; 32]);
    let of = |name, address, data: Vec<u8>| precompile(Work::Bls12381, name, address, data);
    vec![
        of("bls_g1_add", 0x0b, first.repeat(2)),
        of("bls_g1_msm_1", 0x0c, [&first[..], &scalar].concat()),
        of("bls_g1_msm_16", 0x0c, [&first[..], &scalar].concat().repeat(16)),
        of("bls_g2_add", 0x0d, second.repeat(2)),
        of("bls_g2_msm_1", 0x0e, [&second[..], &scalar].concat()),
        of("bls_pairing_1", 0x0f, [&first[..], &second].concat()),
        of("bls_pairing_4", 0x0f, [&first[..], &second].concat().repeat(4)),
        of("bls_map_fp", 0x10, padded(&G1[..1])),
        of("bls_map_fp2", 0x11, padded(&G2[..2])),
    ]
}

/// Runs `before` once, and then `body` in a loop, `times` per jump.
fn loops(work: Work, name: &'static str, before: &str, body: &str, times: usize) -> Program {
    let mut code = bytes(before);
    let start = code.len() as u8;
    code.push(0x5b);
    code.extend(bytes(body).repeat(times));
    code.extend([0x60, start, 0x56]);
    Program { work, name, code: code.into(), data: Bytes::new() }
}

/// Calls a precompile with `data` in a loop.
fn precompile(work: Work, name: &'static str, address: u16, data: Vec<u8>) -> Program {
    // The call data is copied to memory; STATICCALL passes all of it and all of the gas.
    let body = format!("5f5f365f61{address:04x}5afa50");
    Program { data: data.into(), ..loops(work, name, "365f5f37", &body, 1) }
}

fn bytes(code: &str) -> Vec<u8> {
    hex::decode(code.replace(' ', "")).expect("the table is hexadecimal")
}

fn hex(parts: &[&str]) -> Vec<u8> {
    bytes(&parts.concat())
}

#[cfg(test)]
impl Program {
    /// The program with a name.
    pub(super) fn named(fork: Fork, name: &str) -> Program {
        programs(fork).into_iter().find(|program| program.name == name).expect("a program of this name")
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{U256, keccak256};

    use super::*;

    /// The first bytes of the Keccak-256 of each precompile's answer.
    const ANSWERS: [(&str, &str); 24] = [
        ("sha256_4k", "39c12ae3"),
        ("ripemd160_4k", "d6ae95a7"),
        ("blake2f_1024", "75e451d4"),
        ("ecrecover", "08bb413c"),
        ("point_evaluation", "b2157d3a"),
        ("p256", "b10e2d52"),
        ("modexp_8_81", "6c31fc15"),
        ("modexp_8_112_even", "539a769a"),
        ("modexp_32_32_even", "83415781"),
        ("modexp_256_128_odd", "73932a32"),
        ("modexp_1024_3", "44865b94"),
        ("bn254_add", "e3630f24"),
        ("bn254_mul", "ff2ac700"),
        ("bn254_pairing_1", "290decd9"),
        ("bn254_pairing_4", "290decd9"),
        ("bls_g1_add", "d2b0d7b4"),
        ("bls_g1_msm_1", "d117e1bd"),
        ("bls_g1_msm_16", "0382c6b0"),
        ("bls_g2_add", "ca1308ad"),
        ("bls_g2_msm_1", "c46cfb0c"),
        ("bls_pairing_1", "290decd9"),
        ("bls_pairing_4", "290decd9"),
        ("bls_map_fp", "c5f14d3c"),
        ("bls_map_fp2", "56b16025"),
    ];

    /// Goal: each program does its work, and a precompile in C or assembly answers like the same precompile in Rust.
    /// The test runs with and without `fast-precompiles`.
    #[test]
    fn precompiles_answer_alike_whatever_computes_them() {
        let called: Vec<Program> =
            programs(Fork::Osaka).into_iter().filter(|program| !program.data.is_empty()).collect();
        assert_eq!(called.len(), ANSWERS.len());
        for (program, (name, answer)) in called.into_iter().zip(ANSWERS) {
            // The address stands after CALLDATACOPY, JUMPDEST and three arguments.
            let address = u16::from_be_bytes([program.code[10], program.code[11]]);
            let Runner { state, env, mut request } = Runner::new(&program, Fork::Osaka);
            request.to = Some(Address::from_word(B256::from(U256::from(address))));
            let outcome = call(&state, &env, &request, &Interrupt::never()).unwrap();
            assert!(outcome.success, "{name}: {:?}", outcome.halt);
            assert_eq!(hex::encode(&keccak256(outcome.output)[..4]), answer, "{name}");
            assert_eq!(program.name, name);
        }
    }
}
