//! The rules of regions, and of settings that would bypass the links between them.

use clap::ValueEnum;

use super::{
    Rules,
    at::{At, Checked},
};
use crate::{
    relay::Region,
    scenario::{engine::setup, model::Config},
};

impl Rules<'_> {
    /// Checks that a link or a built-in distance exists for each region: otherwise its nodes would have undelayed links
    /// to all.
    pub(super) fn regions(&self) -> Checked {
        let built_in = || Region::value_variants().iter().map(|region| region.name());
        let linked = || self.topology().links.iter().flat_map(|link| &link.between).map(String::as_str);
        for (index, settings) in self.topology().settings.iter().enumerate() {
            let Some(region) = settings.region.as_deref() else { continue };
            if built_in().chain(linked()).all(|known| known != region) {
                let mut known: Vec<&str> = built_in().collect();
                for name in linked() {
                    if !known.contains(&name) {
                        known.push(name);
                    }
                }
                return Err(At::key("topology").then("settings").item(index).then("region").wrong(format!(
                    "the distance of `{region}` from other regions is unknown: use one of {}, or write links with `between: [{region}, …]` into `topology.links`",
                    known.join(", ")
                )));
            }
        }
        Ok(())
    }

    /// Checks that nodes behind relays do not dial announced addresses, which would bypass the relays.
    pub(super) fn outbound(&self) -> Checked {
        if !setup::needs_links(self.scenario) {
            return Ok(());
        }
        let topology = At::key("topology");
        keeps_to_links(&topology.then("config"), &self.topology().config)?;
        for (index, settings) in self.topology().settings.iter().enumerate() {
            keeps_to_links(&topology.then("settings").item(index).then("config"), &settings.config)?;
        }
        Ok(())
    }
}

fn keeps_to_links(at: &At, config: &Config) -> Checked {
    for (key, value) in config {
        if setup::given(key, value, setup::OUTBOUND).is_some_and(|number| *number != 0) {
            return Err(at.then(key).wrong(format!(
                "{} is 0 where regions, `link`, `partition` or `twin` need relays between nodes, because chosen peers would bypass the relays: leave it out",
                setup::OUTBOUND
            )));
        }
    }
    Ok(())
}
