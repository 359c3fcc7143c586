use super::*;

/// Takes a millisecond for every batch, and is wrong at one chosen seat.
struct Plain {
    made: u64,
    wrong: Option<u16>,
}

impl Machine for Plain {
    fn body(&mut self, _before: Digest) -> Digest {
        self.made += 1;
        Digest::tagged("body", &self.made.to_le_bytes())
    }

    fn run(&mut self, job: &Job) -> Ran {
        let slip = u8::from(!job.sequential && self.wrong == Some(job.seat));
        let said = [job.before.0, job.body.0, [slip; 32]];
        Ran { state_root: Digest::tagged("state", said.as_flattened()), took_us: 1_000 }
    }
}

const PACE: Pace = Pace { one_way_us: 50_000, record_us: 500, commit_us: 500, intake_us: 0, cores: 2 };

/// Goal: batches are decided one after another. One validator decides at the pace of execution; four validators need
/// the one-way latency twice between two decisions: for prepares and for commits.
#[test]
fn decisions_take_two_ways_each() {
    let alone = World::new(1, Digest::ZERO, PACE, Plain { made: 0, wrong: None }).run(40, 60_000_000);
    let four = World::new(4, Digest::ZERO, PACE, Plain { made: 0, wrong: None }).run(40, 60_000_000);
    let between = |decisions: &[Decision]| (decisions[39].at_us - decisions[20].at_us) / 19;
    assert_eq!((alone.len(), four.len()), (40, 40));
    assert!((900..10_000).contains(&between(&alone)), "{}", between(&alone));
    assert!((100_000..130_000).contains(&between(&four)), "{}", between(&four));
}

/// Goal: a validator that executes wrongly is outvoted, whichever it is.
#[test]
fn one_wrong_executor_is_outvoted() {
    for seat in [0, 2] {
        let machine = Plain { made: 0, wrong: Some(seat) };
        let decisions = World::new(4, Digest::ZERO, PACE, machine).run(20, 60_000_000);
        assert_eq!(decisions.len(), 20);
        let mut before = Digest::ZERO;
        for decision in decisions {
            let right = Job { seat: 1, before, body: decision.body, is_build: false, sequential: true };
            before = Plain { made: 0, wrong: None }.run(&right).state_root;
            assert_eq!(decision.info.state_root, before, "{:?}", decision.info.number);
        }
    }
}
