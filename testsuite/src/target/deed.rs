//! [`Deed`]: what an operator does by hand, because no file does it.

use crate::time;

/// Stands in commands for whoever orders the batches then.
const PRIMARY: &str = "PRIMARY";

/// Something that is done to one node at a time of a scenario.
pub(crate) struct Deed {
    /// After the start.
    pub(crate) at_ms: u64,
    /// When it ends; none if nothing ends it.
    pub(crate) until_ms: Option<u64>,
    /// As reports call it.
    pub(crate) what: String,
    /// The node; none is whoever is primary then.
    pub(crate) who: Option<String>,
    pub(crate) act: Act,
}

/// What there are commands for, more or fewer of them for each target.
pub(crate) enum Act {
    /// The first start of a node that joins later.
    Start,
    Kill,
    Pause,
    Restart,
    Wipe,
    BitFlip,
    Export,
    /// Arguments of `slipstream validators`, of which those that say where to are missing.
    Validators(String),
    /// Nothing does it.
    Nothing,
}

/// The commands of one deed.
pub(super) struct Steps {
    pub(super) begin: String,
    /// None if the deed ends by itself.
    pub(super) end: Option<String>,
}

impl Steps {
    pub(super) fn once(begin: String) -> Option<Steps> {
        Some(Steps { begin, end: None })
    }

    pub(super) fn both(begin: String, end: String) -> Option<Steps> {
        Some(Steps { begin, end: Some(end) })
    }
}

impl Deed {
    pub(super) fn name(&self) -> &str {
        self.who.as_deref().unwrap_or(PRIMARY)
    }

    /// A line for the operator, or one that says that no command does it.
    pub(super) fn told(&self, steps: Option<Steps>) -> Result<String, String> {
        let what = format!("at {}: {} {}", time::short(self.at_ms), self.what, self.name());
        let until = self.until_ms.map(time::short);
        let Some(Steps { begin, end }) = steps else {
            let until = until.map_or_else(String::new, |until| format!(" until {until}"));
            return Err(format!("{what}{until}: no command of this target does it"));
        };
        Ok(match until.zip(end) {
            Some((until, end)) => format!("{what}: {begin}; at {until}: {end}"),
            None => format!("{what}: {begin}"),
        })
    }
}

/// Says who is meant by [`PRIMARY`], if anybody is.
pub(super) fn legend(deeds: &[Deed]) -> Option<String> {
    let has_primary = deeds.iter().any(|deed| deed.who.is_none());
    has_primary.then(|| format!("{PRIMARY} is the validator whose /v1/status says that it is_primary"))
}

/// A shell's command that changes a byte of a stopped or running node's largest database file.
pub(super) fn damage(data: &str) -> String {
    format!(
        "f=$(ls -S {data}/db/*.sst | head -n 1) && printf '\\377' | dd of=\"$f\" bs=1 seek=4096 conv=notrunc"
    )
}
