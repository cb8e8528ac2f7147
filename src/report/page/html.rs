//! Elements of a page. Every text is escaped here.

use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");

/// A page, while it is written.
pub struct Page {
    html: String,
}

/// A cell of a table.
pub struct Cell {
    class: &'static str,
    lines: Vec<String>,
}

impl Cell {
    pub fn text(text: impl AsRef<str>) -> Self {
        Self { class: "", lines: vec![text.as_ref().to_owned()] }
    }

    /// Text that only a careful reader needs.
    pub fn small(text: impl AsRef<str>) -> Self {
        Self { class: "small", lines: vec![text.as_ref().to_owned()] }
    }

    /// A number, with a space between groups of three digits.
    pub fn number(number: u64) -> Self {
        Self { class: "number", lines: vec![grouped(number)] }
    }

    /// A number with places after the point, as JSON has it.
    pub fn decimal(number: &serde_json::Number) -> Self {
        Self { class: "number", lines: vec![number.to_string()] }
    }

    /// Several lines of small text.
    pub fn lines(lines: Vec<String>) -> Self {
        Self { class: "small", lines }
    }
}

impl Page {
    /// A page with a title.
    pub fn new(title: &str) -> Self {
        let mut page = Self { html: String::new() };
        page.html.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        // Nothing is loaded and nothing runs, whatever a text contains.
        page.html.push_str(
            "<meta http-equiv=\"content-security-policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n",
        );
        page.element("title", title);
        let _ = writeln!(page.html, "<style>\n{STYLE}</style>\n</head>\n<body>");
        page
    }

    /// The text of the page.
    pub fn finish(mut self) -> String {
        self.html.push_str("</body>\n</html>\n");
        self.html
    }

    /// A heading of level 1 to 3.
    pub fn heading(&mut self, level: u8, text: &str) {
        let tag = match level {
            1 => "h1",
            2 => "h2",
            _ => "h3",
        };
        self.element(tag, text);
    }

    pub fn paragraph(&mut self, text: &str) {
        self.element("p", text);
    }

    /// Begins another sheet.
    pub fn new_sheet(&mut self) {
        self.html.push_str("<div class=\"sheet\"></div>\n");
    }

    /// A list; nothing when it is empty.
    pub fn list(&mut self, items: &[String]) {
        if items.is_empty() {
            return;
        }
        self.html.push_str("<ul>\n");
        for item in items {
            self.element("li", item);
        }
        self.html.push_str("</ul>\n");
    }

    /// Names with their texts.
    pub fn pairs(&mut self, pairs: &[(&str, String)]) {
        self.html.push_str("<dl>\n");
        for (name, text) in pairs {
            self.element("dt", name);
            self.element("dd", text);
        }
        self.html.push_str("</dl>\n");
    }

    /// A table with the names of its columns, and their widths in percent; nothing without rows. A row of one cell has it
    /// over all columns.
    pub fn table(&mut self, columns: &[(&str, u8)], rows: Vec<Vec<Cell>>) {
        if rows.is_empty() {
            return;
        }
        self.html.push_str("<table>\n<colgroup>");
        for (_, width) in columns {
            let _ = write!(self.html, "<col style=\"width:{width}%\">");
        }
        self.html.push_str("</colgroup>\n<thead><tr>");
        for (name, _) in columns {
            self.html.push_str("<th>");
            self.text(name);
            self.html.push_str("</th>");
        }
        self.html.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.html.push_str("<tr>");
            let is_whole = row.len() == 1 && columns.len() > 1;
            for Cell { class, lines } in row {
                self.html.push_str("<td");
                if !class.is_empty() {
                    let _ = write!(self.html, " class=\"{class}\"");
                }
                if is_whole {
                    let _ = write!(self.html, " colspan=\"{}\"", columns.len());
                }
                self.html.push('>');
                for (at, line) in lines.iter().enumerate() {
                    if at > 0 {
                        self.html.push_str("<br>");
                    }
                    self.text(line);
                }
                self.html.push_str("</td>");
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</tbody>\n</table>\n");
    }

    fn element(&mut self, tag: &'static str, text: &str) {
        let _ = write!(self.html, "<{tag}>");
        self.text(text);
        let _ = writeln!(self.html, "</{tag}>");
    }

    fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.html.push_str("&amp;"),
                '<' => self.html.push_str("&lt;"),
                '>' => self.html.push_str("&gt;"),
                '"' => self.html.push_str("&quot;"),
                '\'' => self.html.push_str("&#39;"),
                // Direction marks and other controls could show a text in another order than it is.
                character if character.is_control() || is_direction(character) => self.html.push('\u{fffd}'),
                character => self.html.push(character),
            }
        }
    }
}

fn is_direction(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            // A narrow space that does not break.
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_groups_of_three() {
        let grouped = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]);
    }
}
