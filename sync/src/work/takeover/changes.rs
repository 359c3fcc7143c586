//! A takeover by a range delta: by what changed since the head.

use slipstream_storage::{RangeDeltaError, RangeDeltaTakeover, StorageError, Takeover};

use super::{Added, Way};
use crate::{SyncError, protocol::Request, range_delta, verify::Violation};

impl Way for RangeDeltaTakeover {
    fn takeover(&self) -> &dyn Takeover {
        self
    }

    fn add(&self, answer: Vec<u8>, request: &Request) -> Result<Added, SyncError> {
        // An answer that comes after its takeover was put down is about another one.
        let Request::RangeDelta(request) = request else { return Ok(Added::checked(Ok(()))) };
        let chunk = match range_delta::open(answer, request) {
            Ok(chunk) => chunk,
            Err(violation) => return Ok(Added::checked(Err(violation.into()))),
        };
        match RangeDeltaTakeover::add(self, chunk) {
            Err(StorageError::RangeDelta(RangeDeltaError::Chunk(error))) => {
                Ok(Added::checked(Err(Violation::from(error).into())))
            }
            added => Ok(Added::checked(Ok(added?))),
        }
    }
}
