//! Command lines that run until they are ended.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::Read,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    process::{Child, ExitStatus},
    sync::mpsc::{Receiver, channel},
    thread,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::common::until_blocking;

/// A process; killed if the test ends before it is stopped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Returns how it ended, if it has.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Sends the signal, and returns how the process ended.
    pub(crate) fn stop(&mut self, what: &str, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        until_blocking(what, || self.ended().ok_or_else(|| format!("it goes on after {signal:?}")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process whose output goes to files.
pub(crate) struct Started {
    pub(crate) process: Running,
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
}

impl Started {
    /// Returns all of its output.
    pub(crate) fn said(&self) -> String {
        [&self.stdout, &self.stderr].map(|file| fs::read_to_string(file).unwrap_or_default()).concat()
    }

    /// Waits until it has printed something that contains these words.
    pub(crate) fn await_words(&mut self, what: &str, words: &str) {
        until_blocking(what, || {
            let said = fs::read(&self.stdout).unwrap();
            if !said.is_empty() && String::from_utf8_lossy(&said).contains(words) {
                return Ok(());
            }
            let ended = self.process.ended();
            assert!(ended.is_none(), "{what}: it ended by itself, {ended:?}: {}", self.said());
            Err(format!("it does not say `{words}`: {}", self.said()))
        });
    }
}

/// Returns both ends of a new terminal: the viewer's, and the program's.
pub(crate) fn terminal() -> (File, File) {
    let viewer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&viewer).unwrap();
    unlockpt(&viewer).unwrap();
    let name = ptsname(&viewer, Vec::new()).unwrap();
    let end = OpenOptions::new().read(true).write(true).open(OsStr::from_bytes(name.to_bytes())).unwrap();
    tcsetwinsize(&end, Winsize { ws_row: 60, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (viewer.into(), end)
}

/// Receives the output on a terminal, piece by piece.
pub(crate) fn drawn(mut viewer: File) -> Receiver<String> {
    let (draws, drawn) = channel();
    thread::spawn(move || {
        let mut piece = [0; 4096];
        // The output is read to its end, so that the program never blocks. An error means that the other side is
        // closed.
        while let Ok(len @ 1..) = viewer.read(&mut piece) {
            let _ = draws.send(String::from_utf8_lossy(&piece[..len]).into_owned());
        }
    });
    drawn
}
