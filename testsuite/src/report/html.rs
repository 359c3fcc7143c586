//! Formats a report as one HTML page. The page draws its charts from the report's JSON with its own script; it loads
//! nothing else.

use super::RunReport;

/// The page without its data.
const PAGE: &str = include_str!("page.html");
/// The placeholder of the report in the page.
const PLACE: &str = "REPORT_JSON";

impl RunReport {
    /// Returns the report as one self-contained HTML page, for light and dark mode and for phones 360 px wide.
    pub fn to_html(&self) -> String {
        // A report has only strings and numbers: series omit values that JSON cannot represent.
        let json = serde_json::to_string(self).expect("a report serializes");
        // `</script>` and `<!--` would end the data or begin a comment, wherever they occur.
        PAGE.replacen(PLACE, &json.replace('<', "\\u003c"), 1)
    }
}

/// Escapes a text for an element or an attribute of HTML.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            character => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::run::tests::report;

    /// Goal: no name in a report ends the script's data, and the page's data is the report.
    #[test]
    fn a_name_with_markup_stays_data() {
        let name = "</script><script>alert(1)</script><!--";
        let report = RunReport { scenario: name.to_owned(), ..report() };
        let html = report.to_html();
        assert!(!html.contains("alert(1)</script>") && !html.contains("<!--"), "{html}");
        assert_eq!(html.matches("<script").count(), PAGE.matches("<script").count());
        let begin = html.find("id=\"report\">").unwrap() + "id=\"report\">".len();
        let data = html[begin..].split("</script>").next().unwrap();
        assert_eq!(serde_json::from_str::<RunReport>(data).unwrap(), report);
    }

    /// Goal: the page loads nothing from outside.
    #[test]
    fn the_page_is_self_contained() {
        assert_eq!(PAGE.matches(PLACE).count(), 1);
        assert!(PAGE.contains("default-src 'none'"));
        for outside in ["src=", "url(", "@import", "https:", "fetch("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escaped("<a b='\"'>&"), "&lt;a b=&#39;&quot;&#39;&gt;&amp;");
    }
}
