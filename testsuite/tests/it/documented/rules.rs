//! The time and manner in which each documented command line is run.

use rustix::process::Signal;

/// The state in which a command is run, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The files are written.
    Files,
    /// The devnet starts.
    Devnet,
    /// A fullnode of the chain is set up and starts.
    Node,
    /// The fullnode is at the head.
    Running,
    /// The fullnode has stopped.
    Stopped,
    /// The devnet is operated, and ends.
    End,
}

/// All stages, in order.
pub(crate) const STAGES: [Stage; 6] =
    [Stage::Files, Stage::Devnet, Stage::Node, Stage::Running, Stage::Stopped, Stage::End];

/// The expected behaviour of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    /// Prints something and exits with 0.
    Ends,
    /// As `Ends`, in a directory with nothing but the genesis.
    Alone,
    /// As `Ends`, in an empty data directory.
    Anew,
    /// As `Ends`, after a while: it may fail before.
    Soon,
    /// Prints that it is ready, and is the fullnode of the following stages.
    Serves,
    /// Prints something and runs until this signal, then exits with this code; `None` means that the signal itself ends
    /// it.
    Until(Signal, Option<i32>),
    /// Draws on a terminal until SIGTERM, and exits with 0.
    Draws,
}

/// SIGTERM ends it: the children of a shell in the background ignore SIGINT, unless they handle it.
const UNTIL_ENDED: How = How::Until(Signal::TERM, None);

/// The rules, by the prefix of the command line; the longest one that fits applies.
pub(crate) const RULES: &[(&str, Stage, How)] = &[
    ("slipnet run mine.yaml ", Stage::Files, How::Ends),
    ("slipnet scenarios ", Stage::Files, How::Ends),
    ("slipnet compare BEFORE AFTER", Stage::Files, How::Ends),
    ("slipnet explain ", Stage::Files, How::Ends),
    ("slipnet sim --seeds 200 --scenario ", Stage::Files, How::Ends),
    ("slipnet sim --seeds SEED ", Stage::Files, How::Ends),
    ("slipnet sim validators --seeds 19 ", Stage::Files, How::Ends),
    ("slipnet campaign siege --list", Stage::Files, How::Ends),
    ("slipnet load --help", Stage::Files, How::Ends),
    ("slipnet up -v 4 -f 2 --latency ", Stage::Files, How::Alone),
    ("slipstream man ", Stage::Files, How::Alone),
    ("slipnet up -d far ", Stage::Devnet, How::Ends),
    ("slipstream init ", Stage::Node, How::Alone),
    ("slipstream init --dir node --genesis ", Stage::Node, How::Ends),
    ("slipstream genesis ", Stage::Node, How::Alone),
    ("slipstream validators place ", Stage::Node, How::Alone),
    ("slipstream run ", Stage::Node, How::Serves),
    ("slipstream config ", Stage::Running, How::Ends),
    ("slipstream status ", Stage::Running, How::Ends),
    ("slipstream plan ", Stage::Running, How::Ends),
    ("slipstream status --config node/node.yaml --watch ", Stage::Running, UNTIL_ENDED),
    ("slipstream wait ", Stage::Running, How::Ends),
    ("slipstream events ", Stage::Running, UNTIL_ENDED),
    ("curl ", Stage::Running, UNTIL_ENDED),
    ("slipstream top ", Stage::Running, How::Draws),
    ("slipstream log filter ", Stage::Running, How::Ends),
    ("slipstream peers ", Stage::Running, How::Ends),
    ("slipstream peers ping ", Stage::Running, How::Soon),
    ("slipstream debug bundle ", Stage::Running, How::Ends),
    ("slipstream validators ", Stage::Running, How::Ends),
    ("slipstream verify-account ", Stage::Running, How::Ends),
    // These two may fail temporarily: the head moves, or the node's work removes a file.
    ("slipstream read ", Stage::Running, How::Soon),
    ("slipstream db get ", Stage::Running, How::Soon),
    ("slipstream db ", Stage::Stopped, How::Ends),
    ("slipstream snapshot ", Stage::Stopped, How::Ends),
    ("slipstream snapshot import ", Stage::Stopped, How::Anew),
    ("slipnet status", Stage::End, How::Ends),
    ("slipnet stop ", Stage::End, How::Ends),
    ("slipnet start ", Stage::End, How::Ends),
    ("slipnet logs ", Stage::End, How::Until(Signal::INT, Some(1))),
    ("slipnet down ", Stage::End, How::Ends),
    ("slipnet clean ", Stage::End, How::Ends),
];

/// Returns the index in [`RULES`] of the rule for a command line.
pub(crate) fn rule(line: &str) -> Option<usize> {
    let fits = RULES.iter().enumerate().filter(|(_, (beginning, ..))| line.starts_with(beginning));
    fits.max_by_key(|(_, (beginning, ..))| beginning.len()).map(|(place, _)| place)
}
