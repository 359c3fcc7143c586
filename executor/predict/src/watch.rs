//! [`JumpWatch`]: records where execution goes from jumps that analysis cannot resolve.

use alloy_primitives::{
    B256,
    map::{B256Map, HashSet},
};
use parking_lot::Mutex;
use slipstream_types::Digest;

use crate::{flow::JumpEdge, program::Program};

/// Maximum number of jumps recorded between two calls of `JumpWatch::take`.
const SEEN_MAX: usize = 4_096;

/// The sites of unresolved jumps, and the jumps seen there. A node's executions share one watch until the programs
/// change.
#[derive(Debug, Default)]
pub struct JumpWatch {
    /// Positions of the jumps by the code's hash, ascending.
    sites: B256Map<Box<[u32]>>,
    seen: Mutex<HashSet<(B256, JumpEdge)>>,
}

impl JumpWatch {
    /// Watches the jumps that programs cannot resolve; `None` if all are resolved.
    pub(crate) fn of<'a>(programs: impl Iterator<Item = (&'a Digest, &'a Program)>) -> Option<JumpWatch> {
        let unresolved = programs.filter(|(_, program)| !program.unresolved().is_empty());
        let sites: B256Map<_> =
            unresolved.map(|(hash, program)| (B256::from(*hash), program.unresolved().into())).collect();
        (!sites.is_empty()).then(|| JumpWatch { sites, seen: Mutex::default() })
    }

    /// Records a jump in the code whose hash is `code`.
    pub fn record(&self, code: &B256, from: usize, to: usize) {
        let Some(sites) = self.sites.get(code) else { return };
        let (Ok(from), Ok(to)) = (u32::try_from(from), u32::try_from(to)) else { return };
        // A thread that would have to wait skips this jump.
        if sites.binary_search(&from).is_ok()
            && let Some(mut seen) = self.seen.try_lock()
            && seen.len() < SEEN_MAX
        {
            seen.insert((*code, JumpEdge { from, to }));
        }
    }

    /// Takes the jumps seen since the last call.
    pub(crate) fn take(&self) -> HashSet<(B256, JumpEdge)> {
        std::mem::take(&mut self.seen.lock())
    }
}
