//! `slipstream init`.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use clap::{
    Args, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use miette::{Context, Result, bail, miette};
use slipstream_base::{
    genesis_file, keys,
    small_file::{self, Placement, Readers},
};
use slipstream_config::Preset;
use slipstream_network::PeerTarget;
use slipstream_types::Waypoint;

use super::{config, exit::OrFail as _, output::print};

const CONFIG: &str = "node.yaml";
const KEY: &str = "node.key";
const SCHEMA: &str = "node.schema.json";

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Directory to write node.yaml and node.key into; created if it does not exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The node's role; fullnode unless this or --preset sets it
    #[arg(long, value_enum, conflicts_with = "preset")]
    role: Option<RoleArg>,
    /// The kind of node: its preset supplies values that the file overrides; docs/configuration.md lists them
    #[arg(long, value_parser = presets())]
    preset: Option<Preset>,
    /// TCP port of JSON-RPC, status and metrics, on loopback
    #[arg(long, value_name = "PORT", default_value_t = 8545)]
    api_port: u16,
    /// UDP port for peers, on all addresses
    #[arg(long, value_name = "PORT", default_value_t = 7400)]
    network_port: u16,
    /// Also write node.schema.json, which lets editors with a YAML language server complete, check and explain
    /// node.yaml
    #[arg(long)]
    schema: bool,
    /// The chain's genesis file
    #[arg(long, value_name = "FILE")]
    genesis: Option<PathBuf>,
    /// A trusted position NUMBER:0xHASH, as `slipstream status` of a trusted node prints it
    #[arg(long)]
    waypoint: Option<Waypoint>,
    /// A peer ID@HOST:PORT to connect to, as `slipstream status` of that peer prints it; HOST is an IP address or a DNS
    /// name; may be repeated
    #[arg(long = "peer", value_name = "PEER")]
    peers: Vec<PeerTarget>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum RoleArg {
    Fullnode,
    Validator,
}

/// Parses the name of a preset; help lists them all.
fn presets() -> impl TypedValueParser<Value = Preset> {
    let named = |preset: &Preset| PossibleValue::new(preset.name()).help(preset.summary());
    PossibleValuesParser::new(Preset::ALL.iter().map(named)).map(|name| {
        let preset = Preset::ALL.iter().copied().find(|preset| preset.name() == name);
        preset.expect("only names of presets are possible values")
    })
}

impl InitArgs {
    fn role(&self) -> RoleArg {
        match self.preset {
            Some(preset) if preset.is_validator() => RoleArg::Validator,
            Some(_) => RoleArg::Fullnode,
            None => self.role.unwrap_or(RoleArg::Fullnode),
        }
    }
}

pub(super) fn init(args: &InitArgs) -> Result<()> {
    let (config, key) = (args.dir.join(CONFIG), args.dir.join(KEY));
    let schema = args.schema.then(|| args.dir.join(SCHEMA));
    for file in [&config, &key].into_iter().chain(&schema) {
        if file.exists() {
            bail!(
                "{} exists already; nothing was written. Use another --dir, or move the file away",
                file.display()
            );
        }
    }
    let text = render(args)?;
    // Everything that `run` would refuse is refused here, before anything is written.
    slipstream_config::parse(&text, &config).or_fail()?;
    fs::create_dir_all(&args.dir)
        .map_err(|source| miette!("cannot make the directory {}: {source}", args.dir.display()))?;
    let peer = keys::create(&key).or_fail()?.public();
    if let Some(schema) = &schema {
        write(schema, &(config::schema()? + "\n"))?;
    }
    write(&config, &text)?;
    print(&format!("wrote {} and {}\npeer id {peer}", config.display(), key.display()))?;
    print(&format!("next: slipstream run --config {}", config.display()))
}

/// Writes a file that must not exist yet.
fn write(path: &Path, text: &str) -> Result<()> {
    let written = small_file::write(path, text.as_bytes(), Readers::Anybody, Placement::New);
    written.or_fail().wrap_err_with(|| format!("cannot write {}", path.display()))
}

/// Renders the commented configuration.
fn render(args: &InitArgs) -> Result<String> {
    let role = match args.role() {
        RoleArg::Fullnode => "fullnode",
        RoleArg::Validator => "validator",
    };
    // With a preset, the role and further keys come from the preset.
    let kind = match args.preset {
        Some(preset) => format!(
            "# `slipstream config show --origin` shows the values that come from the preset; values in this file override \
             them.\npreset: {}",
            preset.name()
        ),
        None => format!(
            "# validator: executes and certifies while the chain's validator set names its key. fullnode: follows and serves.\nrole: {role}"
        ),
    };
    let schema = match args.schema {
        true => format!("# yaml-language-server: $schema={SCHEMA}\n"),
        false => String::new(),
    };
    let mut text = format!(
        "{schema}# Configuration of a Slipstream node; docs/configuration.md lists every key with its default.\n\
         # Relative paths start at this file's directory. Check it with: slipstream config check FILE\n\n\
         {kind}\n\n\
         # Database and lock.\n\
         data_dir: data\n\n\
         # The node's identity; keep it secret and never use it on two nodes.\n\
         key_file: {KEY}\n\n\
         # Where trust starts: the chain's genesis file, or a waypoint NUMBER:0xHASH from a node that you trust.\n"
    );
    match &args.genesis {
        Some(path) => {
            genesis_file::load(path).or_fail()?;
            let path = fs::canonicalize(path).or_fail()?;
            writeln!(text, "genesis: {}", quoted(&path)?)
        }
        // The genesis must name the validator's key, which exists only now, so the genesis file may follow later.
        None if args.role() == RoleArg::Validator => writeln!(text, "genesis: genesis.json"),
        None => writeln!(text, "# genesis: genesis.json"),
    }
    .expect("a String takes everything");
    match &args.waypoint {
        Some(waypoint) => writeln!(text, "waypoint: \"{waypoint}\""),
        None => writeln!(text, "# waypoint: \"0:0x...\""),
    }
    .expect("a String takes everything");
    let network = SocketAddr::from((Ipv4Addr::UNSPECIFIED, args.network_port));
    writeln!(text, "\nnetwork:\n  # UDP port for peers.\n  listen: \"{network}\"")
        .expect("a String takes everything");
    text.push_str("  # Peers to dial, and to dial again when they are lost: ID@IP:PORT or ID@NAME:PORT.\n");
    if args.peers.is_empty() {
        text.push_str("  peers: []\n");
    } else {
        text.push_str("  peers:\n");
        for peer in &args.peers {
            writeln!(text, "    - \"{peer}\"").expect("a String takes everything");
        }
    }
    text.push_str(
        "  # Addresses at which others reach this node from outside: [\"IP:PORT\"].\n  advertise: []\n",
    );
    if args.preset.is_none() {
        text.push_str(
            "\nsync:\n  # auto, replay (execute everything), delta (apply certified changes), range_delta (apply one merged change)\n  # or snapshot.\n  mode: auto\n",
        );
    }
    let api = SocketAddr::from((Ipv4Addr::LOCALHOST, args.api_port));
    write!(
        text,
        "\napi:\n  # JSON-RPC at POST /, /v1/status, /metrics and /health. The API authenticates nobody: keep it on loopback\n  \
         # or behind a proxy.\n  listen: \"{api}\"\n\n\
         log:\n  filter: info\n  # text or json\n  format: text\n",
    )
    .expect("a String takes everything");
    Ok(text)
}

/// A path as a YAML string.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| miette!("the path {} is not UTF-8", path.display()))?;
    // Every JSON string is a YAML string.
    serde_json::to_string(text).or_fail()
}
