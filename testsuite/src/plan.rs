//! [`Plan`]: the description of a devnet, which its keeper reads and from which targets beyond this machine are
//! written.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{
    devnet::{Devnet, DevnetOptions},
    relay::{Limits, Links, Region, Shape, Terrain},
};

/// A devnet and the links between its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The devnet.
    pub devnet: DevnetOptions,
    /// The regions of its nodes, assigned in turn, validators first.
    pub regions: Vec<Region>,
    /// The loss and bandwidth limits of its links. Without regions and limits there are no relays.
    #[serde(default)]
    pub limits: Limits,
}

impl Plan {
    /// Returns the region of a node, by its index in the devnet.
    pub fn region(&self, index: usize) -> Option<Region> {
        Region::of_node(&self.regions, index)
    }

    /// Whether its nodes are connected by relays.
    pub fn has_relays(&self) -> bool {
        !self.regions.is_empty() || !self.limits.is_none()
    }

    fn terrain(&self) -> Terrain {
        Terrain::Regions(self.regions.clone(), self.limits)
    }

    /// Returns the link between two nodes, by their indices; `None` if they dial each other directly.
    pub fn shape(&self, from: usize, to: usize) -> Option<Shape> {
        self.has_relays().then(|| self.terrain().shape(from, to))
    }

    /// Starts the devnet, and its links if it has any.
    ///
    /// # Errors
    /// As [`Devnet::start`].
    pub async fn start(&self) -> Result<(Devnet, Option<Links>)> {
        if !self.has_relays() {
            return Ok((Devnet::start(self.devnet.clone()).await?, None));
        }
        let links = Links::new(&self.devnet.seed, self.terrain());
        let options = DevnetOptions { outbound: Some(0), ..self.devnet.clone() };
        let devnet = Devnet::start_routed(options, &|from, to, peer| links.lay(from, to, &peer)).await?;
        Ok((devnet, Some(links)))
    }
}
