//! A report as one HTML page. The page draws its charts of the report's JSON with its own script; nothing comes from elsewhere.

use super::RunReport;

/// The page without its data.
const PAGE: &str = include_str!("page.html");
/// Stands in the page where the report goes.
const PLACE: &str = "REPORT_JSON";

impl RunReport {
    /// The report as one self-contained HTML page: by day, by night, and on a telephone of 360 px.
    pub fn to_html(&self) -> String {
        // A report is strings and numbers: series leave out what JSON cannot hold.
        let json = serde_json::to_string(self).expect("a report serializes");
        // `</script>` and `<!--` would end the data or begin a comment, wherever they stand.
        PAGE.replacen(PLACE, &json.replace('<', "\\u003c"), 1)
    }
}

/// A text within an element or an attribute of HTML.
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

    /// Goal: no name in a report ends the script's data, and the page's data are the report.
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

    /// Goal: the page asks nobody for anything.
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
