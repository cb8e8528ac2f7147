//! The commands of a document, as a reader would type them.

/// A command of a document, and whether root calls it.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub is_roots: bool,
    pub text: String,
}

/// The commands in the fences of a section. A command goes on behind a backslash at its end, and up to the end of a
/// document that stands in it.
pub fn commands(page: &str, heading: &str) -> Vec<Vec<Line>> {
    let (_, section) = page.split_once(heading).unwrap_or_else(|| panic!("the page has no {heading:?}"));
    let section = section.split("\n## ").next().unwrap();
    let fences = section.split("```console\n").skip(1).map(|fence| fence.split("```").next().unwrap());
    let of_fence = |fence: &str| {
        let (mut found, mut lines) = (Vec::new(), fence.lines());
        while let Some(line) = lines.next() {
            let (is_roots, Some(first)) = (line.starts_with("# "), line.strip_prefix("# ").or(line.strip_prefix("$ ")))
            else {
                continue;
            };
            let mut text = first.to_owned();
            while text.ends_with('\\') {
                text = format!("{text}\n{}", lines.next().unwrap());
            }
            if let Some(end) = first.split_once("<<'").and_then(|(_, end)| end.split('\'').next()) {
                while !text.ends_with(&format!("\n{end}")) {
                    text = format!("{text}\n{}", lines.next().unwrap());
                }
            }
            found.push(Line { is_roots, text });
        }
        found
    };
    fences.map(of_fence).collect()
}

#[test]
fn the_commands_of_a_section_are_read_as_a_shell_reads_them() {
    let readme = "## A\n```console\n# no\n```\n## B\n```console\n# a \\\n    b\nanswer\n$ cat <<'E'\n[x]\n# y\nE\n# c\n```\n\n```toml\n# d\n\
                  ```\n## C\n```console\n# no\n```\n";
    let line = |is_roots, text: &str| Line { is_roots, text: text.to_owned() };
    let expected = [[line(true, "a \\\n    b"), line(false, "cat <<'E'\n[x]\n# y\nE"), line(true, "c")]];
    assert_eq!(commands(readme, "## B\n"), expected.map(Vec::from));
}
