//! Numbers in a form for people.

use slipstream_status::{Eta, Progress, Unit};
use slipstream_sync::plan::WayStatus;

/// Three digits and a unit of thousands.
pub(crate) fn count(value: f64) -> String {
    scaled(value, 1_000.0, &["", " k", " M", " G"])
}

pub(crate) fn bytes(value: f64) -> String {
    scaled(value, 1_024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    let is_whole = value.fract() == 0.0 && value < step;
    // A value that would round up to a whole step is shown in the next unit.
    while value >= step - 0.5 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / step, next);
    }
    match value {
        value if is_whole || value >= 99.95 => format!("{value:.0}{unit}"),
        value => format!("{value:.1}{unit}"),
    }
}

pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        seconds if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 9.95 => format!("{seconds:.1} s"),
        _ if whole < 60 => format!("{whole} s"),
        _ if whole < 3_600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ if whole < 172_800 => format!("{} h {:02} min", whole / 3_600, whole / 60 % 60),
        _ => format!("{} days {:02} h", whole / 86_400, whole / 3_600 % 24),
    }
}

/// The available ways to the head, each with its time.
pub(crate) fn ways(ways: &[WayStatus]) -> Option<String> {
    let priced = ways.iter().filter_map(|WayStatus { way, seconds, .. }| {
        Some(format!("{} {}", way.name(), duration((*seconds)?)))
    });
    let priced: Vec<String> = priced.collect();
    (!priced.is_empty()).then(|| priced.join("; "))
}

/// An age according to a timestamp, whose clock may differ from this machine's.
pub(crate) fn age(seconds: f64) -> String {
    match is_ahead(seconds) {
        true => format!("{} ahead of the node's clock", duration(-seconds)),
        false => duration(seconds.max(0.0)),
    }
}

/// Whether an age means a time ahead of the clock. Two correct clocks differ by some milliseconds.
pub(crate) fn is_ahead(age_seconds: f64) -> bool {
    age_seconds < -0.5
}

/// The progress, the speed, and the time left.
pub(crate) fn progress(progress: &Progress, transactions_per_second: f64) -> String {
    let Progress { unit, done, total, percent, per_second, eta, .. } = progress;
    let (of, rate) = match unit {
        // Without a total, the rows of a snapshot are known only by the completed share.
        Unit::Rows if *total == 0 => (format!("{} rows", count(*done as f64)), String::new()),
        Unit::Rows => {
            (format!("{} of about {} rows", count(*done as f64), count(*total as f64)), String::new())
        }
        Unit::Batches => (
            format!("{done} of {total} batches"),
            format!(", {} transactions/s", count(transactions_per_second)),
        ),
    };
    format!("{percent:.1} %, {of}, {} {}/s{rate}{}", count(*per_second), unit.name(), left(*eta))
}

/// The time left, as the end of a line.
pub(crate) fn left(eta: Eta) -> String {
    match eta {
        Eta::Done => String::new(),
        Eta::Estimating => ", time left: estimating".into(),
        Eta::Blocked => ", blocked".into(),
        Eta::Left { seconds } => format!(", about {} left", duration(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use slipstream_sync::Phase;

    use super::*;

    #[test]
    fn numbers_read_well_at_every_size() {
        let counts =
            [(0.0, "0"), (7.0, "7"), (0.25, "0.2"), (999.4, "999"), (999.6, "1.0 k"), (1_234_567.0, "1.2 M")];
        for (value, text) in counts {
            assert_eq!(count(value), text);
        }
        for (value, text) in [(1023.0, "1023 B"), (1024.0, "1.0 KiB"), (5e15, "4547 TiB")] {
            assert_eq!(bytes(value), text);
        }
        let durations = [
            (0.25, "250 ms"),
            (0.9996, "1.0 s"),
            (59.6, "1 min 00 s"),
            (3_599.9, "1 h 00 min"),
            (45_000.0, "12 h 30 min"),
            (200_000.0, "2 days 07 h"),
        ];
        for (value, text) in durations {
            assert_eq!(duration(value), text);
        }
        for (value, text) in
            [(0.4, "400 ms"), (-0.2, "0 ms"), (-90.0, "1 min 30 s ahead of the node's clock")]
        {
            assert_eq!(age(value), text);
        }
    }

    /// Goal: the remaining time is shown as a time, or as a word if it is unknown or nothing moves; it is never
    /// negative.
    #[test]
    fn what_is_left_is_said_in_words_when_nobody_can_tell() {
        let progress = |eta| {
            let progress = Progress {
                phase: Phase::Delta,
                unit: Unit::Batches,
                done: 12_800,
                total: 20_000,
                percent: 64.0,
                per_second: 0.0,
                eta,
            };
            super::progress(&progress, 0.0)
        };
        let so_far = "64.0 %, 12800 of 20000 batches, 0 batches/s, 0 transactions/s";
        assert_eq!(progress(Eta::Estimating), format!("{so_far}, time left: estimating"));
        assert_eq!(progress(Eta::Blocked), format!("{so_far}, blocked"));
        assert_eq!(progress(Eta::Left { seconds: 0.25 }), format!("{so_far}, about 250 ms left"));
        assert_eq!(progress(Eta::Done), so_far);
    }
}
