//! A node writes down what it acknowledges first, and has it again after a restart.

use super::*;
use crate::journal::JournalError;

/// Goal: after a restart a node has what it acknowledged, and sends it on again. A damaged entry costs only itself.
#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let journal = || Some(Journal::open(&path, 1 << 20).unwrap());
    let (node, _) = fullnode(&hub, &genesis, 1, journal());
    for nonce in [0, 1, 5] {
        give(&node, &Account::new(0).transfer(nonce, 1)).unwrap();
    }
    node.pool.add_from(Account::new(1).transfer(0, 1), Origin::Peer).unwrap();
    // A transaction that a peer brought first is the user's, too.
    node.pool.add_from(Account::new(2).transfer(0, 1), Origin::Peer).unwrap();
    for _ in 0..2 {
        let known = give(&node, &Account::new(2).transfer(0, 1)).unwrap_err();
        assert!(known.to_string().starts_with("already known"), "{known}");
    }
    assert!(give(&node, &Account::new(3).hopeless(0)).is_err());
    node.synced().await.unwrap();
    drop(node);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&bytes[..], b"torn"].concat()).unwrap();
    let (node, _endpoint) = fullnode(&hub, &genesis, 1, journal());
    let (proposer, _proposer_endpoint) = fullnode(&hub, &genesis, 0, None);
    hub.connect(id(0), id(1));
    tokio::spawn(node.clone().run(CancellationToken::new()));
    until("the proposer has them", || {
        let status = proposer.pool.status();
        (status.pending, status.queued) == (3, 1)
    })
    .await;
    let status = node.pool.status();
    assert_eq!((status.pending, status.queued), (3, 1));
}

/// Goal: transactions submitted together are taken, refused, metered and written down like those submitted one by one.
#[tokio::test(start_paused = true)]
async fn many_at_once_are_as_many_one_by_one() {
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let account = Account::new(0);
    let mut raws: Vec<_> = (0..40).map(|nonce| account.transfer(nonce, 1).raw).collect();
    raws.extend([raws[3].clone(), Account::new(3).hopeless(0).raw, Account::new(1).transfer(0, 1).raw]);
    raws.insert(7, raws[6].clone());
    raws.extend((0..40).map(|number| junk(number).raw));
    // Each costs more recoveries than the allowance has, which shows once it is refused.
    raws.extend((200..203).map(|poor| Account::new(poor).delegating(300).raw));
    raws.extend((40..300).map(|number| junk(number).raw));
    raws.push(Account::new(2).transfer(0, 1).raw);
    let raws: Vec<&[u8]> = raws.iter().map(|raw| &raw[..]).collect();
    let wallet = IpAddr::from([192, 0, 2, 1]);
    let mut outcomes = Vec::new();
    for together in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("transactions.journal");
        let journal = Journal::open(&path, 1 << 20).unwrap();
        let (node, _) = fullnode(&hub, &genesis, 1 + usize::from(together), Some(journal));
        node.pool.add_from(Account::new(1).transfer(0, 1), Origin::Peer).unwrap();
        // An address whose allowance covers less than half of the list at a time.
        let allowance = node.wallets.lock().charge(wallet, 4_000 * meter::RECOVERY, Instant::now());
        allowance.unwrap();
        let answers = match together {
            true => node.submit_all(&raws, Some(wallet)),
            false => raws.iter().map(|raw| node.submit(raw, Some(wallet))).collect(),
        };
        let told = answers.iter().map(|answer| answer.as_ref().map_err(ToString::to_string));
        let told: Vec<_> = told.map(|answer| format!("{answer:?}")).collect();
        node.synced().await.unwrap();
        drop(node);
        outcomes.push((told, Journal::open(&path, 1 << 20).unwrap().recovered()));
    }
    let is_busy = |told: &&String| told.contains("retry in");
    assert_eq!(outcomes[0].0.iter().filter(|told| told.starts_with("Ok")).count(), 40);
    let is_refused = |told: &&String| told.contains("insufficient funds");
    assert_eq!(outcomes[0].0.iter().filter(is_refused).count(), 1);
    assert!(outcomes[0].0.iter().filter(is_busy).count() > 260);
    assert_eq!(outcomes[0].0, outcomes[1].0);
    assert!(outcomes[0].1 == outcomes[1].1, "the journals differ");
    // A transaction that was submitted twice is written down once, as is one that a peer brought before.
    assert_eq!(outcomes[0].1.len(), 41);
}

