//! Tests of what the Debian package and the unit leave on a machine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use super::{packaging, printed};

/// The mode of the log file, as the node asks for it: its group may read it.
const LOG_MODE: u32 = 0o640;

/// The value of a setting of the unit.
fn setting(unit: &str, name: &str) -> String {
    let value = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("the unit has no {name}")).to_owned()
}

/// Goal: `slipstream init` finds a directory that it may write as the node's user, before the unit has ever been started.
#[test]
fn the_package_makes_the_directories_that_init_needs() {
    let root = tempfile::tempdir().unwrap();
    let place = root.path().display();
    let text = fs::read_to_string(packaging("debian/postinst")).unwrap();
    // In another root, for this test's own user.
    let text = text.replace(" /etc/", &format!(" {place}/etc/")).replace(" /var/", &format!(" {place}/var/"));
    assert!(text.contains("-o slipstream -g slipstream "), "the data are nobody's: {text}");
    let text = text.replace("-o slipstream -g slipstream ", "");
    // The user is there.
    let text = format!("getent() {{ [ \"$1 $2\" = 'passwd slipstream' ]; }}\n{text}");
    let run = |step: &str| printed(Command::new("sh").args(["-c", &text, "postinst", step]));
    run("abort-upgrade");
    assert!(!root.path().join("var").exists());
    // Again with an upgrade.
    for _ in 0..2 {
        run("configure");
        for (dir, mode) in [("etc/slipstream", 0o755), ("var/lib/slipstream", 0o700)] {
            let meta = fs::metadata(root.path().join(dir)).unwrap();
            assert!(meta.is_dir() && meta.permissions().mode() & 0o777 == mode, "{dir}: {meta:?}");
        }
    }
}

/// Goal: the unit leaves the log file to its group, gives the node its variables, and a reload opens the log anew.
#[test]
fn the_unit_is_one_to_operate() {
    let unit = fs::read_to_string(packaging("systemd/slipstream.service")).unwrap();
    let mask = u32::from_str_radix(&setting(&unit, "UMask"), 8).unwrap();
    assert_eq!(LOG_MODE & !mask, LOG_MODE, "{mask:o}");
    // What has no mode of its own is out of others' reach all the same.
    assert_eq!((mask & 0o007, setting(&unit, "StateDirectoryMode").as_str()), (0o007, "0700"));
    // It need not be there.
    assert_eq!(setting(&unit, "EnvironmentFile"), "-/etc/default/slipstream");
    let reload = setting(&unit, "ExecReload");
    let program = reload.split(' ').next().unwrap();
    assert!(reload.ends_with(" -HUP $MAINPID") && Path::new(program).exists(), "{reload}");
}
