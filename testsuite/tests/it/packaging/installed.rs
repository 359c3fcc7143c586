//! Tests of what the Debian package and the unit install on a machine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::{packaging, printed};

/// The mode that the node requests for its log file: its group may read it.
const LOG_MODE: u32 = 0o640;

/// Returns the value of a setting of the unit.
fn setting(unit: &str, name: &str) -> String {
    let value = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("the unit has no {name}")).to_owned()
}

/// Goal: `slipstream init` can write its directories as the node's user before the unit has ever been started.
#[test]
fn the_package_makes_the_directories_that_init_needs() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().display();
    let text = fs::read_to_string(packaging("debian/postinst")).unwrap();
    // The paths are moved to another root, and the owner becomes this test's own user.
    let text = text.replace(" /etc/", &format!(" {place}/etc/")).replace(" /var/", &format!(" {place}/var/"));
    assert!(text.contains("-o slipstream -g slipstream "), "the data are nobody's: {text}");
    let text = text.replace("-o slipstream -g slipstream ", "");
    // The user exists.
    let text = format!("getent() {{ [ \"$1 $2\" = 'passwd slipstream' ]; }}\n{text}");
    let run = |step: &str| printed(Command::new("sh").args(["-c", &text, "postinst", step]));
    run("abort-upgrade");
    assert!(!root.path().join("var").exists());
    // The second time is an upgrade.
    for _ in 0..2 {
        run("configure");
        for (dir, mode) in [("etc/slipstream", 0o755), ("var/lib/slipstream", 0o700)] {
            let meta = fs::metadata(root.path().join(dir)).unwrap();
            assert!(meta.is_dir() && meta.permissions().mode() & 0o777 == mode, "{dir}: {meta:?}");
        }
    }
}

/// Goal: the unit makes the log readable by its group, gives the node its variables, and reopens the log on reload.
#[test]
fn the_unit_is_one_to_operate() {
    let unit = fs::read_to_string(packaging("systemd/slipstream.service")).unwrap();
    let mask = u32::from_str_radix(&setting(&unit, "UMask"), 8).unwrap();
    assert_eq!(LOG_MODE & !mask, LOG_MODE, "{mask:o}");
    // Files without their own mode are unreadable for others too.
    assert_eq!((mask & 0o007, setting(&unit, "StateDirectoryMode").as_str()), (0o007, "0700"));
    // The file may be missing.
    assert_eq!(setting(&unit, "EnvironmentFile"), "-/etc/default/slipstream");
    let reload = setting(&unit, "ExecReload");
    let program = reload.split(' ').next().unwrap();
    assert!(reload.ends_with(" -HUP $MAINPID") && Path::new(program).exists(), "{reload}");
}
