//! The files that a model is run on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ledge_engine::pipeline::file_format::FileFormat;

/// A file to run the model on, or a folder below a named one that cannot be read.
#[derive(Debug)]
pub struct InputFile {
    pub path: PathBuf,
    /// The reason why it cannot be read, where that is known.
    pub problem: Option<String>,
}

/// The files to run the model on, in order: those named, and those in the folders named at any depth, sorted.
#[derive(Debug, Default)]
pub struct InputFiles {
    pub files: Vec<InputFile>,
    /// Links to folders, which are not followed: a link to a parent folder would never end.
    pub links: Vec<PathBuf>,
    /// The number of other files in the folders, which are not run, by their extensions. Hidden files are not counted.
    left_out: BTreeMap<String, usize>,
}

impl InputFiles {
    /// Finds the files, without the file `output`.
    pub fn find(paths: &[PathBuf], output: Option<&Path>) -> anyhow::Result<Self> {
        let mut inputs = Self::default();
        for path in paths {
            if path.is_dir() {
                let before = inputs.files.len();
                inputs.walk(path, output).with_context(|| format!("cannot read the folder {}", path.display()))?;
                if inputs.files.len() == before {
                    let found = inputs.left_out().map(|found| format!(", only {found}")).unwrap_or_default();
                    bail!("{} contains no photograph, document or .json file{found}", path.display());
                }
            } else if output.is_some_and(|output| is_same(path, output)) {
                bail!("{} is an input and the file of --out: name another file", path.display());
            } else {
                inputs.files.push(InputFile { path: path.clone(), problem: None });
            }
        }
        Ok(inputs)
    }

    /// The files of folders that are not run, in words: `3 .csv, 1 .txt`.
    pub fn left_out(&self) -> Option<String> {
        let words = self.left_out.iter().map(|(extension, count)| match extension.as_str() {
            "" => format!("{count} without an extension"),
            extension => format!("{count} .{extension}"),
        });
        (!self.left_out.is_empty()).then(|| words.collect::<Vec<_>>().join(", "))
    }

    fn walk(&mut self, folder: &Path, output: Option<&Path>) -> std::io::Result<()> {
        let entries = std::fs::read_dir(folder)?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        paths.sort();
        for path in paths {
            let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            let is_link = path.is_symlink();
            if path.is_dir() && is_link {
                self.links.push(path);
            } else if path.is_dir() {
                if let Err(error) = self.walk(&path, output) {
                    self.files.push(InputFile { path, problem: Some(format!("cannot read the folder: {error}")) });
                }
            // A link without a target is a file that cannot be read.
            } else if (path.is_file() || is_link) && !output.is_some_and(|output| is_same(&path, output)) {
                // Pictures that Ledge does not read fail with their reason, like damaged ones.
                if extension == "json" || FileFormat::by_extension(&extension).is_some() {
                    self.files.push(InputFile { path, problem: None });
                } else if !path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                    *self.left_out.entry(extension).or_default() += 1;
                }
            }
        }
        Ok(())
    }
}

/// True for two names of one file, which need not exist yet.
fn is_same(one: &Path, other: &Path) -> bool {
    let folder = |path: &Path| std::path::absolute(path).ok()?.parent()?.canonicalize().ok();
    let is_proxy = || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other));
    (one.file_name() == other.file_name() && folder(one) == folder(other)) || (one.is_symlink() && is_proxy())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use ledge_base::durable;

    use super::*;

    #[test]
    fn a_folder_has_its_photographs_and_requests_in_order_without_links_to_folders_and_the_output() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("below/deeper")).unwrap();
        let other = ["notes.txt", "below/more.TXT", "README", ".hidden", "film.mp4"];
        let read = ["b.PNG", "a.jpg", "answers.json", "below/c.json", "below/deeper/d.webp", "below/phone.HEIC"];
        for name in read.iter().chain(&other) {
            durable::replace(&at(name), b"x").unwrap();
        }
        symlink(folder.path(), at("below/round")).unwrap();
        symlink(at("gone"), at("z.jpg")).unwrap();

        let inputs = InputFiles::find(&[folder.path().into()], Some(&at("below/../answers.json"))).unwrap();
        assert_eq!(inputs.links, [at("below/round")]);
        assert_eq!(inputs.left_out().unwrap(), "1 without an extension, 1 .mp4, 2 .txt");
        let expected = ["a.jpg", "b.PNG", "below/c.json", "below/deeper/d.webp", "below/phone.HEIC", "z.jpg"].map(at);
        assert!(inputs.files.iter().all(|input| input.problem.is_none()));
        assert_eq!(inputs.files.into_iter().map(|input| input.path).collect::<Vec<_>>(), expected);

        let same = InputFiles::find(&[at("a.jpg")], Some(&at("a.jpg"))).unwrap_err().to_string();
        assert!(same.contains("is an input and the file of --out"), "{same}");
        let empty = at("empty");
        std::fs::create_dir(&empty).unwrap();
        let refusal = || InputFiles::find(std::slice::from_ref(&empty), None).unwrap_err().to_string();
        assert!(refusal().ends_with("empty contains no photograph, document or .json file"), "{}", refusal());
        durable::replace(&at("empty/wines.csv"), b"x").unwrap();
        assert!(refusal().ends_with(".json file, only 1 .csv"), "{}", refusal());
    }
}
