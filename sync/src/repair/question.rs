//! [`Question`]: a question to a peer, and the check of its answer.

use parking_lot::Mutex;
use slipstream_network::PeerId;
use slipstream_storage::{LEVELS_MAX, PathPrefix, Repair, StorageError, WantedSubtree};
use slipstream_types::{BatchNumber, Digest, bounded::BoundedVec, codec};

use crate::{
    SyncError,
    protocol::{ANSWER_BYTES_MAX, Codes, Request, Subtrees, SubtreesRequest},
};

/// Levels to open per question about many places. One or two levels cost the fewest bytes, and two halve the round trips.
const LEVELS: u8 = 2;
/// Up to this many places, a question opens [`LEVELS_OF_FEW`] levels, because the answer is small anyway.
const FEW_PLACES: usize = 4;
const LEVELS_OF_FEW: u8 = 4;
/// Maximum bytes of the places in one question: a request has 4 KiB.
const PLACES_BYTES_MAX: usize = 3_900;

/// A question to one peer.
pub(super) enum Question {
    Places { wanted: Vec<WantedSubtree>, levels: u8 },
    Codes(Vec<Digest>),
}

/// The result of an answer. Unanswered parts are wanted again.
pub(super) struct AnswerVerdict {
    /// Peers that opened a place by fewer levels than they were asked for, as this answer shows.
    pub(super) shallow: Vec<PeerId>,
    /// The lie that its sender is to blame for.
    pub(super) lie: Option<String>,
}

impl Question {
    /// A question about as many places as it has room for. Returns the other places too.
    pub(super) fn about(mut wanted: Vec<WantedSubtree>) -> (Question, Vec<WantedSubtree>) {
        let mut bytes = 0;
        let fits = wanted.iter().take_while(|wanted| {
            bytes += 3 + wanted.place().bits().div_ceil(8);
            bytes <= PLACES_BYTES_MAX
        });
        let fitting = fits.count();
        let rest = wanted.split_off(fitting);
        let levels = match wanted.len() {
            1 if wanted[0].place() == PathPrefix::ROOT => LEVELS_MAX,
            ..=FEW_PLACES => LEVELS_OF_FEW,
            _ => LEVELS,
        };
        (Question::Places { wanted, levels }, rest)
    }

    pub(super) fn request(&self, number: BatchNumber, root: Digest) -> Request {
        match self {
            Question::Places { wanted, levels } => {
                let places = wanted.iter().map(WantedSubtree::place).collect();
                let places = BoundedVec::new(places).expect("no more are taken");
                Request::Subtrees(SubtreesRequest { number, root, levels: *levels, places })
            }
            Question::Codes(hashes) => {
                let hashes = BoundedVec::new(hashes.clone()).expect("no more are taken");
                Request::Codes { number, hashes }
            }
        }
    }

    /// Adds an answer of a peer.
    pub(super) fn add(
        self,
        repair: &Mutex<Repair>,
        peer: PeerId,
        answer: &[u8],
    ) -> Result<AnswerVerdict, SyncError> {
        let mut repair = repair.lock();
        let mut shallow = Vec::new();
        let added = match self {
            Question::Places { wanted, levels } => {
                add_places(&mut repair, wanted, levels, peer, answer, &mut shallow)
            }
            Question::Codes(hashes) => add_codes(&mut repair, &hashes, answer),
        };
        let lie = match added {
            Ok(lie) => lie,
            Err(error) if error.is_bad_supply() => Some(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        Ok(AnswerVerdict { shallow, lie })
    }
}

/// Adds opened places. Returns a lie that concerns no single place.
fn add_places(
    repair: &mut Repair,
    mut wanted: Vec<WantedSubtree>,
    levels: u8,
    peer: PeerId,
    answer: &[u8],
    shallow: &mut Vec<PeerId>,
) -> Result<Option<String>, StorageError> {
    let opened = match codec::decode::<Subtrees>("subtrees", answer, ANSWER_BYTES_MAX) {
        Ok(subtrees) if subtrees.opened.len() == wanted.len() => Ok(subtrees.opened),
        Ok(_) => Err("the answer has another number of subtrees than requested".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(lie) => {
            repair.want_again(wanted);
            return Ok(Some(lie));
        }
    };
    for (at, opened) in opened.iter().enumerate() {
        match repair.add(&wanted[at], opened, levels, peer) {
            Ok(supplier) => shallow.extend(supplier),
            Err(error) => {
                repair.want_again(wanted.drain(at..));
                return Err(error);
            }
        }
    }
    Ok(None)
}

/// As [`add_places`], for codes. The codes must be those that this peer was asked for. Otherwise a peer could make
/// another peer, which is asked for these codes, look like a liar.
fn add_codes(repair: &mut Repair, hashes: &[Digest], answer: &[u8]) -> Result<Option<String>, StorageError> {
    let codes = match codec::decode::<Codes>("codes", answer, ANSWER_BYTES_MAX) {
        Ok(codes) if codes.codes.len() == hashes.len() => codes.codes,
        Ok(_) => return Ok(Some("the answer has another number of codes than requested".into())),
        Err(error) => return Ok(Some(error.to_string())),
    };
    hashes.iter().zip(codes.iter()).try_for_each(|(hash, code)| repair.add_code(hash, code))?;
    Ok(None)
}
