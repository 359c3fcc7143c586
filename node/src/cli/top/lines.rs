//! The lines of a part of the screen, each at most as long as the screen is wide.

use ratatui::{
    style::{Style, Stylize as _},
    text::{Line, Span},
};

/// Columns of a name before its value.
const NAME_WIDTH: usize = 14;

/// The lines of one part.
pub(super) struct Lines {
    width: usize,
    lines: Vec<Line<'static>>,
}

/// A cell of a row: its text, its columns, and how it looks.
pub(super) type Cell = (String, usize, Style);

impl Lines {
    pub(super) fn new(title: &str, width: usize) -> Lines {
        let rest = "─".repeat(width.saturating_sub(title.chars().count() + 4));
        let title =
            Line::from(vec![Span::from("─ ").dim(), title.to_owned().bold(), format!(" {rest}").dim()]);
        Lines { width, lines: vec![title] }
    }

    /// A name and its value, on as many lines as it takes; nothing without a value.
    pub(super) fn fact(&mut self, name: &str, value: Option<String>) {
        self.styled(name, value, Style::new());
    }

    /// The same, when it is `bad` in a colour.
    pub(super) fn styled(&mut self, name: &str, value: Option<String>, style: Style) {
        let Some(value) = value else { return };
        for (index, part) in wrapped(&value, self.width.saturating_sub(NAME_WIDTH)).into_iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            self.lines
                .push(Line::from(vec![format!("{name:<NAME_WIDTH$}").dim(), Span::styled(part, style)]));
        }
    }

    /// Cells side by side, each cut or filled to its columns.
    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        let cell = |(text, width, style): Cell| {
            let cut: String = text.chars().take(width.saturating_sub(1)).collect();
            Span::styled(format!("{cut:<width$}"), style)
        };
        self.lines.push(Line::from(cells.into_iter().map(cell).collect::<Vec<_>>()));
    }

    /// The names of the columns.
    pub(super) fn head(&mut self, names: &[(&str, usize)]) {
        self.row(
            names.iter().map(|(name, width)| ((*name).to_owned(), *width, Style::new().dim())).collect(),
        );
    }

    /// A text below a row, on as many lines as it takes.
    pub(super) fn below(&mut self, text: &str, style: Style) {
        for part in wrapped(text, self.width.saturating_sub(2)) {
            self.lines.push(Line::from(vec!["  ".into(), Span::styled(part, style)]));
        }
    }

    /// The lines, with an empty one at the end.
    pub(super) fn end(mut self) -> Vec<Line<'static>> {
        self.lines.push(Line::default());
        self.lines
    }
}

/// A text in lines of so many characters, broken between words where it can be.
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
