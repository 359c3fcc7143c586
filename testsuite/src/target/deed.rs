//! [`Deed`]: what an operator does by hand, because no file does it.

use crate::time;

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

/// What there are commands for.
pub(crate) enum Act {
    Export,
    /// Arguments of `slipstream validators`, of which those that say where to are missing.
    Validators(String),
    /// Nothing does it.
    Nothing,
}

impl Deed {
    pub(super) fn name(&self) -> &str {
        self.who.as_deref().unwrap_or("the primary")
    }

    /// A line for the operator, or one that says that no command does it.
    pub(super) fn told(&self, command: Option<String>) -> Result<String, String> {
        let what = format!("at {}: {} {}", time::short(self.at_ms), self.what, self.name());
        command.map(|command| format!("{what}: {command}")).ok_or_else(|| {
            let until = self.until_ms.map(time::short);
            let until = until.map_or_else(String::new, |until| format!(" until {until}"));
            format!("{what}{until}: no command of this target does it")
        })
    }
}
