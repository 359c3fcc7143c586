//! `slipstream top`: the node's page, on a terminal.
//!
//! ```text
//!  reader (a thread: reads the status, however long that takes) ─▶ View ─▶ draw ─▶ terminal
//!  listener (a thread: follows the events) ─────────────────────────┤
//!  keys, signals ───────────────────────────────────────────────────┘
//! ```
//!
//! The command restores the terminal when it ends: after a key, a signal, an error or a panic.

mod draw;
mod heard;
mod lines;
mod peers;
mod sections;

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use miette::{Result, miette};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use signal_hook::{
    consts::{SIGHUP, SIGTERM},
    flag,
};
use slipstream_base::NodeError;
use slipstream_status::{NodeStatus, Unit};

use self::heard::{EVENTS_MAX, Events, StreamNews};
use super::{
    ask::NodeUrl,
    exit::OrFail as _,
    status::{NodeArgs, read_within},
    text::OutputError,
};

/// Time limit for one reading.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest delay of a key or a signal.
const KEYS_EVERY: Duration = Duration::from_millis(100);
/// Maximum number of readings whose rates are drawn.
const RATES_MAX: usize = 240;

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    every: u32,
}

/// Draws until `q` is pressed, or a signal ends the program.
pub(super) fn top(args: &TopArgs) -> Result<()> {
    let node = args.node.address()?;
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(miette!(
            "`slipstream top` draws on a terminal; `slipstream status --watch` writes lines"
        ));
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        let action = "wait for signals";
        flag::register(signal, ended.clone()).map_err(|source| NodeError::Io { action, source }).or_fail()?;
    }
    let (looks, seen) = sync_channel(1);
    let (stop, stopped) = sync_channel::<()>(0);
    let every = Duration::from_secs(args.every.into());
    let (tells, told) = sync_channel(EVENTS_MAX);
    let (asked, listened) = (node.clone(), node.clone());
    beside("status-reader", move || read(&asked, every, &looks, &stopped))?;
    beside("event-listener", move || heard::listen(&listened, &tells))?;
    let _restored = Restored;
    // This also restores the terminal before a panic is reported.
    let mut terminal = ratatui::try_init().map_err(OutputError::from).or_fail()?;
    let shown = show(&mut terminal, &mut View::new(node.to_string()), &seen, &told, &ended);
    drop(stop);
    shown.map_err(OutputError::from).or_fail()
}

/// Runs `work` on a thread. The command's end does not wait for this thread, which may be waiting for an answer and
/// holds nothing.
fn beside(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|source| NodeError::Io { action: "start a thread", source }).or_fail()
}

/// Restores the terminal on drop.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// A reading, or why it failed.
type Reading = std::result::Result<Box<NodeStatus>, String>;

/// Reads the status repeatedly until the receiver is dropped.
fn read(node: &NodeUrl, every: Duration, looks: &SyncSender<Reading>, stopped: &Receiver<()>) {
    loop {
        let look = read_within(node, PATIENCE).map(Box::new).map_err(|error| error.to_string());
        if looks.send(look).is_err() || stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    seen: &Receiver<Reading>,
    told: &Receiver<StreamNews>,
    ended: &AtomicBool,
) -> io::Result<()> {
    while !ended.load(Ordering::Relaxed) {
        match seen.try_recv() {
            Ok(look) => view.see(look, Instant::now()),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(io::Error::other("nobody reads the status any more"));
            }
        }
        for heard in told.try_iter() {
            view.events.hear(heard, Instant::now());
        }
        terminal.draw(|frame| draw::draw(frame, view, Instant::now()))?;
        if event::poll(KEYS_EVERY)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && !view.press(key)
        {
            break;
        }
    }
    Ok(())
}

/// The state of the screen.
struct View {
    /// The URL of the node.
    address: String,
    /// The last status, and its time.
    seen: Option<(Box<NodeStatus>, Instant)>,
    /// Why the last reading failed.
    trouble: Option<String>,
    /// The node's CPU use in percent of a core, between the last two readings.
    cpu_percent: Option<f64>,
    /// The rates of the last readings, oldest first.
    rates: VecDeque<u64>,
    unit: Unit,
    events: Events,
    /// The number of lines scrolled off above the screen.
    above: u16,
    /// The largest value of `above`, from the last drawing.
    above_max: u16,
    /// Lines of a screen.
    page: u16,
}

impl View {
    fn new(address: String) -> View {
        View {
            address,
            seen: None,
            trouble: None,
            cpu_percent: None,
            rates: VecDeque::new(),
            unit: Unit::Batches,
            events: Events::default(),
            above: 0,
            above_max: 0,
            page: 1,
        }
    }

    fn see(&mut self, look: Reading, now: Instant) {
        let status = match look {
            Ok(status) => status,
            Err(trouble) => return self.trouble = Some(trouble),
        };
        self.trouble = None;
        let before = self.seen.as_ref().filter(|(before, _)| before.process.pid == status.process.pid);
        self.cpu_percent = before.map(|(before, at)| {
            let used = status.process.cpu_seconds - before.process.cpu_seconds;
            100.0 * used / now.duration_since(*at).as_secs_f64().max(1e-3)
        });
        if self.unit != status.progress.unit {
            (self.unit, self.rates) = (status.progress.unit, VecDeque::new());
        }
        self.rates.truncate(RATES_MAX - 1);
        self.rates.push_front(status.progress.per_second.round() as u64);
        self.seen = Some((status, now));
    }

    /// Handles a key; returns whether the command continues.
    fn press(&mut self, key: KeyEvent) -> bool {
        let above = match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Down | KeyCode::Char('j') => self.above.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.above.saturating_sub(1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.above.saturating_add(self.page),
            KeyCode::PageUp => self.above.saturating_sub(self.page),
            KeyCode::Home => 0,
            KeyCode::End => self.above_max,
            _ => self.above,
        };
        self.above = above.min(self.above_max);
        true
    }
}

#[cfg(test)]
mod tests;
