//! The servers of a world, and their habits.

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};
use slipnet::scenario::fault::PeerLie;
use slipstream_types::PublicKey;

use super::{
    super::{
        lie::Lie,
        server::{Habit, Keeps, Server},
    },
    Troubles, WINDOW,
};

/// Peers of a siege that make equal offers, so that they confirm each other.
const ALIKE: usize = 3;

/// Draws the servers. The first is honest, always connected, and has everything that a node of the world needs.
pub(super) fn servers(troubles: &Troubles, rng: &mut StdRng) -> Vec<Server> {
    let anchor = match troubles.pruning {
        true => {
            let snapshots = if troubles.snapshots { 1 } else { rng.random_range(1..4) };
            Keeps { bodies: WINDOW, receipts: WINDOW, deltas: WINDOW, snapshots }
        }
        false => Keeps::ALL,
    };
    let mut habits = vec![(Habit::Honest, anchor)];
    let mut more = |habit: Habit, count: usize, rng: &mut StdRng| {
        for _ in 0..count {
            habits.push((habit.clone(), keeps(troubles, rng)));
        }
    };
    let most = if troubles.snapshots { 2 } else { 3 };
    more(Habit::Honest, rng.random_range(0..most), rng);
    if troubles.flapping {
        more(Habit::Flapping, rng.random_range(1..3), rng);
    }
    if troubles.stallers {
        more(Habit::Stalling, rng.random_range(1..4), rng);
        more(Habit::Dripping, rng.random_range(1..3), rng);
    }
    if troubles.liars {
        for about in Lie::GROUPS {
            let count = rng.random_range(1..4);
            let lies = about.choose_multiple(rng, count).copied().collect();
            more(Habit::Lying(lies), usize::from(rng.random_bool(0.8)), rng);
        }
    }
    if troubles.snapshots {
        // One lie each: a liar that is found out cannot tell another. Code, siblings and range deltas are rarely
        // requested.
        let code = [PeerLie::OtherCode, PeerLie::OtherCode, PeerLie::SwappedSiblings];
        let corrupt = [PeerLie::CorruptRangeDeltas, PeerLie::CorruptRangeDeltas];
        let padded = [PeerLie::PaddedRangeDeltas, PeerLie::PaddedRangeDeltas];
        let rows = [PeerLie::FalseOffers, PeerLie::HiddenRows, PeerLie::ChangedRows];
        for lie in code.into_iter().chain(corrupt).chain(padded).chain(rows) {
            more(Habit::Lying(vec![Lie::Peer(lie)]), rng.random_range(1..3), rng);
        }
        let lies: Vec<Lie> = Lie::ABOUT_SNAPSHOTS.choose_multiple(rng, 4).copied().collect();
        lies.into_iter().for_each(|lie| more(Habit::Lying(vec![lie]), 1, rng));
    }
    if troubles.siege {
        for habit in [Habit::Pretending, Habit::Busy, Habit::Flooding] {
            more(habit, usize::from(rng.random_bool(0.7)), rng);
        }
        // Several peers of each kind: a lone stranger's offer is ignored while two peers offer something else, and
        // range deltas are rarely requested.
        for habit in [Habit::Trickling, Habit::Lying(vec![Lie::Peer(PeerLie::PaddedRangeDeltas)])] {
            more(habit, if rng.random_bool(0.7) { ALIKE } else { 0 }, rng);
        }
        for lie in [PeerLie::LiteralBlobs, PeerLie::UnaskedHints] {
            more(Habit::Lying(vec![Lie::Peer(lie)]), usize::from(rng.random_bool(0.6)), rng);
        }
    }
    if troubles.colluders {
        let summaries = rng.random();
        let honest = habits.len();
        for _ in 0..=honest {
            habits.push((Habit::Colluding { summaries }, Keeps::ALL));
        }
    }
    let habits = habits.into_iter().enumerate();
    habits.map(|(index, (habit, keeps))| server(index, habit, keeps, rng)).collect()
}

pub(super) fn server(index: usize, habit: Habit, keeps: Keeps, rng: &mut StdRng) -> Server {
    let lag = match habit {
        Habit::Honest if index > 0 && rng.random_ratio(1, 5) => rng.random_range(1..8),
        _ => 0,
    };
    let renames = match habit {
        Habit::Stalling => rng.random_ratio(1, 3),
        Habit::Lying(_) => rng.random_ratio(1, 4),
        _ => false,
    };
    let (former, chunk_at) = (Vec::new(), 0);
    Server { id: PublicKey([index as u8 + 1; 32]), habit, keeps, lag, renames, former, chunk_at }
}

fn keeps(troubles: &Troubles, rng: &mut StdRng) -> Keeps {
    let mut window = || match rng.random_range(0..3) {
        0 if troubles.pruning => rng.random_range(3..WINDOW),
        1 if troubles.pruning => WINDOW,
        _ => 0,
    };
    let (bodies, receipts, deltas) = (window(), window(), window());
    let least = usize::from(troubles.snapshots);
    Keeps { bodies, receipts, deltas, snapshots: rng.random_range(least..4) }
}
