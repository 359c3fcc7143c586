//! The image of nodes that run programs other than `current`: that of `slipnet`, with each of these programs. A
//! container has one image, so an upgrade only changes which program `slipnet operate` starts in it.

use std::{collections::BTreeSet, fs, io::ErrorKind, path::Path};

use anyhow::{Context, Result, ensure};

use super::{Blueprint, Member, NODE_IMAGE, TOOLS_IMAGE};
use crate::{operate::What, scenario::CURRENT};

const IMAGE: &str = "slipnet-programs";
/// The Containerfile of that image, beside the other files.
const FILE: &str = "Containerfile.programs";
/// The default tag: the image with this tag is the current program.
const LATEST: &str = "latest";

impl Member {
    /// Returns the names of the programs that it runs besides the current one.
    fn programs(&self) -> impl Iterator<Item = &str> {
        let ordered = self.orders.iter().filter_map(|order| match &order.what {
            What::Upgrade(name) => Some(name.as_str()),
            _ => None,
        });
        ordered.chain(self.program.as_deref()).filter(|name| *name != CURRENT)
    }

    /// Returns the image in which `slipnet operate` runs it.
    pub(super) fn operator_image(&self) -> &'static str {
        if self.programs().next().is_some() { IMAGE } else { TOOLS_IMAGE }
    }
}

/// Writes the Containerfile of the image with other programs. If there are none, removes the file of another scenario.
pub(super) fn write(blueprint: &Blueprint) -> Result<()> {
    let path = blueprint.dir.join(FILE);
    let names = names(blueprint);
    ensure!(
        !names.contains(LATEST),
        "a program is called {LATEST}, and {NODE_IMAGE}:{LATEST} is the current one: rename it"
    );
    if names.is_empty() {
        return match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        };
    }
    let mut text = format!(
        "# Written by slipnet: the image {TOOLS_IMAGE} with a program for each name that the scenario has for one.\n\
         # Each is that of the image {NODE_IMAGE}:NAME, as packaging/container/Containerfile makes it of the sources of that version.\n\
         FROM {TOOLS_IMAGE}\n"
    );
    for name in names {
        text += &format!("COPY --from={NODE_IMAGE}:{name} /usr/bin/slipstream /usr/bin/slipstream-{name}\n");
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the names of all programs besides the current one.
fn names(blueprint: &Blueprint) -> BTreeSet<&str> {
    blueprint.members.iter().flat_map(Member::programs).collect()
}

/// Describes how to build the image of these programs in a directory of files; empty if there are none.
pub(super) fn usage(blueprint: &Blueprint, dir: &Path) -> String {
    let names = names(blueprint);
    if names.is_empty() {
        return String::new();
    }
    let images: Vec<String> = names.iter().map(|name| format!("{NODE_IMAGE}:{name}")).collect();
    // A build would pull a missing image: a registry's image of that name is somebody else's.
    format!(
        "image: docker image inspect {TOOLS_IMAGE} {images} >/dev/null && docker build -t {IMAGE} - < {file}   \
         # has the programs of these images: build or tag them before\n",
        images = images.join(" "),
        file = dir.join(FILE).display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{scenario::Scenario, target::Target};

    /// Goal: the image is built from local images, and none of them is the current program under another name.
    #[test]
    fn an_image_is_made_of_what_is_here() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let text = format!(
                "name: a\ndescription: b\nduration: 30s\ncriteria: [no_alarm]\ntopology: {{ validators: 1 }}\n\
                 faults: [{{ at: 5s, what: {{ upgrade: {{ who: {{ nodes: [validator-0] }}, to: {name} }} }} }}]\n"
            );
            let scenario =
                Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
            crate::scenario::write_files(Target::Compose, &scenario, dir.path(), None)
        };
        let usage = write("before").unwrap().usage;
        let build = "docker image inspect slipnet slipstream:before >/dev/null && docker build -t slipnet-programs - < ";
        assert!(usage.contains(build), "{usage}");
        assert!(write("latest").unwrap_err().to_string().contains("rename it"));
    }
}
