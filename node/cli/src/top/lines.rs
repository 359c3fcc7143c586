//! The lines of a section, each at most as long as the screen is wide.

use ratatui::{
    style::{Style, Stylize as _},
    text::{Line, Span},
};

/// Columns for a name before its value.
const NAME_WIDTH: usize = 14;

/// The lines of one section.
pub(super) struct Lines {
    width: usize,
    lines: Vec<Line<'static>>,
}

/// A cell of a row: its text, its width, and its style.
pub(super) type Cell = (String, usize, Style);

impl Lines {
    pub(super) fn new(title: &str, width: usize) -> Lines {
        let rest = "─".repeat(width.saturating_sub(title.chars().count() + 4));
        let title =
            Line::from(vec![Span::from("─ ").dim(), title.to_owned().bold(), format!(" {rest}").dim()]);
        Lines { width, lines: vec![title] }
    }

    /// Adds a name and its value, on as many lines as needed; nothing if there is no value.
    pub(super) fn fact(&mut self, name: &str, value: Option<String>) {
        self.styled(name, value, Style::new());
    }

    /// Like [`Lines::fact`], in a style.
    pub(super) fn styled(&mut self, name: &str, value: Option<String>, style: Style) {
        let Some(value) = value else { return };
        for (index, part) in wrapped(&value, self.width.saturating_sub(NAME_WIDTH)).into_iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            self.lines
                .push(Line::from(vec![format!("{name:<NAME_WIDTH$}").dim(), Span::styled(part, style)]));
        }
    }

    /// Adds cells side by side, each cut or padded to its width.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        let cell = |(text, width, style): Cell| {
            let cut: String = text.chars().take(width.saturating_sub(1)).collect();
            Span::styled(format!("{cut:<width$}"), style)
        };
        self.lines.push(Line::from(cells.into_iter().map(cell).collect::<Vec<_>>()));
    }

    /// Adds the names of the columns.
    pub(super) fn head(&mut self, names: &[(&str, usize)]) {
        self.row(
            names.iter().map(|(name, width)| ((*name).to_owned(), *width, Style::new().dim())).collect(),
        );
    }

    /// Adds a text below a row, on as many lines as needed.
    pub(super) fn below(&mut self, text: &str, style: Style) {
        for part in wrapped(text, self.width.saturating_sub(2)) {
            self.lines.push(Line::from(vec!["  ".into(), Span::styled(part, style)]));
        }
    }

    /// The lines, followed by an empty one.
    pub(super) fn end(mut self) -> Vec<Line<'static>> {
        self.lines.push(Line::default());
        self.lines
    }
}

/// Breaks a text into lines of at most `width` characters, between words where possible.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let mut rest: Vec<char> = word.chars().collect();
        let gap = usize::from(used > 0);
        if used > 0 && used + gap + rest.len() > width {
            lines.push(String::new());
            used = 0;
        }
        while !rest.is_empty() {
            let line = lines.last_mut().expect("there is a first line");
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            let more = rest.split_off(rest.len().min(width.saturating_sub(used)));
            used += rest.len();
            line.extend(rest);
            rest = more;
            if !rest.is_empty() {
                lines.push(String::new());
                used = 0;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the whole text is shown, and every line fits the screen.
    #[test]
    fn texts_are_broken_between_words() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("a 0123456789", 4), ["a", "0123", "4567", "89"]);
        assert_eq!(wrapped("0123 5", 4), ["0123", "5"]);
        assert_eq!(
            (wrapped("", 4), wrapped("ab", 0)),
            (vec![String::new()], vec!["a".to_owned(), "b".into()])
        );
    }
}