/// Goal: a transaction that cannot be written down is refused, and does not stay in the pool.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_is_not_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, 200).unwrap()));
    let account = Account::new(0);
    let refused = (0..10).find_map(|nonce| give(&node, &account.transfer(nonce, 1)).err()).unwrap();
    assert!(matches!(refused, SubmitError::Journal(_)), "{refused}");
    assert_eq!(node.pool.status().pending, 1);
}

/// Goal: an unwritten transaction evicts no other: the one that it would replace is acknowledged.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_down_replaces_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let account = Account::new(0);
    let bytes_max = 100 + account.transfer(0, 1).raw.len() as u64;
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, bytes_max).unwrap()));
    let kept = give(&node, &account.transfer(0, 1)).unwrap();
    let refused = give(&node, &account.transfer(0, 1_000_000_000_000)).unwrap_err();
    assert!(matches!(refused, SubmitError::Journal(_)), "{refused}");
    assert!(node.pool.contains(&kept));
}

/// Goal: "already known" is said only of what is in the journal, however the first attempt ended.
#[tokio::test(start_paused = true)]
async fn a_retry_is_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, 1 << 20).unwrap()));
    let transaction = Account::new(0).transfer(0, 1);
    node.pool.add_from(transaction.clone(), Origin::Peer).unwrap();
    let journal = node.journal.clone().unwrap();
    journal.fail();
    for _ in 0..2 {
        let refused = give(&node, &transaction).unwrap_err();
        assert!(matches!(refused, SubmitError::Journal(_)), "{refused}");
    }
    tokio::time::advance(Duration::from_secs(2)).await;
    for _ in 0..2 {
        let known = give(&node, &transaction).unwrap_err();
        assert!(known.to_string().starts_with("already known"), "{known}");
    }
    node.synced().await.unwrap();
    assert!(journal.is_synced());
    drop(node);
    assert!(Journal::open(&path, 1 << 20).unwrap().recovered().contains(&transaction.raw.to_vec()));
}

/// Goal: a wallet with money for one transaction sends as many as may wait. In the end its own transactions are
/// refused, and no one else's.
#[tokio::test(start_paused = true)]
async fn one_wallet_does_not_fill_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("transactions.journal");
    let (hub, genesis) = (MemoryHub::new(), genesis(1));
    let (node, _) = fullnode(&hub, &genesis, 1, Some(Journal::open(&path, 1 << 20).unwrap()));
    let large = |account: u8, nonce| Account::new(account).large(nonce, 65_300);
    for account in 0..7 {
        for nonce in 1..3 {
            give(&node, &large(account, nonce)).unwrap();
        }
        let refused = give(&node, &large(account, 3)).unwrap_err();
        assert!(matches!(refused, SubmitError::Journal(JournalError::SenderFull { .. })), "{refused}");
        let known = give(&node, &large(account, 2)).unwrap_err();
        assert!(known.to_string().starts_with("already known"), "{known}");
    }
    let honest = Account::new(7);
    for nonce in 0..2 {
        give(&node, &honest.large(nonce, 65_000)).unwrap();
    }
    assert!(node.journal_bytes() > 1_046_000, "it is as good as full");
    let tips = std::iter::successors(Some(100_000_000_000), |tip| Some(tip / 5 * 6)).take(25);
    let replacing: Vec<_> = tips.map(|tip| honest.transfer(2, tip)).collect();
    for transaction in &replacing {
        give(&node, transaction).unwrap();
    }
    node.synced().await.unwrap();
    drop(node);
    let recovered = Journal::open(&path, 1 << 20).unwrap().recovered();
    for raw in [&honest.large(0, 65_000).raw, &replacing[24].raw] {
        assert!(recovered.contains(&raw.to_vec()));
    }
}
