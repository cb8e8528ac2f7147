//! The labels of files: a list of `FILE,LABEL`, or a folder for each class.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, bail};

/// The source of the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Labels {
    /// A list, by the path of the file or its name.
    Listed(HashMap<String, String>),
    /// The name of the folder of the file.
    Folders,
}

impl Labels {
    /// Reads the list in a file. Without one, folders give the labels.
    pub fn read(list: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = list else { return Ok(Self::Folders) };
        let cannot_read = || format!("cannot read the labels in {}", path.display());
        let text = std::fs::read_to_string(path).with_context(cannot_read)?;
        Ok(Self::Listed(parse(&text).with_context(cannot_read)?))
    }

    /// The label of `file`, which is in the folder `images`; `None` when it has none.
    pub fn of(&self, images: &Path, file: &Path) -> Option<String> {
        let inside = file.strip_prefix(images).unwrap_or(file);
        match self {
            Self::Listed(listed) => {
                let name = file.file_name()?.to_string_lossy();
                listed.get(inside.to_string_lossy().as_ref()).or_else(|| listed.get(name.as_ref())).cloned()
            }
            Self::Folders => {
                let mut parts = inside.components();
                let folder = parts.next()?.as_os_str().to_string_lossy().into_owned();
                parts.next().map(|_| folder)
            }
        }
    }
}

/// Reads lines of `FILE,LABEL`. Either may be in double quotes, with quotes in it doubled; without quotes the label is
/// the rest of the line, including commas. A first line `file,label` is a heading; empty lines are skipped.
pub fn parse(text: &str) -> anyhow::Result<HashMap<String, String>> {
    let mut labels = HashMap::new();
    for (index, line) in text.trim_start_matches('\u{FEFF}').lines().enumerate() {
        let number = index + 1;
        if line.trim().is_empty() || (index == 0 && line.trim().eq_ignore_ascii_case("file,label")) {
            continue;
        }
        let (file, rest) = field(line).with_context(|| format!("line {number}: expected FILE,LABEL"))?;
        let label = match rest.strip_prefix(',') {
            Some(rest) if rest.trim_start().starts_with('"') => match field(rest.trim()) {
                Some((label, "")) => label,
                _ => bail!("line {number}: the label has no closing quote, or has text after it"),
            },
            Some(rest) => rest.trim().to_owned(),
            None => bail!("line {number}: expected FILE,LABEL"),
        };
        if file.is_empty() || label.is_empty() {
            bail!("line {number}: expected FILE,LABEL");
        }
        if labels.insert(file.clone(), label).is_some() {
            bail!("line {number}: {file} is listed twice");
        }
    }
    Ok(labels)
}

/// The first field of a line, and the text after it.
fn field(line: &str) -> Option<(String, &str)> {
    let Some(mut rest) = line.trim_start().strip_prefix('"') else {
        let end = line.find(',').unwrap_or(line.len());
        let (field, rest) = line.split_at_checked(end)?;
        return Some((field.trim().to_owned(), rest));
    };
    let mut field = String::new();
    loop {
        let (part, after) = rest.split_once('"')?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Some((field, after.trim_start())),
        }
    }
}

/// The class of a label among the model's labels. A label matches a whole model label, its first name (`tench` of
/// `tench, Tinca tinca`), or the number of the class. Case does not matter, and `_` stands for a space, as in names of
/// folders.
pub fn class(label: &str, labels: &[String]) -> Option<usize> {
    let plain = |text: &str| text.trim().replace('_', " ").to_lowercase();
    let wanted = plain(label);
    let whole = labels.iter().position(|own| plain(own) == wanted);
    let first = || labels.iter().position(|own| own.split(',').next().is_some_and(|first| plain(first) == wanted));
    whole.or_else(first).or_else(|| label.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_label_may_hold_commas_and_a_heading_is_no_file() {
        let parsed =
            parse("\u{FEFF}file,label\r\na.jpg,tench, Tinca tinca\r\n\n\"b,1.jpg\" , \"say \"\"x\"\"\"\n").unwrap();
        let expected = [("a.jpg", "tench, Tinca tinca"), ("b,1.jpg", "say \"x\"")];
        assert_eq!(parsed, expected.map(|(file, label)| (file.to_owned(), label.to_owned())).into());
    }

    #[test]
    fn a_line_without_a_label_is_named() {
        let cases = [("a.jpg", "line 1"), ("a,b\nc,", "line 2"), ("a,b\na,c", "twice"), ("a,\"b", "no closing quote")];
        for (text, reason) in cases {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_is_found_by_its_path_its_name_or_its_folder() {
        let listed = Labels::Listed(parse("a/x.jpg,1\ny.jpg,2").unwrap());
        let of = |labels: &Labels, file: &str| labels.of(Path::new("/images"), Path::new(file));
        assert_eq!(of(&listed, "/images/a/x.jpg").as_deref(), Some("1"));
        assert_eq!(of(&listed, "/images/b/y.jpg").as_deref(), Some("2"));
        assert_eq!(of(&listed, "/images/b/x.jpg"), None);
        assert_eq!(of(&Labels::Folders, "/images/cat/deep/x.jpg").as_deref(), Some("cat"));
        assert_eq!(of(&Labels::Folders, "/images/x.jpg"), None);
    }

    #[test]
    fn a_class_has_several_names() {
        let labels = ["tench, Tinca tinca", "great white shark, white shark", "7"].map(str::to_owned);
        assert_eq!(class("tench, Tinca tinca", &labels), Some(0));
        assert_eq!(class("Great_white_shark", &labels), Some(1));
        assert_eq!(class("7", &labels), Some(2), "a label goes before a number");
        assert_eq!((class("12", &[]), class("x", &labels)), (Some(12), None));
    }

    proptest! {
        #[test]
        fn what_is_quoted_comes_back(rows in prop::collection::hash_map("[^\r\n]{1,12}", "[^\r\n]{1,12}", 1..6)) {
            let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
            let lines = rows.iter().map(|(file, label)| format!("{},{}\n", quote(file), quote(label)));
            prop_assert_eq!(parse(&lines.collect::<String>()).unwrap(), rows);
        }

        #[test]
        fn foreign_text_never_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
