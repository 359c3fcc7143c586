//! Calls between contracts, the precompiles that are worth emulating, and the creation of contracts.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, Signature, U256, keccak256};
use slipstream_types::Digest;

use super::{
    Call, CallResult, Frame, Run, address,
    buffer::{Buffer, Value},
    world::Stopped,
};
use crate::{
    opcode::*,
    program::{Program, build},
    stats::StopReason,
};

/// Addresses from 1 to this one hold precompiles, of all forks up to Osaka.
const PRECOMPILES: u64 = 0x100;
/// Recovers the signer of a hash.
const ECRECOVER: u64 = 1;
/// Returns its input.
const IDENTITY: u64 = 4;
/// Maximum bytes of code that creates a contract (EIP-3860).
const INIT_CODE_BYTES_MAX: usize = 49_152;
/// Contracts that one transaction may create in a prediction. Analysing each costs up to some milliseconds.
const CREATED_MAX: usize = 4;

impl Run<'_> {
    /// Runs CALL, CALLCODE, DELEGATECALL and STATICCALL; `args` leaves out the gas. Returns whether the call succeeded.
    pub(super) fn call(&mut self, frame: &mut Frame, code: u8, args: &[Value]) -> Result<Value, Stopped> {
        let (value, data) = match code {
            CALL | CALLCODE => (args[1], &args[2..]),
            DELEGATECALL => (frame.call.value, &args[1..]),
            _ => (Some(U256::ZERO), &args[1..]),
        };
        let input = self.part(frame, data[0], data[1])?;
        let ended = match args[0].map(address) {
            Some(to) => {
                let here = frame.call.address;
                match code {
                    CALL => self.invoke(to, to, here, value, true, input)?,
                    CALLCODE => self.invoke(to, here, here, value, false, input)?,
                    DELEGATECALL => self.invoke(to, here, frame.call.caller, value, false, input)?,
                    _ => self.invoke(to, to, here, value, false, input)?,
                }
            }
            None => {
                self.world.stop(StopReason::UnknownCall);
                CallResult::unknown()
            }
        };
        if let Some((at, length)) = self.range(frame, data[2], data[3])? {
            match ended.output.len() {
                Some(output) => frame.memory.copy(at, &ended.output, 0, length.min(output)),
                None => frame.memory.forget(at, length),
            }
        }
        frame.returned = ended.output;
        Ok(Some(U256::from(ended.has_succeeded)))
    }

    /// Calls the code of `target` with the storage of `address`.
    pub(super) fn invoke(
        &mut self,
        target: Address,
        address: Address,
        caller: Address,
        value: Value,
        is_paid: bool,
        input: Buffer,
    ) -> Result<CallResult, Stopped> {
        let account = self.world.account(&target)?;
        if is_paid {
            self.world.pay(&caller, &address, value)?;
        }
        if let Some(number) = precompile(&target) {
            return Ok(precompiled(number, &input));
        }
        let Some(hash) = account.and_then(|account| account.code_hash) else {
            return Ok(CallResult::empty(true));
        };
        let Some((program, hash)) = self.program(hash)? else { return Ok(CallResult::unknown()) };
        if self.depth >= self.limits.depth_max {
            self.world.stop(StopReason::Depth);
            return Ok(CallResult::unknown());
        }
        self.run(&program, Call { address, caller, value, input, hash, code: None })
    }

    /// The program of an account's code, and that code's hash. If the account delegates, both are the delegate's.
    fn program(&mut self, hash: Digest) -> Result<Option<(Arc<Program>, Digest)>, Stopped> {
        let Some(program) = self.program_of(hash) else { return Ok(None) };
        let Some(delegate) = program.delegate() else { return Ok(Some((program, hash))) };
        let account = self.world.account(&delegate)?;
        let Some(hash) = account.and_then(|account| account.code_hash) else { return Ok(None) };
        Ok(self.program_of(hash).map(|program| (program, hash)))
    }

    fn program_of(&mut self, hash: Digest) -> Option<Arc<Program>> {
        if let Some(program) = self.created.get(&B256::from(hash)) {
            return Some(program.clone());
        }
        self.world.code(hash);
        let program = (self.find)(&hash);
        if program.is_none() {
            self.world.stop(StopReason::NoProgram);
        }
        program
    }

    /// Runs CREATE and CREATE2. Returns the address.
    pub(super) fn create_from(&mut self, frame: &mut Frame, args: &[Value]) -> Result<Value, Stopped> {
        let creator = frame.call.address;
        let nonce = self.world.next_nonce(&creator)?;
        let range = self.range(frame, args[1], args[2])?;
        let code = range.and_then(|(at, length)| frame.memory.known_bytes(at, length));
        let salt = args.get(3);
        let address = match (salt, &code) {
            (None, _) => creator.create(nonce),
            (Some(Some(salt)), Some(code)) => creator.create2(B256::from(*salt), keccak256(code)),
            _ => return Ok(None),
        };
        frame.returned = self.create(address, creator, args[0], code)?.output;
        Ok(Some(address.into_word().into()))
    }

    /// Runs the code that creates a contract, so that the rest of the transaction may call it.
    pub(super) fn create(
        &mut self,
        address: Address,
        creator: Address,
        value: Value,
        code: Option<Vec<u8>>,
    ) -> Result<CallResult, Stopped> {
        self.world.account(&address)?;
        self.world.pay(&creator, &address, value)?;
        let Some(code) = code.filter(|code| code.len() <= INIT_CODE_BYTES_MAX) else {
            return Ok(CallResult::unknown());
        };
        if self.created.len() >= CREATED_MAX || self.depth >= self.limits.depth_max {
            self.world.stop(StopReason::Depth);
            return Ok(CallResult::unknown());
        }
        let hash = Digest::from(keccak256(&code));
        let program = build(&code, &[]);
        let code = Some(Bytes::from(code));
        let call = Call { address, caller: creator, value, input: Buffer::default(), hash, code };
        let ended = self.run(&program, call)?;
        let deployed = ended.output.len().and_then(|length| ended.output.known_bytes(0, length));
        if let (true, Some(deployed)) = (ended.has_succeeded, deployed) {
            let hash = Digest::from(keccak256(&deployed));
            self.created.entry(B256::from(hash)).or_insert_with(|| Arc::new(build(&deployed, &[])));
            self.world.deploy(&address, hash)?;
            return Ok(CallResult::empty(true));
        }
        Ok(ended)
    }
}

fn precompile(address: &Address) -> Option<u64> {
    let number = u64::try_from(U256::from_be_slice(address.as_slice())).ok()?;
    (1..=PRECOMPILES).contains(&number).then_some(number)
}

fn precompiled(number: u64, input: &Buffer) -> CallResult {
    match number {
        IDENTITY => CallResult { has_succeeded: true, output: input.clone() },
        ECRECOVER => {
            CallResult { has_succeeded: true, output: recovered(input).unwrap_or_else(Buffer::opaque) }
        }
        _ => CallResult::unknown(),
    }
}

/// Returns ECRECOVER's output: the signer, or empty for an invalid signature. Returns `None` if the input is unknown.
fn recovered(input: &Buffer) -> Option<Buffer> {
    let (hash, v, r, s) = (input.word(0)?, input.word(32)?, input.word(64)?, input.word(96)?);
    let parity = v.checked_sub(U256::from(27)).filter(|parity| *parity <= U256::from(1));
    let signer = parity.and_then(|parity| {
        let signature = Signature::new(r, s, !parity.is_zero());
        signature.recover_address_from_prehash(&B256::from(hash)).ok()
    });
    Some(Buffer::known(signer.map_or_else(Vec::new, |signer| signer.into_word().to_vec())))
}
