//! The labels of files: a list of `FILE,LABEL`, or a folder for each class.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, bail};

/// The source of the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelSource {
    /// A list, by the path of the file or its name.
    Listed(HashMap<String, String>),
    /// The name of the folder of the file.
    Folders,
}

impl LabelSource {
    /// Reads the list in a file. Without one, folders give the labels.
    pub fn read(list: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = list else { return Ok(Self::Folders) };
        let cannot_read = || format!("cannot read the labels in {}", path.display());
        let text = std::fs::read_to_string(path).with_context(cannot_read)?;
        Ok(Self::Listed(parse(&text).with_context(cannot_read)?))
    }

    /// The label of `file`, which is in the folder `root`; `None` when it has none.
    pub fn of(&self, root: &Path, file: &Path) -> Option<String> {
        let inside = file.strip_prefix(root).unwrap_or(file);
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

/// Reads lines of `FILE,LABEL`. Either may be in double quotes. A label without quotes is the rest of the line,
/// including commas. A first line `file,label` is a heading.
fn parse(text: &str) -> anyhow::Result<HashMap<String, String>> {
    let mut labels = HashMap::new();
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    for (index, record) in reader.records().enumerate() {
        let record = record?;
        let line = record.position().map_or(0, csv::Position::line);
        let file = record.get(0).unwrap_or_default().trim();
        let label = record.iter().skip(1).collect::<Vec<_>>().join(",");
        let label = label.trim();
        if index == 0 && file.eq_ignore_ascii_case("file") && label.eq_ignore_ascii_case("label") {
            continue;
        }
        if file.is_empty() || label.is_empty() {
            bail!("line {line}: expected FILE,LABEL");
        }
        if labels.insert(file.to_owned(), label.to_owned()).is_some() {
            bail!("line {line}: {file} is listed twice");
        }
    }
    Ok(labels)
}

/// The class of a label among the model's labels. A label matches a whole model label, its first name (`tench` of
/// `tench, Tinca tinca`), or the number of the class. Case does not matter, and `_` stands for a space, as in names of
/// folders.
pub fn class(label: &str, labels: &[String]) -> Option<usize> {
    let plain = |text: &str| text.trim().replace('_', " ").to_lowercase();
    let wanted = plain(label);
    let whole = labels.iter().position(|own| plain(own) == wanted);
    let first = || labels.iter().position(|own| own.split(',').next().is_some_and(|first| plain(first) == wanted));
    let number = || wanted.parse().ok().filter(|class| labels.is_empty() || *class < labels.len());
    whole.or_else(first).or_else(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_label_may_hold_commas_and_a_heading_is_no_file() {
        let parsed =
            parse("\u{FEFF}file,label\r\na.jpg,tench, Tinca tinca\r\n\n\"b,1.jpg\",\"say \"\"x\"\"\"\n").unwrap();
        let expected = [("a.jpg", "tench, Tinca tinca"), ("b,1.jpg", "say \"x\"")];
        assert_eq!(parsed, expected.map(|(file, label)| (file.to_owned(), label.to_owned())).into());
    }

    #[test]
    fn a_line_without_a_label_is_named() {
        for (text, reason) in [("a.jpg", "line 1"), ("a,b\nc,", "line 2"), ("a,b\na,c", "twice")] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_is_found_by_its_path_its_name_or_its_folder() {
        let listed = LabelSource::Listed(parse("a/x.jpg,1\ny.jpg,2").unwrap());
        let of = |labels: &LabelSource, file: &str| labels.of(Path::new("/images"), Path::new(file));
        assert_eq!(of(&listed, "/images/a/x.jpg").as_deref(), Some("1"));
        assert_eq!(of(&listed, "/images/b/y.jpg").as_deref(), Some("2"));
        assert_eq!(of(&listed, "/images/b/x.jpg"), None);
        assert_eq!(of(&LabelSource::Folders, "/images/cat/deep/x.jpg").as_deref(), Some("cat"));
        assert_eq!(of(&LabelSource::Folders, "/images/x.jpg"), None);
    }

    #[test]
    fn a_class_has_several_names() {
        let labels = ["tench, Tinca tinca", "great white shark, white shark", "7"].map(str::to_owned);
        assert_eq!(class("tench, Tinca tinca", &labels), Some(0));
        assert_eq!(class("Great_white_shark", &labels), Some(1));
        assert_eq!(class("7", &labels), Some(2), "a label goes before a number");
        assert_eq!((class("12", &[]), class("12", &labels), class("x", &labels)), (Some(12), None, None));
    }

    proptest! {
        #[test]
        fn what_is_quoted_comes_back(rows in prop::collection::hash_map(r"\S{1,12}", r"\S{1,12}", 1..6)) {
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
