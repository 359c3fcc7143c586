//! Tests that a validator sends nothing that is not on disk.

use slipstream_network::MemoryHub;
use slipstream_storage::{CrashPoint, Faults, MemoryDisk, StorageConfig, Store, WriteStep};

use crate::{
    ConsensusError,
    testing::{Account, Node, clock, genesis},
};

/// Goal: a validator that cannot write an outcome or a vote neither sends it nor continues.
#[tokio::test]
async fn what_is_not_on_record_is_not_said() {
    let genesis = genesis(1);
    for passing in 1..=3 {
        let faults = Faults::fail_at(CrashPoint::Before(WriteStep::PutRecord), passing);
        let store = Store::memory_on(&MemoryDisk::default(), &StorageConfig::default(), &faults).unwrap();
        store.initialize(&genesis).unwrap();
        let mut node = Node::start(&MemoryHub::new(), &genesis, 0, store, clock());
        node.pool.add(Account::new(0).transfer(0, 7)).unwrap();
        let error = node.fails().await;
        assert!(matches!(error, ConsensusError::Record(_)), "{passing}: {error}");
        assert!(node.decided.try_recv().is_err(), "{passing}: a batch was decided by a vote that is nowhere");
    }
}
