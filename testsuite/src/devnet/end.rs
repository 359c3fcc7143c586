//! [`NodeEnd`]: how a node's process ended.

use std::{fmt, os::unix::process::ExitStatusExt, process::ExitStatus};

use rustix::process::Signal;

use super::process::describe;

/// How a node's process ended.
#[derive(Clone, Debug)]
pub struct NodeEnd {
    pub(super) name: String,
    pub(super) status: ExitStatus,
    /// The last lines of its log.
    pub(super) last_words: String,
    /// The command that starts it again.
    pub(super) command: String,
}

impl NodeEnd {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node's name and how it ended, if it failed: an exit code other than 0, or a crash. SIGTERM, SIGINT and
    /// SIGKILL are no failures.
    pub(super) fn failure(&self) -> Option<String> {
        let asked = [Signal::TERM, Signal::INT, Signal::KILL].map(|signal| Some(signal.as_raw()));
        let wanted = self.status.success() || asked.contains(&self.status.signal());
        (!wanted).then(|| format!("{} ended with {}", self.name, describe(self.status)))
    }
}

impl fmt::Display for NodeEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeEnd { name, status, last_words, command } = self;
        write!(f, "{name} ended: {}. The other nodes keep running", describe(*status))?;
        if self.failure().is_some() {
            write!(f, ". The end of its log:\n{last_words}\n{name} starts again with: {command}")
        } else {
            write!(f, "; it starts again with: {command}")
        }
    }
}
