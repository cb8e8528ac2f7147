//! The files that a model is run on.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// The extensions of the files that are taken from a folder.
const FILE_EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "pdf", "tif", "tiff", "json"];

/// A file to run the model on, or a folder below a named one that cannot be read.
#[derive(Debug)]
pub struct Input {
    pub path: PathBuf,
    /// The reason why it cannot be read, where that is known.
    pub problem: Option<String>,
}

/// The files to run the model on, in order: those named, and those in the folders named at any depth, sorted.
#[derive(Debug, Default)]
pub struct Inputs {
    pub files: Vec<Input>,
    /// Links to folders, which are not followed: a link to a parent folder would never end.
    pub links: Vec<PathBuf>,
}

impl Inputs {
    /// Finds the files. The file `output` is none of them.
    pub fn find(paths: &[PathBuf], output: Option<&Path>) -> anyhow::Result<Self> {
        let mut inputs = Self::default();
        for path in paths {
            if path.is_dir() {
                let before = inputs.files.len();
                inputs.walk(path, output).with_context(|| format!("cannot read the folder {}", path.display()))?;
                if inputs.files.len() == before {
                    bail!("{} contains no file ending in {}", path.display(), FILE_EXTENSIONS.join(", "));
                }
            } else if output.is_some_and(|output| is_same(path, output)) {
                bail!("{} is an input and the file of --out: name another file", path.display());
            } else {
                inputs.files.push(Input { path: path.clone(), problem: None });
            }
        }
        Ok(inputs)
    }

    /// The paths of the files, every one of which must be readable.
    #[cfg(any(test, feature = "bench"))]
    pub fn into_paths(self) -> anyhow::Result<Vec<PathBuf>> {
        let path = |Input { path, problem }| match problem {
            None => Ok(path),
            Some(problem) => bail!("{}: {problem}", path.display()),
        };
        self.files.into_iter().map(path).collect()
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
                    self.files.push(Input { path, problem: Some(format!("cannot read the folder: {error}")) });
                }
            // A link without a target is a file that cannot be read.
            } else if (path.is_file() || is_link)
                && FILE_EXTENSIONS.contains(&extension.as_str())
                && !output.is_some_and(|output| is_same(&path, output))
            {
                self.files.push(Input { path, problem: None });
            }
        }
        Ok(())
    }
}

/// True for two names of one file, which need not exist yet.
fn is_same(one: &Path, other: &Path) -> bool {
    let folder = |path: &Path| std::path::absolute(path).ok()?.parent()?.canonicalize().ok();
    let is_twin = || one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other));
    (one.file_name() == other.file_name() && folder(one) == folder(other)) || (one.is_symlink() && is_twin())
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
        for name in ["b.PNG", "a.jpg", "answers.json", "notes.txt", "below/c.json", "below/deeper/d.webp"] {
            durable::replace(&at(name), b"x").unwrap();
        }
        symlink(folder.path(), at("below/round")).unwrap();
        symlink(at("gone"), at("z.jpg")).unwrap();

        let inputs = Inputs::find(&[folder.path().into()], Some(&at("below/../answers.json"))).unwrap();
        assert_eq!(inputs.links, [at("below/round")]);
        let expected = ["a.jpg", "b.PNG", "below/c.json", "below/deeper/d.webp", "z.jpg"].map(at);
        assert_eq!(inputs.into_paths().unwrap(), expected);

        let same = Inputs::find(&[at("a.jpg")], Some(&at("a.jpg"))).unwrap_err().to_string();
        assert!(same.contains("is an input and the file of --out"), "{same}");
        let empty = at("empty");
        std::fs::create_dir(&empty).unwrap();
        assert!(Inputs::find(&[empty], None).unwrap_err().to_string().contains("contains no file ending in jpg"));
    }
}
