//! [`ProgramStore`]: keeps programs as records in the store, under the hash of their code, so that a restart need not
//! learn them again.
//!
//! Each program is written when it is built and removed when it is evicted, so a crash loses at most the last few.
//! Programs derive from code in the state, so losing them costs only time.

use alloy_primitives::{Address, U256, hex};
use serde::{Deserialize, Serialize};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{CodecError, Digest, codec};

use crate::program::{Program, Table};

/// Version of the analysis. Raise it whenever [`build`](crate::build) makes a different program from some code; a test
/// detects that. Programs of other versions are removed at the start.
const VERSION: u32 = 2;
/// Bounds that sort before and after all record names.
const FIRST: &str = "predict/";
const LAST: &str = "predict0";

/// The saved programs; see the module.
#[derive(Debug)]
pub(crate) struct ProgramStore(Store);

/// A program as a record.
#[derive(Serialize, Deserialize)]
struct Record {
    blocks: Vec<(u32, u32)>,
    bytes: Vec<u8>,
    small: Vec<u64>,
    large: Vec<[u8; 32]>,
    unresolved: Vec<u32>,
    delegate: Option<[u8; 20]>,
}

impl ProgramStore {
    /// Opens the records of a store, and loads programs of at most `bytes_max` bytes in total. Removes the other
    /// records.
    ///
    /// # Errors
    /// If the disk fails, or the store is damaged.
    pub(crate) fn open(
        store: Store,
        bytes_max: usize,
    ) -> Result<(ProgramStore, Vec<(Digest, Program)>), StorageError> {
        let saved = ProgramStore(store);
        let (mut programs, mut bytes) = (Vec::new(), 0);
        for (name, record) in saved.0.records(FIRST, LAST)? {
            let program = hash_of(&name).zip(decode(&record).ok());
            match program.filter(|(_, program)| bytes + program.size_bytes() <= bytes_max) {
                Some((hash, program)) => {
                    bytes += program.size_bytes();
                    programs.push((hash, program));
                }
                None => saved.0.remove_records(&name, &name)?,
            }
        }
        Ok((saved, programs))
    }

    /// Writes a program. Errors are only logged: a full disk stops the node elsewhere.
    pub(crate) fn put(&self, hash: &Digest, program: &Program) {
        let written = match encode(program) {
            Ok(record) => self.0.put_derived_record(&name_of(hash), &record),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "cannot save a predictor's program; a restart makes it again");
        }
    }

    /// Removes a program.
    pub(crate) fn remove(&self, hash: &Digest) {
        let name = name_of(hash);
        if let Err(error) = self.0.remove_records(&name, &name) {
            tracing::debug!(%error, "cannot remove a predictor's program");
        }
    }
}

fn name_of(hash: &Digest) -> String {
    format!("{FIRST}{VERSION:04}/{}", hex::encode(hash.as_bytes()))
}

/// The code's hash in the name of a record of this version.
fn hash_of(name: &str) -> Option<Digest> {
    let hash = name.strip_prefix(&format!("{FIRST}{VERSION:04}/"))?;
    let mut bytes = [0; 32];
    hex::decode_to_slice(hash, &mut bytes).ok()?;
    Some(Digest(bytes))
}

fn encode(program: &Program) -> Result<Vec<u8>, CodecError> {
    let Table { blocks, bytes, small, large, unresolved } = program.table();
    codec::encode(
        "program",
        &Record {
            blocks: blocks.to_vec(),
            bytes: bytes.to_vec(),
            small: small.to_vec(),
            large: large.iter().map(|value| value.to_be_bytes()).collect(),
            unresolved: unresolved.to_vec(),
            delegate: program.delegate().map(Address::into_array),
        },
    )
}

