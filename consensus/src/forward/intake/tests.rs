use slipstream_types::PublicKey;

use super::*;
use crate::testing::{Account, genesis, store, until};

fn job(peer: u8, transactions: usize, bytes: usize) -> Job {
    let raw = RawTransaction::new(vec![0; bytes]).unwrap();
    Job::new(PublicKey([peer; 32]), vec![raw; transactions], 0).0
}

fn peers(queue: &mut Queue, count: usize) -> Vec<u8> {
    (0..count).map(|_| queue.pop().unwrap().peer.0[0]).collect()
}

/// Goal: a peer with many messages has its turn as often as a peer with one.
#[test]
fn peers_have_turns() {
    let mut queue = Queue::default();
    for _ in 0..10 {
        queue.push(job(1, 1, 10)).ok().unwrap();
    }
    queue.push(job(2, 1, 10)).ok().unwrap();
    queue.push(job(3, 1, 10)).ok().unwrap();
    assert_eq!(peers(&mut queue, 2), [1, 2]);
    queue.put_back(job(2, 2, 10));
    assert_eq!(peers(&mut queue, 11), [3, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert!(queue.pop().is_none() && queue.bytes == 0 && queue.peers.is_empty());
}

/// Goal: many peers with useless transactions share one turn in eight, and have all turns while nobody else waits.
#[test]
fn the_useful_come_first() {
    let mut queue = Queue::default();
    for peer in 10..60 {
        queue.push(Job { is_useful: false, ..job(peer, 1, 10) }).ok().unwrap();
    }
    for _ in 0..14 {
        queue.push(job(1, 1, 10)).ok().unwrap();
    }
    let first = peers(&mut queue, 16);
    assert_eq!(first.iter().filter(|peer| **peer == 1).count(), 14);
    assert_eq!(peers(&mut queue, 48).len(), 48);
    assert!(queue.pop().is_none());
}

/// Goal: a message counts even if its sender is gone, and the threads end with the intake.
#[tokio::test]
async fn threads_end_with_their_owner() {
    let genesis = genesis(1);
    let pool = Pool::new(Default::default(), genesis.chain.clone(), store(&genesis)).unwrap();
    let (queue, mut queued) = mpsc::channel(8);
    let (meter, refused) = (Mutex::new(Meter::new()), Mutex::new(Memory::new(Instant::now())));
    let admission = Admission::from(&genesis.chain);
    let taker = Taker { pool: pool.clone(), admission, meter, refused, queue };
    let taker = Arc::new(taker);
    let intake = Intake::start(taker.clone(), 3).unwrap();
    let raw = RawTransaction::new(Account::new(0).transfer(0, 1).raw.to_vec()).unwrap();
    intake.push(Job::new(PublicKey([1; 32]), vec![raw], 0).0).ok().unwrap();
    assert_eq!(queued.recv().await.unwrap().1, Some(PublicKey([1; 32])));
    assert_eq!(pool.status().pending, 1);
    drop(intake);
    until("the threads end", || Arc::strong_count(&taker) == 1).await;
}

/// Goal: waiting messages are bounded, for each peer and for all, in number and in bytes; one message always gets in.
#[test]
fn what_waits_is_bounded() {
    let mut queue = Queue::default();
    let taken = (0..100).filter(|_| queue.push(job(1, 1, 10)).is_ok()).count();
    assert_eq!(taken, PEER_JOBS_MAX);
    let taken = (0..100).filter(|_| queue.push(job(2, 32, 128 << 10)).is_ok()).count();
    assert_eq!(taken, 2);
    let peers = (3..100).filter(|peer| queue.push(job(*peer, 32, 128 << 10)).is_ok()).count();
    assert_eq!(peers, 13);
    assert!(queue.bytes <= ALL_BYTES_MAX);
    assert_eq!(queue.peers.len(), 15);
}
