//! [`commit`]: the commit from which this program was built.
//!
//! The program does not contain its commit: otherwise each commit would rebuild it. But cargo writes a list of a
//! program's source files beside the program. While none of these is newer than the program, the checkout is unchanged
//! since the build, and git returns the commit.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

/// The files that determine a program apart from its sources.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "Cargo.lock"];

/// Returns the commit of the checkout from which the program was built, with `-dirty` if files differ from it. It is
/// `unknown` if the checkout is missing or has changed since, or if the program is a copy without cargo's list. Copy
/// both with their times (`cp -p NAME NAME.d DIR`).
pub(super) fn commit() -> String {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    let program = std::env::current_exe().ok();
    let found = checkout.zip(program).and_then(|(checkout, program)| commit_of(checkout, &program));
    found.unwrap_or_else(|| "unknown".to_owned())
}

fn commit_of(checkout: &Path, program: &Path) -> Option<String> {
    let built = modified(program)?;
    let list = fs::read_to_string(program.with_extension("d")).ok()?;
    let sources = sources(&list, program)?;
    let manifests = MANIFESTS.map(|name| checkout.join(name));
    let is_of_here = sources.iter().any(|path| path.starts_with(checkout));
    let mut files = sources.iter().chain(&manifests);
    let is_as_built = files.all(|path| modified(path).is_some_and(|modified| modified <= built));
    if !is_of_here || !is_as_built {
        return None;
    }
    let mut git = Command::new("git");
    git.arg("-C").arg(checkout).args(["describe", "--always", "--dirty", "--exclude", "*"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|commit| !commit.is_empty())
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}

/// Returns the files in cargo's list, if it is this program's: `PROGRAM: FILE FILE`, with `\ ` for a blank in a name.
fn sources(list: &str, program: &Path) -> Option<Vec<PathBuf>> {
    let (made, files) = list.lines().next()?.split_once(": ")?;
    let plain = |name: &str| PathBuf::from(name.replace('\0', " "));
    let is_its_own = plain(&made.replace("\\ ", "\0")).file_name() == program.file_name();
    let files = files.replace("\\ ", "\0");
    is_its_own.then(|| files.split(' ').filter(|name| !name.is_empty()).map(plain).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Duration};

    use super::*;

    /// Goal: a program names the commit of its checkout only while that is unchanged since the build, whenever it was
    /// committed.
    #[test]
    fn a_program_names_what_it_was_built_from() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(dir.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
            let output = git.output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        fs::create_dir(at("target")).unwrap();
        for name in ["Cargo.toml", "Cargo.lock", "a b.rs", "notes.md", "target/made"] {
            fs::write(at(name), "").unwrap();
        }
        let (source, program) = (at("a b.rs"), at("target/made"));
        let begin = modified(&program).unwrap();
        let touch = |path: &Path, seconds: u64| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(begin + Duration::from_secs(seconds)).unwrap();
        };
        touch(&program, 100);
        git(&["init", "-q"]);
        git(&["add", "Cargo.toml", "Cargo.lock", "a b.rs", "notes.md"]);
        git(&["commit", "-qm", "a"]);
        let head = git(&["rev-parse", "--short", "HEAD"]);
        let found = || commit_of(dir.path(), &program);
        assert_eq!(found(), None, "nobody knows of what it was made");
        let listed = source.display().to_string().replace(' ', "\\ ");
        fs::write(at("target/made.d"), format!("{}: {listed}\n", at("target/other").display())).unwrap();
        assert_eq!(found(), None, "the list of another program");
        fs::write(at("target/made.d"), format!("{}: {listed}\n", program.display())).unwrap();
        assert_eq!(found(), Some(head.clone()));
        fs::write(at("notes.md"), "it is made of other files").unwrap();
        touch(&at("notes.md"), 200);
        assert_eq!(found(), Some(format!("{head}-dirty")));
        git(&["commit", "-qam", "b"]);
        assert_eq!(found(), Some(git(&["rev-parse", "--short", "HEAD"])));
        for path in [source, at("Cargo.lock")] {
            touch(&path, 200);
            assert_eq!(found(), None, "{} changed since", path.display());
            touch(&path, 0);
        }
        fs::remove_file(at("Cargo.toml")).unwrap();
        assert_eq!(found(), None);
    }
}