/// Decodes a program. Running it is safe whatever its bytes are.
fn decode(record: &[u8]) -> Result<Program, CodecError> {
    let Record { blocks, bytes, small, large, mut unresolved, delegate } =
        codec::decode("program", record, record.len())?;
    unresolved.sort_unstable();
    let large: Vec<_> = large.into_iter().map(U256::from_be_bytes).collect();
    let table =
        Table { blocks: &blocks, bytes: &bytes, small: &small, large: &large, unresolved: &unresolved };
    Ok(Program::of(table, delegate.map(Address::from)))
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;

    use super::*;
    use crate::{PredictConfig, Predictors, build};

    /// PUSH2 number SLOAD POP STOP.
    fn code(number: u16) -> Vec<u8> {
        [vec![0x61], number.to_be_bytes().to_vec(), vec![0x54, 0x50, 0x00]].concat()
    }

    fn hash(number: u16) -> Digest {
        Digest::from(alloy_primitives::keccak256(code(number)))
    }

    fn predictors(store: &Store, programs_bytes_max: usize) -> Predictors {
        let config = PredictConfig { programs_bytes_max, ..PredictConfig::default() };
        Predictors::new(config).with_saved(store.clone()).unwrap()
    }

    /// Goal: learned programs survive a restart, within their limit; evicted ones do not.
    #[test]
    fn programs_survive_restarts() {
        let store = Store::memory(&StorageConfig::default());
        let before = predictors(&store, 4_096);
        (0..200).for_each(|number| _ = before.build_now(hash(number), &code(number)));
        let kept: Vec<_> = (0..200).filter(|number| before.program_of(&hash(*number)).is_some()).collect();
        assert!(!kept.is_empty() && kept.len() < 200);
        let after = predictors(&store, 4_096);
        assert_eq!(after.size_bytes(), before.size_bytes());
        for number in 0..200 {
            assert_eq!(after.program_of(&hash(number)), before.program_of(&hash(number)), "{number}");
        }
        // With less room, some are left out and removed.
        let fewer = predictors(&store, 1_024);
        assert!(fewer.len() < after.len() && fewer.size_bytes() <= 1_024);
        assert_eq!(predictors(&store, 4_096).len(), fewer.len());
    }

    /// Goal: opening harmlessly removes records of other versions and malformed ones.
    #[test]
    fn other_versions_are_removed() {
        let store = Store::memory(&StorageConfig::default());
        let of_another = format!("{FIRST}{:04}/{}", VERSION + 1, hex::encode(hash(1).as_bytes()));
        store.put_record(&of_another, &encode(&build(&code(1), &[])).unwrap()).unwrap();
        store.put_record(&name_of(&hash(2)), &[9; 9]).unwrap();
        store.put_record(&format!("{FIRST}{VERSION:04}/zz"), &[]).unwrap();
        assert!(predictors(&store, 4_096).is_empty());
        assert_eq!(store.records(FIRST, LAST).unwrap(), []);
    }

    /// Goal: a change of the analysis reminds its author to raise [`VERSION`].
    #[test]
    fn the_version_names_the_analysis() {
        let delegated = [&[0xef, 0x01, 0x00][..], &[7; 20]].concat();
        // Slots named by a constant, by call data in a mapping, and after a branch and a loop.
        let mapping =
            [0x5f, 0x35, 0x5f, 0x52, 0x60, 3, 0x60, 0x20, 0x52, 0x60, 0x40, 0x5f, 0x20, 0x54, 0x50, 0x00];
        let branch = [0x5f, 0x35, 0x60, 9, 0x57, 0x60, 1, 0x54, 0x00, 0x5b, 0x60, 2, 0x54, 0x60, 9, 0x56];
        let programs =
            [&code(513)[..], &delegated, &mapping, &branch].map(|code| encode(&build(code, &[])).unwrap());
        let digest = hex::encode(alloy_primitives::keccak256(programs.concat()));
        assert_eq!(
            (VERSION, &digest[..16]),
            (2, "ff075a9cbc6d1f4a"),
            "analysis makes other programs: raise VERSION and put the new digest here"
        );
    }
}
